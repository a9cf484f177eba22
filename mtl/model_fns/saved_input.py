"""An input whose position is saved with every checkpoint, for resumed runs.

rows = model_fns.SavedInput(make_dataset, model_dir)
estimator.train(rows.read, max_steps=1000, saving_listeners=[rows])
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from mtl import checks
from mtl.checkpoints import input_state, run_directory
from mtl.deferred import tf, tf1
from mtl.step import replicas

_log = logging.getLogger(__name__)


class SavedInput(tf.compat.v1.train.CheckpointSaverListener):
    """The input of a training, and a listener that saves the position of the input.

    The state of the input is saved in `<model_dir>/input`, for each checkpoint in the folder. The
    state of the input consists of the shuffle buffer, prefetched rows and the epoch. TensorFlow
    cannot save the state of a Python generator; in this case, a line in the log says so.

    Args:
      make_dataset: a function that returns a dataset of batches, like an `input_fn`.
      model_dir: the folder of the Estimator.
      settings: the settings that determine the order of the rows, such as a seed and the files, in
        any nesting. A resumed run ignores a state that was saved with other settings.
    """

    def __init__(
        self, make_dataset: Callable[[], tf.data.Dataset], model_dir: str, settings: Any = ()
    ):
        self._make, self._dir, self._settings = make_dataset, model_dir, settings
        self._state: input_state.InputState | None = None
        self._is_placed = False
        self._batch: Any = None

    def read(self) -> Any:
        """Return the next batch; this is the `input_fn` of `Estimator.train`.

        Raises:
          UserError: the training has several replicas, or `make_dataset` returns no dataset.
        """
        count = replicas.count()
        checks.require(count == 1, "SavedInput", "be read by one replica", count)
        dataset = self._make()
        checks.is_a("SavedInput", dataset, tf.data.Dataset, "return a tf.data.Dataset")
        iterator = tf1.data.make_initializable_iterator(dataset)
        # Estimator would initialise the iterator of a dataset in a hook, after this class has
        # restored the state. To restore the state into it, initialise this iterator earlier,
        # together with lookup tables.
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        self._state = input_state.InputState(self._dir, self._settings)
        self._state.watch(iterator)
        self._is_placed = False
        step = run_directory.step_of(self._dir)
        if step > 0 and not self._state.is_saved(step):
            _tell_new_order(step)
        batch = iterator.get_next()
        # Some elements of a batch, such as None, cannot be fetched. Fetch the op from which all
        # elements come.
        flat = tf.nest.flatten(batch, expand_composites=True)
        self._batch = [value.op for value in flat if isinstance(value, tf.Tensor)]
        return batch

    def before_save(self, session, global_step_value):
        """Save the position of the input before each checkpoint; restore it in a resumed run.

        Raises:
          UserError: the training does not read `SavedInput.read`.
        """
        state, step = self._require_state(), int(global_step_value)
        if not self._is_placed:
            # Estimator saves a checkpoint before the first step, even in a resumed run.
            self._is_placed = True
            if step > 0 and self._restore(session, state, step):
                return
        state.save(session, step)

    def _restore(self, session: Any, state: input_state.InputState, step: int) -> bool:
        """Restore the position of a step; return False if the input starts at its beginning."""
        if step != run_directory.step_of(self._dir):
            reason = "the Estimator continues another checkpoint than the latest in"
            where = f"SavedInput.model_dir, {self._dir}"
            _log.warning("The input starts from its beginning: %s %s.", reason, where)
            return False
        if not state.restore(session, step):
            if state.is_saved(step):  # Without a state, `read` has logged a line.
                _tell_new_order(step)
            return False
        try:
            session.run(self._batch)
        except tf.errors.OutOfRangeError:
            # The last training ended at the end of its input, so this training reads the input
            # again.
            state.restart(session)
            return False
        return state.restore(session, step)

    def after_save(self, session, global_step_value):
        """Remove the saved states of deleted checkpoints."""
        steps = map(run_directory.step_in_name, run_directory.list_checkpoints(self._dir))
        self._require_state().keep([*steps, int(global_step_value)])

    def end(self, session, global_step_value):
        """Forget the graph of the training."""
        self._batch = None

    def _require_state(self) -> input_state.InputState:
        fix = "Call Estimator.train with SavedInput.read as input_fn."
        if self._state is None:
            checks.fail("SavedInput", "be read by the training that saves it", None, fix)
        return self._state


def _tell_new_order(step: int) -> None:
    reasons = "other settings, no listener, or an input that has changed or cannot be saved"
    reason = f"step {step} has no saved state that fits this input"
    _log.warning("The input starts from its beginning: %s (%s).", reason, reasons)
