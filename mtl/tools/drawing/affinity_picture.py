"""Draws how much each task helps each other task: a picture and a table in the run's folder.

path = affinity_picture.draw("runs/adult")    # runs/adult/affinity.svg, and affinity.csv beside it

Both show means over all measurements of `affinity.TaskAffinity`, see docs/affinity.md.
"""

import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence

from mtl.files import atomic, csv_text
from mtl.monitoring import chart, event_files

FILE, TABLE = "affinity.svg", "affinity.csv"
_TAG = re.compile(r"affinity/([^/]+)/([^/]+)")
_COSINE = "surgery/cosine/"
_HEADER = ("from", "onto", "affinity", "standard_error", "measurements", "cosine")

Pairs = dict[tuple[str, str], dict[int, float]]
"""{(from, onto): {step: affinity}}."""


def draw(model_dir: str, scalars: event_files.Curves | None = None) -> str | None:
    """Write picture and table anew, and return the path of the picture; None without measurements.

    Args:
      model_dir: the folder of the run.
      scalars: the scalars of its event files; None reads them.
    """
    curves = event_files.read_record(model_dir).curves if scalars is None else scalars
    pairs = group(curves)
    if not pairs:
        return None
    atomic.write(os.path.join(model_dir, TABLE), _write_table(pairs, curves))
    path = os.path.join(model_dir, FILE)
    atomic.write(path, chart.draw_page(_draw_panels(pairs)))
    return path


def group(curves: event_files.Curves) -> Pairs:
    """Return the affinities among the scalars of a run."""
    matches = {tag: _TAG.fullmatch(tag) for tag in curves}
    return {(m[1], m[2]): curves[tag] for tag, m in matches.items() if m and curves[tag]}


def estimate_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean of independent values; NaN for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _write_table(pairs: Pairs, curves: event_files.Curves) -> str:
    rows: list[Sequence[str]] = [_HEADER]
    for (one, other), points in pairs.items():
        values = list(points.values())
        names = (f"{_COSINE}{one}/{other}", f"{_COSINE}{other}/{one}")
        cosines = [value for name in names for value in curves.get(name, {}).values()]
        cosine = statistics.fmean(cosines) if cosines else math.nan
        numbers = (statistics.fmean(values), estimate_error(values), len(values), cosine)
        rows.append([one, other, *("" if math.isnan(n) else f"{n:.6g}" for n in numbers)])
    return csv_text.write(rows)


def _draw_panels(pairs: Pairs) -> list[str]:
    means = {pair: statistics.fmean(points.values()) for pair, points in pairs.items()}
    others = {pair: mean for pair, mean in means.items() if pair[0] != pair[1]}
    panels = [_draw_matrix(others or means)]
    for task in dict.fromkeys(onto for _, onto in others):
        onto = {pair[0]: pairs[pair] for pair in others if pair[1] == task}
        panels.append(chart.draw_lines(f"affinity onto {task}", onto))
    return panels


def _draw_matrix(means: Mapping[tuple[str, str], float]) -> str:
    """Draw affinities in units of a power of ten, so that the largest is in [0.1, 1)."""
    largest = max(map(abs, means.values()))
    power = math.floor(math.log10(largest)) + 1 if largest else 0
    title = f"affinity of the row onto the column, in units of {10.0**power:g} (alone: 0)"
    tasks = list(dict.fromkeys(name for pair in means for name in pair))
    cells = {(i, j): means.get((i, j), 0.0) / 10.0**power for i in tasks for j in tasks}
    return chart.draw_matrix(title, cells)
