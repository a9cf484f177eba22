"""Draws pictures from the scalars of a run at the end of its training.

paths = pictures.write("runs/digits", curves)        # runs/digits/balancing.svg, ...
"""

import os
from collections.abc import Sequence
from types import ModuleType

from mtl import deferred, types
from mtl.files import atomic
from mtl.monitoring import event_files, progress

with deferred.imports():
    from mtl.tools.drawing import (
        affinity_picture,
        balancing_picture,
        figures,
        gates_picture,
        sparsity_picture,
    )

_ALL = (affinity_picture, balancing_picture, gates_picture, sparsity_picture)


def write(
    model_dir: str, curves: event_files.Curves, modules: Sequence[ModuleType] = _ALL
) -> list[str]:
    """Write a picture for each kind of scalar that the run has, and the table of affinities.

    Args:
      model_dir: the folder of the run.
      curves: the scalars of the run.
      modules: the modules of this package that draw a picture.

    Returns:
      The paths of the written files.
    """
    files = {}
    for picture in modules:
        panels = picture.draw_panels(curves)
        if panels:
            files[picture.FILE] = figures.lay_out(picture.TITLE, panels)
    if affinity_picture.FILE in files:
        files[affinity_picture.TABLE] = affinity_picture.write_table(curves)
    for name, text in files.items():
        atomic.write(os.path.join(model_dir, name), text)
    return [os.path.join(model_dir, name) for name in files]


class Drawing(types.RunObserver):
    """Draws affinities, balancing, gates and sparsity at the end of a run that has measured them.

    Args:
      model_dir: the folder of the run.
    """

    def __init__(self, model_dir: str):
        self._model_dir = model_dir

    def write_results(self) -> None:
        with progress.tell_while(lambda: f"drawing the scalars of {self._model_dir}"):
            write(self._model_dir, event_files.read_record(self._model_dir).curves)


def observe(run: types.ObservedRun) -> Drawing:
    """Return the observer that draws the pictures of a run."""
    return Drawing(run.model_dir)
