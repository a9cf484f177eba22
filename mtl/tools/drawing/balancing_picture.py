"""Draws how the tasks were balanced: one picture in the run's folder, from TensorBoard's scalars.

path = balancing_picture.draw("runs/digits")       # runs/digits/balancing.svg: open it in a browser

The picture shows the weights of the tasks over the steps. With a surgery, it also shows the norms,
cosines and share of conflicts of their gradients. A matrix shows the cosines of all pairs, as means
over the last quarter of the steps.
"""

import os
import re
import statistics

from mtl.files import atomic
from mtl.monitoring import chart, event_files

_FILE = "balancing.svg"
_TAG = re.compile(r"(?:(.+)/)??(weight|surgery/(?:weight|norm|cosine|conflicts))(?:/(.+))?")
TITLES = {
    "weight": "weights of the losses",
    "surgery/weight": "weights of the gradients",
    "surgery/norm": "norms of the gradients",
    "surgery/cosine": "cosines of the gradients",
    "surgery/conflicts": "share of pairs in conflict",
}


def draw(model_dir: str, scalars: event_files.Curves | None = None) -> str | None:
    """Write the picture anew and return its path; None if the run shows no weights.

    Args:
      model_dir: the folder of the run.
      scalars: the scalars of its event files; None reads them.
    """
    groups = read(model_dir) if scalars is None else group(scalars)
    if not groups:
        return None
    panels = []
    for (scope, kind), curves in groups.items():
        title = TITLES[kind] + (f", {scope}" if scope else "")
        panels.append(chart.draw_lines(title, curves))
        if kind == "surgery/cosine":
            panels.append(chart.draw_matrix(f"{title}, mean of the last quarter", _recent(curves)))
    path = os.path.join(model_dir, _FILE)
    atomic.write(path, chart.draw_page(panels))
    return path


def read(model_dir: str) -> dict[tuple[str, str], event_files.Curves]:
    """Return {(scope, kind): curves}, in the order of `TITLES`, from the event files of a run."""
    return group(event_files.read_record(model_dir).curves)


def group(curves: event_files.Curves) -> dict[tuple[str, str], event_files.Curves]:
    """Return {(scope, kind): curves} among the scalars of a run."""
    found: dict[tuple[str, str], event_files.Curves] = {}
    for tag, points in curves.items():
        match = _TAG.fullmatch(tag)
        if match and points:
            scope, kind, name = match.groups()
            found.setdefault((scope or "", kind), {})[name or "all"] = points
    kinds = list(TITLES)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], kinds.index(item[0][1]))))


def _recent(cosines: event_files.Curves) -> dict[tuple[str, str], float]:
    """Turn {"a/b": {step: cosine}} into {(a, b): mean over the last quarter of the steps}."""
    means: dict[tuple[str, str], float] = {}
    for pair, points in cosines.items():
        first, last = min(points), max(points)
        late = [value for step, value in points.items() if step >= last - (last - first) / 4]
        one, other = pair.split("/")
        means[one, other] = statistics.fmean(late)
    return means
