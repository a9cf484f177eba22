"""Draws how sparse a network became while it trained: one picture in the run's folder.

path = sparsity_picture.draw("runs/digits")      # runs/digits/sparsity.svg: open it in a browser

Three panels have a line for each pruned variable, over the steps. With `TaskSaliency`, a fourth
panel shows how far the tasks agree. The summary of the run tells how many weights are cut.
"""

from __future__ import annotations

import os

from mtl.files import atomic
from mtl.monitoring import chart, event_files

_FILE = "sparsity.svg"
_PREFIX = "pruning/"
TITLES = {
    "sparsity": "share of weights that are cut",
    "dead_units": "share of units that nothing feeds",
    "churn": "share of weights whose mask the last cut changed",
    "task_overlap": "overlap of the tasks' choices at the last cut",
}


def draw(model_dir: str, scalars: event_files.Curves | None = None) -> str | None:
    """Write the picture anew and return its path; None if the run prunes nothing.

    Args:
      model_dir: the folder of the run.
      scalars: the scalars of its event files; None reads them.
    """
    found = read(model_dir) if scalars is None else group(scalars)
    if not found:
        return None
    panels = [chart.draw_lines(TITLES[kind], curves) for kind, curves in found.items()]
    path = os.path.join(model_dir, _FILE)
    atomic.write(path, chart.draw_page(panels))
    return path


def read(model_dir: str) -> dict[str, event_files.Curves]:
    """Return {kind: {variable: {step: value}}} of a run."""
    return group(event_files.read_record(model_dir).curves)


def group(curves: event_files.Curves) -> dict[str, event_files.Curves]:
    """Return {kind: {variable: {step: value}}} among the scalars of a run."""
    found: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        variable, _, kind = tag.removeprefix(_PREFIX).rpartition("/")
        if tag.startswith(_PREFIX) and kind in TITLES and points:
            name = variable.removeprefix("network/").removesuffix("/kernel")
            found.setdefault(kind, {})[name] = points
    return {kind: found[kind] for kind in TITLES if kind in found}
