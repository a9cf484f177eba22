"""Draws how a run balanced its tasks, from scalars of TensorBoard: `balancing.svg`.

panels = balancing_picture.draw_panels(curves)

The picture shows the weights of the tasks over the steps. With a surgery, it also shows the norms,
cosines and share of conflicts of the task gradients. A matrix shows the cosines of all pairs of
tasks, as means over the last quarter of the steps.
"""

import re
import statistics

import numpy as np

from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts, matrices

FILE, TITLE = "balancing.svg", "Balancing of the tasks"
# The first group is lazy, so that "surgery/weight/a" is read as the kind surgery/weight, not as the
# kind weight in the scope surgery.
_TAG = re.compile(r"(?:(.+)/)??(weight|surgery/(?:weight|norm|cosine|conflicts))(?:/(.+))?")
# The title of each kind of scalar, and the name of its axis.
_KINDS = {
    "weight": ("weights of the losses", "weight"),
    "surgery/weight": ("weights of the gradients", "weight"),
    "surgery/norm": ("norms of the gradients", "norm"),
    "surgery/cosine": ("cosines of the gradients", "cosine"),
    "surgery/conflicts": ("share of pairs in conflict", "share of pairs"),
}


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw the scalars of the balancing; return [] if there are none."""
    panels = []
    for (scope, kind), group_curves in group(curves).items():
        panels.append(draw_group(scope, kind, group_curves))
        if kind == "surgery/cosine":
            panels.append(
                _draw_matrix(f"{tell_title(scope, kind)}, mean of the last quarter", group_curves)
            )
    return panels


def draw_group(scope: str, kind: str, curves: event_files.Curves) -> figures.Figure:
    """Draw the curves of one kind of scalar in one scope."""
    return line_charts.draw_curves(tell_title(scope, kind), curves, _KINDS[kind][1])


def tell_title(scope: str, kind: str) -> str:
    """Return the title of the curves of one kind of scalar in one scope."""
    return _KINDS[kind][0] + (f", {scope}" if scope else "")


def group(curves: event_files.Curves) -> dict[tuple[str, str], event_files.Curves]:
    """Return {(scope, kind): curves} among the scalars of a run, in the order of kinds."""
    groups: dict[tuple[str, str], event_files.Curves] = {}
    for tag, points in curves.items():
        match = _TAG.fullmatch(tag)
        if match and points:
            scope, kind, name = match.groups()
            # The share of conflicts is one scalar for all tasks, without a name.
            groups.setdefault((scope or "", kind), {})[name or "all"] = points
    kinds = list(_KINDS)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], kinds.index(item[0][1]))))


def _draw_matrix(title: str, cosines: event_files.Curves) -> figures.Figure:
    """Draw the means of {"a/b": {step: cosine}} over the last quarter of the steps."""
    tasks = list(dict.fromkeys(name for pair in cosines for name in pair.split("/")))
    # The cosine of a task with itself is 1, and is not among the scalars.
    cells = np.eye(len(tasks))
    for pair, points in cosines.items():
        first, last = min(points), max(points)
        # A quarter of the steps, not of the points, whose distances may differ.
        tail = [value for step, value in points.items() if step >= last - (last - first) / 4]
        i, j = map(tasks.index, pair.split("/"))
        cells[i, j] = cells[j, i] = statistics.fmean(tail)
    return matrices.draw(title, tasks, tasks, cells, "task", "other task")
