"""Draws how a run balanced its tasks, from scalars of TensorBoard, in `balancing.svg`.

panels = balancing_picture.draw_panels(curves)

The picture shows the weights of the tasks' losses over the steps. With a surgery, the picture also
shows the norms of the tasks' gradients, their cosines, and the share of pairs in conflict. A matrix
shows the cosines of all pairs of tasks, as means over the last quarter of the steps.
"""

import re
import statistics

import numpy as np

from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts, matrices

FILE, TITLE = "balancing.svg", "Balancing of the tasks"
# The first group of the pattern is lazy, so that the scalar "surgery/weight/a" matches the kind
# surgery/weight, not the kind weight in a scope named surgery.
_TAG = re.compile(r"(?:(.+)/)??(weight|surgery/(?:weight|norm|cosine|conflicts))(?:/(.+))?")
# {kind of scalar: (title of its figure, name of the vertical axis)}
_KINDS = {
    "weight": ("weights of the losses", "weight"),
    "surgery/weight": ("weights of the gradients", "weight"),
    "surgery/norm": ("norms of the gradients", "norm"),
    "surgery/cosine": ("cosines of the gradients", "cosine"),
    "surgery/conflicts": ("share of pairs in conflict", "share of pairs"),
}


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw the weights, norms and cosines of the tasks.

    Returns:
      A figure for each kind of scalar in each scope, and a matrix for the cosines of each scope; []
      if the run has no such scalars.
    """
    panels = []
    for (scope, kind), group_curves in group(curves).items():
        panels.append(draw_group(scope, kind, group_curves))
        if kind == "surgery/cosine":
            panels.append(
                _draw_matrix(f"{tell_title(scope, kind)}, mean of the last quarter", group_curves)
            )
    return panels


def draw_group(scope: str, kind: str, curves: event_files.Curves) -> figures.Figure:
    """Draw the curves for one kind of scalar in one scope.

    Args:
      scope: the prefix of the scalars' names, or "".
      kind: a kind of scalar, such as "weight" or "surgery/cosine".
      curves: {name of the line: {step: value}}, as in the result of `group`.
    """
    return line_charts.draw_curves(tell_title(scope, kind), curves, _KINDS[kind][1])


def tell_title(scope: str, kind: str) -> str:
    """Return the title of the figure for one kind of scalar in one scope.

    Args:
      scope: the prefix of the scalars' names, or "".
      kind: a kind of scalar, such as "weight" or "surgery/cosine".
    """
    return _KINDS[kind][0] + (f", {scope}" if scope else "")


def group(curves: event_files.Curves) -> dict[tuple[str, str], event_files.Curves]:
    """Group the scalars of a run that are about balancing.

    Returns:
      {(scope, kind): {name: {step: value}}}, sorted by scope. The name of a scalar is a task, a
      pair of tasks such as "a/b", or "all". The scope is the prefix of the scalars' names, or "".
    """
    groups: dict[tuple[str, str], event_files.Curves] = {}
    for tag, points in curves.items():
        match = _TAG.fullmatch(tag)
        if match and points:
            scope, kind, name = match.groups()
            # The share of pairs in conflict is one scalar for all tasks, so its name has no task.
            groups.setdefault((scope or "", kind), {})[name or "all"] = points
    kinds = list(_KINDS)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], kinds.index(item[0][1]))))


def _draw_matrix(title: str, cosines: event_files.Curves) -> figures.Figure:
    """Draw the mean of each cosine over the last quarter of the steps, {"a/b": {step: cosine}}."""
    tasks = list(dict.fromkeys(name for pair in cosines for name in pair.split("/")))
    # The diagonal is 1: the scalars leave out the cosine of a task with itself.
    cells = np.eye(len(tasks))
    for pair, points in cosines.items():
        first, last = min(points), max(points)
        # Average over the last quarter of the steps, not of the points, because the distances
        # between points may differ.
        tail = [value for step, value in points.items() if step >= last - (last - first) / 4]
        i, j = map(tasks.index, pair.split("/"))
        cells[i, j] = cells[j, i] = statistics.fmean(tail)
    return matrices.draw(title, tasks, tasks, cells, "task", "other task")
