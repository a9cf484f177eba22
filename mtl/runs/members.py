"""Runs the processes of a cluster besides the chief: workers, parameter servers, evaluator.

with members.open_heartbeat(cluster, model_dir, timeout_secs=60) as beat:
    members.serve_parameters(cluster, beat, interruption)         # until the chief is done
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from mtl import deferred
from mtl.checkpoints import lock, run_directory
from mtl.deferred import compat, tf
from mtl.distribution import interruption as interruption_lib
from mtl.distribution import tf_config
from mtl.runs import evaluation

with deferred.imports():
    from mtl.distribution import heartbeat as heartbeat_lib

_log = logging.getLogger(__name__)

CHIEF, EVALUATOR = "chief-0", "evaluator-0"
TRAINING, SERVING = "training", "serving"
# The seconds that a worker has to end by itself after the chief has ended.
_GRACE_SECS = 5.0


class NoHeartbeat(contextlib.AbstractContextManager):
    """Does nothing; a run with a single process uses it in place of a heartbeat."""

    def __exit__(self, *error) -> None:
        pass

    def publish_phase(self, phase: str, **more: Any) -> None:
        pass


def open_heartbeat(
    cluster: tf_config.Cluster | None,
    model_dir: str,
    timeout_secs: float,
    is_evaluated_beside: bool,
) -> heartbeat_lib.Heartbeat | NoHeartbeat:
    """Return the heartbeat of this process, which also watches other processes of the cluster.

    Args:
      cluster: the processes of the run; None for a single process.
      model_dir: the folder that all processes share.
      timeout_secs: a process counts as lost after this many seconds without a heartbeat.
      is_evaluated_beside: True if a separate process evaluates.
    """
    if cluster is None:
        return NoHeartbeat()
    # The chief goes on if the evaluator is lost, because checkpoints can be evaluated later.
    beside = [EVALUATOR] if is_evaluated_beside and cluster.is_chief else []
    processes = cluster.watched_processes
    return heartbeat_lib.Heartbeat(model_dir, cluster.name, processes, timeout_secs, beside)


def announce_training(beat: heartbeat_lib.Heartbeat | NoHeartbeat, checkpoint: str | None) -> None:
    """Tell the other processes that the chief trains, and the checkpoint that it starts from.

    Args:
      beat: the heartbeat of the chief, which publishes that the chief trains.
      checkpoint: the path of the checkpoint, of which the other processes get the file name; None
        for a new run.
    """
    beat.publish_phase(TRAINING, checkpoint=os.path.basename(checkpoint or ""))


def train_estimator(
    cluster: tf_config.Cluster | None,
    estimator: compat.estimator.Estimator,
    spec: compat.estimator.TrainSpec,
) -> None:
    """Train an Estimator, together with the other processes of a cluster if there is one.

    Args:
      cluster: the processes of the run; None for a single process.
      estimator: the Estimator to train.
      spec: the input and the last step of the training.
    """
    if cluster is None:
        estimator.train(spec.input_fn, max_steps=spec.max_steps)
    else:
        eval_spec = compat.estimator.EvalSpec(spec.input_fn)
        compat.estimator.train_and_evaluate(estimator, spec, eval_spec)


@contextlib.contextmanager
def lock_evaluator(model_dir: str) -> Iterator[None]:
    """Hold the lock of a run's evaluator; check the folder, because the chief may start later.

    Raises:
      UserError: another process evaluates the run, or the folder cannot be written.
    """
    run_directory.require_writable("--model_dir", model_dir)
    with lock.hold_lock(model_dir, lock.EVALUATOR):
        yield


def serve_parameters(
    cluster: tf_config.Cluster,
    beat: heartbeat_lib.Heartbeat,
    interruption: interruption_lib.Interruption,
) -> None:
    """Serve variables until the chief ends training or, after a request to stop, has saved.

    Args:
      cluster: the processes of the run, with the job and the index of this process.
      beat: passes a request to stop on to the chief, and reads the phase of the chief.
      interruption: records a request to stop this process.

    Raises:
      SystemExit: the chief has ended after a request to stop.
    """
    server = tf.distribute.Server(cluster.jobs, cluster.job, cluster.index)
    with interruption.handle_signals():
        beat.publish_phase(SERVING)
        while not _is_through(beat, interruption):
            if interruption.requested:
                beat.publish_phase(heartbeat_lib.STOPPED)
            time.sleep(0.2)
    del server


def evaluate_all(
    evaluator: evaluation.Evaluator,
    model_dir: str,
    beat: heartbeat_lib.Heartbeat,
    interruption: interruption_lib.Interruption,
) -> dict[str, Any]:
    """Evaluate every checkpoint once, until the chief has ended and no checkpoint is left.

    Args:
      evaluator: evaluates one checkpoint when called with its path.
      model_dir: the folder with the checkpoints.
      beat: reads the current phase of the chief, such as "training".
      interruption: ends this process after a request to stop this process or the chief.

    Returns:
      The metrics of the last evaluation; {} if there was no evaluation.
    """
    beat.wait_for(CHIEF, TRAINING)
    while True:
        # Ask whether the chief has ended before listing checkpoints, so that the list includes the
        # last checkpoint.
        is_last = _is_through(beat, interruption)
        for checkpoint in run_directory.list_checkpoints(model_dir):
            if run_directory.step_in_name(checkpoint) > evaluator.keeper.last_step:
                evaluator(checkpoint)
        if is_last:
            return evaluator.metrics or {}
        time.sleep(0.5)


def tell_what_waits(*, evaluated: int, last: int) -> None:
    """Log the checkpoints that still wait for their evaluation at the end of a training.

    Args:
      evaluated: the step of the last checkpoint that was evaluated.
      last: the step of the last checkpoint.
    """
    if evaluated < last:
        message = (
            "Checkpoints after step %d, up to %d, wait for %s. If that process has ended, start "
            "all processes again."
        )
        _log.info(message, evaluated, last, EVALUATOR)


@contextlib.contextmanager
def ending_with_chief(beat: heartbeat_lib.Heartbeat) -> Iterator[None]:
    """End this asynchronous worker after the chief, even if the worker has no session.

    Parameter servers end with the chief. A worker that starts late, or is in the middle of a step,
    would wait for the servers for ever. When the chief has ended, the `with` block has five seconds
    to end by itself; then the process ends.

    Args:
      beat: reads the phase of the chief, and ends this process.
    """
    end_event = threading.Event()

    def watch() -> None:
        while (phase := beat.read_phase(CHIEF)) not in (heartbeat_lib.DONE, heartbeat_lib.STOPPED):
            if end_event.wait(0.2):
                return
        if not end_event.wait(_GRACE_SECS):
            _log.info("The chief %s: this process ends.", phase)
            beat.end_process(phase)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        end_event.set()


class Following(tf.compat.v1.train.SessionRunHook):
    """Ends an asynchronous worker together with the chief.

    After a request to stop, the worker tells the chief, and waits until the chief has saved.
    """

    def __init__(self, beat: heartbeat_lib.Heartbeat, interruption: interruption_lib.Interruption):
        self._beat, self._interruption = beat, interruption

    def after_run(self, run_context, run_values):
        if self._interruption.requested:
            self._beat.publish_phase(heartbeat_lib.STOPPED)
            while not _is_through(self._beat, self._interruption):
                time.sleep(0.1)
        if _is_through(self._beat, self._interruption):
            run_context.request_stop()


class Leading(tf.compat.v1.train.SessionRunHook):
    """Starts and stops the workers of a run with parameter servers; only the chief has this hook.

    The hook lets the workers begin when all variables have values: a worker that began earlier
    would sleep for half a minute. If another process got a request to stop, the hook passes the
    request on to the chief. The hook of this class runs before the hook that saves checkpoints.
    """

    def __init__(
        self,
        beat: heartbeat_lib.Heartbeat,
        interruption: interruption_lib.Interruption,
        checkpoint: str | None,
    ):
        self._beat, self._interruption, self._checkpoint = beat, interruption, checkpoint

    def after_create_session(self, session, coord):
        announce_training(self._beat, self._checkpoint)

    def after_run(self, run_context, run_values):
        stopped_process = self._beat.find_stopped()
        if stopped_process and not self._interruption.requested:
            _log.info("%s was stopped, so the whole run stops.", stopped_process)
            # Do not call the signal handler, which kills the process at its second call: a real
            # signal may still follow.
            self._interruption.signal = signal.SIGTERM


def _is_through(beat: heartbeat_lib.Heartbeat, interruption: interruption_lib.Interruption) -> bool:
    """Return True if the chief has ended; if the chief was stopped, end this process, too."""
    phase = beat.read_phase(CHIEF)
    if phase == heartbeat_lib.STOPPED:
        interruption.leave("with the chief, which saved")
    return phase == heartbeat_lib.DONE
