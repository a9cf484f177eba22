"""`tf.data.experimental.CheckpointInputPipelineHook`, which TensorFlow 2.16 dropped.

estimator.train(input_fn, hooks=[tf.data.experimental.CheckpointInputPipelineHook(estimator)])
# A continued training starts after the last example that it has read.
"""

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from mtl import checks

tf1 = tf.compat.v1
_POLICIES = {policy.name.lower(): policy for policy in tf.data.experimental.ExternalStatePolicy}


class CheckpointInputPipelineHook(tf.compat.v1.train.SessionRunHook):
    """Saves and restores the state of all iterators in separate checkpoints.

    The states of the iterators are in the folder of the model: `input.ckpt-<step>`, or, if several
    workers train, `input_<task type>_<task id>.ckpt-<step>`. The states of the iterators are saved
    as often as RunConfig saves checkpoints of the model.

    Args:
      estimator: the Estimator that trains.
      external_state_policy: the reaction to state that cannot be saved, such as a random seed that
        is drawn at run time: "fail", "warn" or "ignore".
    """

    def __init__(self, estimator, external_state_policy: str | None = None):
        policy = external_state_policy or "fail"
        where = "CheckpointInputPipelineHook.external_state_policy"
        checks.one_of(where, policy, _POLICIES)
        self._policy = _POLICIES[policy]
        config = estimator.config
        several = config.num_worker_replicas > 1
        name = f"input_{config.task_type}_{config.task_id}" if several else "input"
        self._folder = estimator.model_dir
        self._path = f"{self._folder}/{name}.ckpt"
        self._state_file = f"checkpoint_{name}"
        self._timer = tf1.train.SecondOrStepTimer(
            config.save_checkpoints_secs, config.save_checkpoints_steps
        )

    def begin(self):
        self._global_step = tf1.train.get_global_step()
        self._saver = tf1.train.Saver(
            [
                iterator_ops._IteratorSaveable(iterator, iterator.name, self._policy)
                for iterator in tf1.get_collection(iterator_ops.GLOBAL_ITERATORS)
            ],
            sharded=True,
        )

    def after_create_session(self, session, coord):
        self._is_new_session = True

    def before_run(self, run_context):
        # Do not restore in after_create_session, in which a later hook may initialise the
        # iterators.
        if self._is_new_session:
            self._restore_or_save(run_context.session)
            self._is_new_session = False
        return tf1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context, run_values):
        if self._timer.should_trigger_for_step(run_values.results + 1):
            step = run_context.session.run(self._global_step)
            if self._timer.should_trigger_for_step(step):
                self._save(run_context.session, step)

    def end(self, session):
        step = session.run(self._global_step)
        if step != self._timer.last_triggered_step():
            self._save(session, step)

    def _restore_or_save(self, session) -> None:
        latest = tf1.train.latest_checkpoint(self._folder, self._state_file)
        if latest:
            self._saver.restore(session, latest)
        else:
            self._save(session, session.run(self._global_step))

    def _save(self, session, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        self._saver.save(
            session,
            self._path,
            global_step=step,
            latest_filename=self._state_file,
            write_meta_graph=False,
        )
