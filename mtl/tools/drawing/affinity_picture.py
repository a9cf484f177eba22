"""Draws how much each task helps each other task: a picture and a table in the folder of a run.

panels = affinity_picture.draw_panels(curves)            # affinity.svg of a run
table = affinity_picture.write_table(curves)             # affinity.csv of a run

The picture and the table show means over all measurements of `affinity.TaskAffinity`, see
docs/affinity.md.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence

from mtl.files import csv_text
from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts, matrices

FILE, TITLE, TABLE = "affinity.svg", "Affinities of the tasks", "affinity.csv"
_TAG = re.compile(r"affinity/([^/]+)/([^/]+)")
_COSINE = "surgery/cosine/"
_HEADER = ("from", "onto", "affinity", "standard_error", "measurements", "cosine")

Pairs = dict[tuple[str, str], dict[int, float]]
"""{(task that steps, task whose loss changes): {step: affinity}}."""


def group(curves: event_files.Curves) -> Pairs:
    """Return the affinities of all pairs of tasks from the scalars of a run.

    Args:
      curves: the scalars of the run, of which `affinity/<from>/<onto>` are used.

    Returns:
      The affinities; pairs of tasks without a finite affinity are left out.
    """
    matches = {tag: _TAG.fullmatch(tag) for tag in curves}
    # Leave out a curve without finite points, because it has no mean.
    return {(m[1], m[2]): curves[tag] for tag, m in matches.items() if m and curves[tag]}


def estimate_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values.

    Args:
      values: independent values.

    Returns:
      The standard error of the mean; NaN for fewer than two values.
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def write_table(curves: event_files.Curves) -> str:
    """Return the affinities of a run as a CSV table.

    Returns:
      The text of the table: a header, and for each pair of tasks a row with the mean affinity, its
      standard error, the number of measurements and the mean cosine of the gradients. A cell of the
      table is empty if its number is unknown.
    """
    rows: list[Sequence[str]] = [_HEADER]
    for (source, target), points in group(curves).items():
        values = list(points.values())
        # A cosine is symmetric, so the run writes it only once for each pair of tasks.
        names = (f"{_COSINE}{source}/{target}", f"{_COSINE}{target}/{source}")
        cosines = [value for name in names for value in curves.get(name, {}).values()]
        cosine = statistics.fmean(cosines) if cosines else math.nan
        numbers = (statistics.fmean(values), estimate_error(values), len(values), cosine)
        rows.append([source, target, *("" if math.isnan(n) else f"{n:.6g}" for n in numbers)])
    return csv_text.write(rows)


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw a matrix of mean affinities, and the affinities onto each task over the steps.

    Returns:
      The matrix, and a figure for each task onto which another task has an affinity; [] if the run
      has measured no affinities.
    """
    pairs = group(curves)
    means = {pair: statistics.fmean(points.values()) for pair, points in pairs.items()}
    # Leave out the effect of a task on itself, because the picture shows which tasks help others.
    others = {pair: mean for pair, mean in means.items() if pair[0] != pair[1]}
    panels = [_draw_matrix(others or means)] if pairs else []
    for task in dict.fromkeys(onto for _, onto in others):
        onto = {pair[0]: pairs[pair] for pair in others if pair[1] == task}
        panels.append(line_charts.draw_curves(f"affinity onto {task}", onto, "affinity"))
    return panels


def _draw_matrix(means: Mapping[tuple[str, str], float]) -> figures.Figure:
    """Draw mean affinities in units of a power of ten, such that the largest is in [0.1, 1)."""
    largest = max(map(abs, means.values()))
    # `matrices.draw` needs values in [-1, 1].
    unit = 10.0 ** (math.floor(math.log10(largest)) + 1) if largest else 1.0
    title = f"affinity of the row onto the column, in units of {unit:g} (alone: 0)"
    tasks = list(dict.fromkeys(name for pair in means for name in pair))
    # `matrices.draw` crosses out the diagonal, and pairs that no batch has measured.
    cells = [[means.get((source, onto), math.nan) / unit for onto in tasks] for source in tasks]
    return matrices.draw(title, tasks, tasks, cells, "from", "onto")
