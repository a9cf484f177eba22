"""How the tasks were balanced, as one picture in the run's folder, from what TensorBoard shows.

path = balancing.draw("runs/digits")       # runs/digits/balancing.svg: open it in a browser

The weights of the tasks over the steps; where a surgery shows them also norms, cosines and the
share of conflicts of their gradients, and the cosines of all pairs as a matrix, the mean over the
last quarter of the steps.
"""

import contextlib
import math
import os
import re
import statistics
from collections.abc import Iterator

import tensorflow as tf

from mtl.files import atomic, storage
from mtl.monitoring import chart

tf1 = tf.compat.v1

_FILE = "balancing.svg"
_TAG = re.compile(r"(?:(.+)/)??(weight|surgery/(?:weight|norm|cosine|conflicts))(?:/(.+))?")
_TITLES = {
    "weight": "weights of the losses",
    "surgery/weight": "weights of the gradients",
    "surgery/norm": "norms of the gradients",
    "surgery/cosine": "cosines of the gradients",
    "surgery/conflicts": "share of pairs in conflict",
}

Curves = dict[str, dict[int, float]]
"""{name: {step: value}}."""


def draw(model_dir: str) -> str | None:
    """Write the picture anew and return its path; None where the run shows no weights."""
    groups = read(model_dir)
    if not groups:
        return None
    panels = []
    for (scope, kind), curves in groups.items():
        title = _TITLES[kind] + (f", {scope}" if scope else "")
        panels.append(chart.draw_lines(title, curves))
        if kind == "surgery/cosine":
            panels.append(chart.draw_matrix(f"{title}, mean of the last quarter", _recent(curves)))
    path = os.path.join(model_dir, _FILE)
    atomic.write(path, chart.draw_page(panels))
    return path


def read(model_dir: str) -> dict[tuple[str, str], Curves]:
    """Return {(scope, kind): curves}, in the order of `_TITLES`, from the event files of a run.

    Of a step that was written twice, as after a restore, the last counts; values that are not
    finite are left out.
    """
    found: dict[tuple[str, str], Curves] = {}
    for path in storage.listed(model_dir, "events.out.tfevents."):
        for event in _events(path):
            for value in event.summary.value:
                tag = _TAG.fullmatch(value.tag)
                if tag and math.isfinite(value.simple_value):
                    scope, kind, name = tag.groups()
                    curves = found.setdefault((scope or "", kind), {})
                    curves.setdefault(name or "all", {})[event.step] = value.simple_value
    kinds = list(_TITLES)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], kinds.index(item[0][1]))))


def _events(path: str) -> Iterator[tf.compat.v1.Event]:
    """Yield the events of a file, up to where a run that was killed broke off."""
    with contextlib.suppress(tf.errors.DataLossError):
        yield from tf1.train.summary_iterator(path)


def _recent(cosines: Curves) -> dict[tuple[str, str], float]:
    """Turn {"a/b": {step: cosine}} into {(a, b): mean over the last quarter of the steps}."""
    means: dict[tuple[str, str], float] = {}
    for pair, points in cosines.items():
        first, last = min(points), max(points)
        late = [value for step, value in points.items() if step >= last - (last - first) / 4]
        one, other = pair.split("/")
        means[one, other] = statistics.fmean(late)
    return means
