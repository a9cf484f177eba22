"""Writes the section on permutation importance: a plot and a table for each task.

section = importance_section.tell_importance(explanation)
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl.monitoring import summary
from mtl.tools.drawing import bar_charts, figures, matrices
from mtl.tools.explaining import explanation, importance, scores
from mtl.tools.reports import blocks

# The largest number of tasks on the page; the CSV tables contain all tasks.
_MOST_TASKS = explanation.MOST_TASKS
_MOST_INPUTS = 60
_MOST_BARS = 15

_ALONE = (
    "Importance shows which fields the checkpoint uses; other fields may matter in the data. If "
    "two fields carry nearly the same information, both look unimportant, because the model can "
    "use one while the other is permuted. Permuting only one of two such fields also creates "
    "unrealistic rows. Permute fields with the same information together, with --group."
)
_IMPORTANCE = (
    "Permuting a field among the rows makes each metric worse by this much: the mean of {repeats} "
    "permutations, with its 95% interval over rows and permutations. If the mean is above 0, the "
    "model needs the field. If the interval contains 0, the value may be due to chance; values "
    "clearly above 0 are highlighted."
)


def tell_importance(explained: explanation.Explanation) -> list[Any]:
    """Return the parts of a page that show how much each task needs each field.

    Args:
      explained: the explanation that the section shows.

    Returns:
      The blocks of the section; [] without importance.
    """
    result = explained.importance
    if result is None or not result.inputs:
        return []
    tasks = list(dict.fromkeys(metric.task for metric in result.metrics))
    order = importance.rank_inputs(result)
    parts: list[Any] = [
        blocks.Text(_IMPORTANCE.format(repeats=explained.asked.repeats)),
        blocks.Text(_ALONE, "warning"),
    ]
    # Two tasks are easy to compare by their tables, so the overview needs more than two tasks.
    if len(tasks) > 2:
        parts.append(blocks.Figures([_draw_overview(result, order, tasks)]))
    for task in tasks[:_MOST_TASKS]:
        parts += _tell_task(result, task)
    count = min(len(tasks), _MOST_TASKS)
    return [*parts, *blocks.say_cut(count, len(tasks), "tasks are")]


def _draw_overview(
    result: importance.Importance, order: Sequence[int], tasks: Sequence[str]
) -> figures.Figure:
    """Draw the drop of each task's first metric by field, as a share of the task's largest drop."""
    columns = [_metrics_of(result, task)[0] for task in tasks[:_MOST_TASKS]]
    rows = order[:_MOST_BARS]
    drops = result.drop[np.ix_(rows, columns)]
    most = np.nanmax(np.where(np.isfinite(drops), np.abs(drops), 0), 0, initial=0)  # [tasks]
    shares = drops / np.where(most > 0, most, 1)
    names = [result.inputs[i].name for i in rows]
    title = "drop of the first metric, as a share of the task's largest drop"
    return matrices.draw(title, names, tasks[:_MOST_TASKS], shares, "field", "task")


def _metrics_of(result: importance.Importance, task: str) -> list[int]:
    return [place for place, metric in enumerate(result.metrics) if metric.task == task]


def _tell_task(result: importance.Importance, task: str) -> list[Any]:
    """Return a plot and a table for a task, with the most important input first."""
    metric_places = _metrics_of(result, task)
    first_place = metric_places[0]
    # Inputs with an undefined drop come last.
    drops = np.nan_to_num(result.drop[:, first_place], nan=-math.inf)
    order = sorted(range(len(result.inputs)), key=lambda i: -drops[i])
    bars = [
        bar_charts.Bar(
            result.inputs[i].name,
            *(t[i, first_place] for t in (result.drop, result.low, result.high)),
        )
        for i in order[:_MOST_BARS]
    ]
    metric = result.metrics[first_place]
    header = ["field"]
    for m in metric_places:
        header += [_name_change(result.metrics[m]), "95% interval"]
    rows = [
        [
            result.inputs[i].name,
            *itertools.chain(*(_tell_change(result, i, m) for m in metric_places)),
        ]
        for i in order[:_MOST_INPUTS]
    ]
    values = ", ".join(
        f"{result.metrics[m].name} {summary.shorten(result.base[m])}" for m in metric_places
    )
    table = blocks.Table(header, rows, f"{values} with all fields as they are")
    change = _name_change(metric)
    picture = blocks.Figures([bar_charts.draw(f"{task}: {change}", bars, change)])
    cut_note = blocks.say_cut(len(rows), len(order), "fields are")
    return [blocks.Heading(task), blocks.Side([picture], [table, *cut_note])]


def _name_change(metric: scores.Metric) -> str:
    return f"{'drop' if metric.is_higher_better else 'rise'} of {metric.name}"


def _tell_change(result: importance.Importance, i: int, m: int) -> list[Any]:
    drop = float(result.drop[i, m])
    low, high = result.low[i, m], result.high[i, m]
    if not math.isfinite(low):
        return [drop, blocks.Right("n/a")]
    interval = f"{summary.shorten(low)} to {summary.shorten(high)}"
    # Highlight only drops: if a permutation clearly improves a metric, the model
    # does not need the field.
    is_clear = importance.is_clear(result, i, m) and drop > 0
    return [blocks.Marked(drop) if is_clear else drop, blocks.Right(interval)]
