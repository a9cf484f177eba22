"""Draws pictures from the scalars of a run, when its training ends."""

from mtl import types
from mtl.monitoring import event_files, progress
from mtl.tools.drawing import affinity_picture, balancing_picture, gates_picture, sparsity_picture


class Drawing(types.RunObserver):
    """Draws affinities, balancing, gates and sparsity, if the run has measured them.

    Args:
      model_dir: the folder of the run.
    """

    def __init__(self, model_dir: str):
        self._model_dir = model_dir

    def write_results(self) -> None:
        with progress.tell_while(lambda: f"drawing what the run wrote to {self._model_dir}"):
            scalars = event_files.read_record(self._model_dir).curves
            for picture in (affinity_picture, balancing_picture, gates_picture, sparsity_picture):
                picture.draw(self._model_dir, scalars)


def observe(run: types.ObservedRun) -> Drawing:
    """Return the observer that draws the pictures of a run."""
    return Drawing(run.model_dir)
