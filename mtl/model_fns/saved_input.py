"""An input whose place is saved with every checkpoint, so that a run that goes on reads on.

rows = model_fns.SavedInput(make_dataset, model_dir)
estimator.train(rows.read, max_steps=1000, saving_listeners=[rows])
"""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mtl import checks
from mtl.checkpoints import input_state, run_directory
from mtl.step import replicas

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)


class SavedInput(tf.compat.v1.train.CheckpointSaverListener):
    """The input of one training, and the listener that saves where it stands.

    Its state lies in `<model_dir>/input`, a file for each checkpoint that is kept. Shuffled rows,
    those read ahead and the epoch are in it. A generator in Python has no state: one line says so.

    Args:
      make_dataset: makes the batches, as an `input_fn` does.
      model_dir: of the Estimator.
      settings: what the order of the rows depends on, such as a seed and the files, in any nesting.
        A state that was saved under other settings is not used.
    """

    def __init__(
        self, make_dataset: Callable[[], tf.data.Dataset], model_dir: str, settings: Any = ()
    ):
        self._make, self._dir, self._settings = make_dataset, model_dir, settings
        self._state: input_state.InputState | None = None
        self._is_placed = False

    def read(self) -> Any:
        """Return the next batch; this is the `input_fn` of `Estimator.train`.

        Raises:
          UserError: several replicas train, or what is read is no dataset.
        """
        count = replicas.count()
        checks.require(count == 1, "SavedInput", "be read by one replica", count)
        dataset = self._make()
        checks.is_a("SavedInput", dataset, tf.data.Dataset, "make a tf.data.Dataset")
        iterator = tf1.data.make_initializable_iterator(dataset)
        # Not Estimator's own iterator: a hook starts that one anew after this has been restored.
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        self._state = input_state.InputState(self._dir, self._settings)
        self._state.watch(iterator)
        self._is_placed = False
        return iterator.get_next()

    def before_save(self, session, global_step_value):
        """Save where the input stands, so that no checkpoint is without."""
        state, step = self._require_state(), int(global_step_value)
        if not self._is_placed:
            # Estimator saves before the first step, that of a run that goes on as well.
            self._is_placed = True
            is_later = step == run_directory.step_of(self._dir) and step > 0
            if is_later and state.restore(session, step):
                return
            if is_later:
                _log.info("Step %d was saved without this input: its order starts anew.", step)
        state.save(session, step)

    def after_save(self, session, global_step_value):
        """Remove the states of checkpoints that are gone."""
        kept = map(run_directory.step_in_name, run_directory.list_checkpoints(self._dir))
        self._require_state().keep([*kept, int(global_step_value)])

    def _require_state(self) -> input_state.InputState:
        fix = "Give Estimator.train the input_fn SavedInput.read."
        if self._state is None:
            checks.fail("SavedInput", "be read by the training that it listens to", None, fix)
        return self._state
