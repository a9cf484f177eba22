"""Writes the section on permutation importance: a picture and a table for each task.

told = importance_section.tell_importance(found)
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

# The page has at most so many tasks; the CSV tables have all.
_MOST_TASKS = explanation.MOST_TASKS
_MOST_INPUTS = 60
_MOST_BARS = 15

_ALONE = (
    "This shows which fields the checkpoint uses; others may matter in the data. If two fields say "
    "nearly the same, permuting one leaves the other, and both look unimportant. Permuting one "
    "also makes rows that no data holds. Permute such fields together with --group."
)
_IMPORTANCE = (
    "Permuting a field among the rows makes each metric worse by this much: the mean of {repeats} "
    "permutations, with its 95% interval over rows and permutations. Above 0, the model needs the "
    "field. If the interval holds 0, the value may be chance; values clearly above 0 stand out."
)


def tell_importance(found: explanation.Explanation) -> list[Any]:
    """Return how much each task needs each field."""
    one = found.importance
    if one is None or not one.inputs:
        return []
    tasks = list(dict.fromkeys(metric.task for metric in one.metrics))
    order = importance.rank_inputs(one)
    told: list[Any] = [
        blocks.Text(_IMPORTANCE.format(repeats=found.asked.repeats)),
        blocks.Text(_ALONE, "warning"),
    ]
    # Two tasks are compared well enough by their own tables.
    if len(tasks) > 2:
        told.append(blocks.Figures([_draw_overview(one, order, tasks)]))
    for task in tasks[:_MOST_TASKS]:
        told += _tell_task(one, task)
    shown = min(len(tasks), _MOST_TASKS)
    return [*told, *blocks.say_cut(shown, len(tasks), "tasks are")]


def _draw_overview(
    one: importance.Importance, order: Sequence[int], tasks: Sequence[str]
) -> figures.Figure:
    """Draw all tasks side by side, in shares of the largest drop of each."""
    own = [_metrics_of(one, task)[0] for task in tasks[:_MOST_TASKS]]
    few = order[:_MOST_BARS]
    drops = one.drop[np.ix_(few, own)]
    most = np.nanmax(np.where(np.isfinite(drops), np.abs(drops), 0), 0, initial=0)  # [tasks]
    shares = drops / np.where(most > 0, most, 1)
    names = [one.inputs[i].name for i in few]
    title = "drop of the first metric, in shares of the largest of the task"
    return matrices.draw(title, names, tasks[:_MOST_TASKS], shares, "field", "task")


def _metrics_of(one: importance.Importance, task: str) -> list[int]:
    return [place for place, metric in enumerate(one.metrics) if metric.task == task]


def _tell_task(one: importance.Importance, task: str) -> list[Any]:
    """Return a picture and a table of a task, the most important input first."""
    own = _metrics_of(one, task)
    first = own[0]
    # An undefined drop comes last.
    drops = np.nan_to_num(one.drop[:, first], nan=-math.inf)
    order = sorted(range(len(one.inputs)), key=lambda i: -drops[i])
    bars = [
        bar_charts.Bar(one.inputs[i].name, *(t[i, first] for t in (one.drop, one.low, one.high)))
        for i in order[:_MOST_BARS]
    ]
    metric = one.metrics[first]
    header = ["field"]
    for m in own:
        header += [_name_change(one.metrics[m]), "95% interval"]
    rows = [
        [one.inputs[i].name, *itertools.chain(*(_tell_change(one, i, m) for m in own))]
        for i in order[:_MOST_INPUTS]
    ]
    values = ", ".join(f"{one.metrics[m].name} {summary.shorten(one.base[m])}" for m in own)
    table = blocks.Table(header, rows, f"{values} with all fields as they are")
    change = _name_change(metric)
    picture = blocks.Figures([bar_charts.draw(f"{task}: {change}", bars, change)])
    cut = blocks.say_cut(len(rows), len(order), "fields are")
    return [blocks.Heading(task), blocks.Side([picture], [table, *cut])]


def _name_change(metric: scores.Metric) -> str:
    return f"{'drop' if metric.is_higher_better else 'rise'} of {metric.name}"


def _tell_change(one: importance.Importance, i: int, m: int) -> list[Any]:
    drop = float(one.drop[i, m])
    low, high = one.low[i, m], one.high[i, m]
    if not math.isfinite(low):
        return [drop, blocks.Right("n/a")]
    told = f"{summary.shorten(low)} to {summary.shorten(high)}"
    # If a permutation clearly helps, the model does not need the field: only a drop stands out.
    is_clear = importance.is_clear(one, i, m) and drop > 0
    return [blocks.Marked(drop) if is_clear else drop, blocks.Right(told)]
