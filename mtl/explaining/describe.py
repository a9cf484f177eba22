"""What was found as a page like that of a report.

report.write("explain.html", describe.describe(found))
"""

import datetime
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl.explaining import (
    attributions,
    dependence,
    explanation,
    gradients,
    importance,
    inputs,
    pictures,
    scores,
)
from mtl.monitoring import summary
from mtl.reports import blocks, figures

# On the page; the tables as CSV hold all.
_MOST_TASKS = explanation.MOST_TASKS
_MOST_INPUTS = 60
_MOST_BARS = 15
_MOST_COLUMNS = 12
_MOST_CLASSES = 8
_MOST_PLACES = 40
_MOST_PAIRS = 10
_MOST_PIXELS = 1024

_ALONE = (
    "A field can matter to the data and not to the model: this tells what this checkpoint uses. "
    "Where fields tell nearly the same, permuting one of them leaves the other, and both look "
    "unimportant; rows such as no data holds arise, too. Permute them together with --group."
)
_IMPORTANCE = (
    "How much worse each metric gets where the values of a field are permuted among the rows: the "
    "mean of {repeats} permutations, with its 95% interval over rows and permutations. Above 0 the "
    "model needs the field; where the interval holds 0, chance may have done it, and all others "
    "stand out."
)
_PREDICTIONS = (
    "What each field adds to a prediction, on the way from {baseline} to the row, by integrated "
    "gradients with {steps} points: the sum over the encoded columns that are made of this field. "
    "What a column makes of several fields, such as a cross, cannot be told apart and stands for "
    "all of them. All of it adds up to the difference between the two predictions, but for the "
    "residual."
)
_BASELINES = {attributions.MEAN: "the mean of the encoded rows", attributions.ZEROS: "zeros"}
_INCOMPLETE = (
    "The residual of a prediction is more than 1% of what its columns add: its attributions are "
    "not to be relied on. More --steps make it smaller where the model is smooth."
)
_DEPENDENCE = (
    "The mean prediction over all rows where a field has the same value in all of them; thin lines "
    "are single rows. Other fields stay as they are, also where no such row exists."
)
_GRADIENTS = (
    "The mean cosine between the gradients of two tasks over {batches} batches of {size} rows, "
    "with its standard error, at the weights that tasks share. Above 0 a step for one task helps "
    "the other, below 0 it hurts. The noise of small batches draws cosines towards 0."
)


def describe(found: explanation.Explanation) -> blocks.Page:
    """Return the page."""
    built: list[tuple[str, str, list[Any]]] = [
        ("importance", "Which fields matter", _tell_importance(found)),
        ("predictions", "Single predictions", _tell_attributions(found)),
        ("dependence", "Partial dependence", _tell_dependence(found)),
        ("gradients", "Gradients of the tasks", _tell_gradients(found)),
    ]
    name = os.path.basename(os.path.abspath(found.model_dir))
    return blocks.Page(
        title=f"{name} explained",
        state=f"step {found.step:,}",
        mood="",
        lead=_lead(found),
        sections=[blocks.Section(*one) for one in built if one[2]],
        left_out=found.left_out,
    )


def _lead(found: explanation.Explanation) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    tasks, rows = found.tasks, found.held
    more = f" and {len(tasks) - 12} more" if len(tasks) > 12 else ""
    return [
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {', '.join(tasks[:12])}{more}",
        f"The first {rows.size:,} rows of the split {rows.split}, by {found.path}.",
        f"Written on {today}.",
    ]


def _say_tasks(count: int) -> list[blocks.Text]:
    return blocks.say_cut(min(count, _MOST_TASKS), count, "tasks are")


def _tell_importance(found: explanation.Explanation) -> list[Any]:
    one = found.importance
    if one is None or not one.inputs:
        return []
    tasks = list(dict.fromkeys(metric.task for metric in one.metrics))
    order = importance.rank_inputs(one)
    told: list[Any] = [
        blocks.Text(_IMPORTANCE.format(repeats=found.asked.repeats)),
        blocks.Text(_ALONE, "warning"),
    ]
    if len(tasks) > 2:
        told.append(blocks.Figures([_draw_overview(one, order, tasks)]))
    for task in tasks[:_MOST_TASKS]:
        told += _tell_task(one, task)
    return [*told, *_say_tasks(len(tasks))]


def _draw_overview(
    one: importance.Importance, order: Sequence[int], tasks: Sequence[str]
) -> figures.Figure:
    """Draw all tasks beside each other, in shares of the largest drop of each."""
    own = [_metrics_of(one, task)[0] for task in tasks[:_MOST_TASKS]]
    few = order[:_MOST_BARS]
    drops = one.drop[np.ix_(few, own)]
    most = np.nanmax(np.where(np.isfinite(drops), np.abs(drops), 0), 0, initial=0)
    shares = drops / np.where(most > 0, most, 1)
    names = [one.inputs[i].name for i in few]
    title = "drop of the first metric, in shares of the largest of the task"
    return pictures.draw_matrix(title, names, tasks[:_MOST_TASKS], shares)


def _metrics_of(one: importance.Importance, task: str) -> list[int]:
    return [place for place, metric in enumerate(one.metrics) if metric.task == task]


def _tell_task(one: importance.Importance, task: str) -> list[Any]:
    """Return a picture and a table of a task, what matters most first."""
    own = _metrics_of(one, task)
    first = own[0]
    drops = np.nan_to_num(one.drop[:, first], nan=-math.inf)
    order = sorted(range(len(one.inputs)), key=lambda i: -drops[i])
    bars = [
        pictures.Bar(one.inputs[i].name, *(t[i, first] for t in (one.drop, one.low, one.high)))
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
    picture = blocks.Figures([pictures.draw_bars(f"{task}: {_name_change(metric)}", bars)])
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
    is_clear = importance.is_clear(one, i, m) and drop > 0
    return [blocks.Marked(drop) if is_clear else drop, blocks.Right(told)]


def _tell_attributions(found: explanation.Explanation) -> list[Any]:
    if not found.attributions:
        return []
    baseline = _BASELINES[found.asked.baseline]
    intro = _PREDICTIONS.format(baseline=baseline, steps=found.asked.steps)
    told: list[Any] = [blocks.Text(intro)]
    if not all(one.is_complete for one in found.attributions):
        told.append(blocks.Text(_INCOMPLETE, "warning"))
    for row, several in itertools.groupby(found.attributions, key=lambda one: one.row):
        every = list(several)
        few = every[:_MOST_TASKS]
        told.append(blocks.Heading(f"Row {row}"))
        told.append(blocks.Figures([figure for one in few for figure in _draw_row(found, one)]))
        told.append(_tell_sums(few))
        told += _say_tasks(len(every))
        own = {name for fields in found.fields.values() for name in fields}
        values = inputs.read_row(found.held.features, row)
        cells = [[name, value] for name, value in values.items() if name in own]
        table = blocks.Table(["field", "value"], cells)
        details = [_tell_columns(found, one) for one in few]
        told.append(blocks.Fold(f"Row {row}: its fields, and each column", [table, *details]))
    return told


def _draw_row(
    found: explanation.Explanation, one: attributions.Attribution
) -> list[figures.Figure]:
    """Draw what fields add, and what pixels add where a column is a small image."""
    order = sorted(_add_columns(found, one).items(), key=lambda item: -abs(item[1]))
    bars = [pictures.Bar(name, value) for name, value in order[:_MOST_COLUMNS]]
    left = [value for _, value in order[_MOST_COLUMNS:]]
    if left:
        bars.append(pictures.Bar(f"{len(left)} others", sum(left)))
    drawn = [pictures.draw_bars(f"{_name(one)}: what fields add", bars)]
    for column, details in one.details.items():
        if details.ndim == 3 and details.shape[0] * details.shape[1] <= _MOST_PIXELS:
            title = f"{_name(one)}: what the pixels of {column} add"
            drawn.append(pictures.draw_pixels(title, details.sum(-1)))
    return drawn


def _add_columns(found: explanation.Explanation, one: attributions.Attribution) -> dict[str, float]:
    """Return the sums of the columns that are made of the same fields: {fields: sum}."""
    sums: dict[str, float] = {}
    for column, value in one.columns.items():
        name = " × ".join(found.fields[column])
        sums[name] = sums.get(name, 0.0) + value
    return sums


def _name(one: attributions.Attribution) -> str:
    return one.task if one.name == one.scale else f"{one.task}, {one.scale} of {one.name}"


def _tell_sums(several: Sequence[attributions.Attribution]) -> blocks.Table:
    header = ["prediction", "baseline", "all columns", "this row", "residual", "complete"]
    rows = [
        [
            _name(one),
            one.start,
            sum(one.columns.values()),
            one.value,
            one.residual,
            "yes" if one.is_complete else "no",
        ]
        for one in several
    ]
    return blocks.Table(header, rows)


def _tell_columns(found: explanation.Explanation, one: attributions.Attribution) -> blocks.Table:
    order = sorted(one.columns.items(), key=lambda item: -abs(item[1]))[:_MOST_INPUTS]
    rows = [[name, ", ".join(found.fields[name]), value] for name, value in order]
    return blocks.Table(["column", "made of", "adds"], rows, _name(one))


def _tell_dependence(found: explanation.Explanation) -> list[Any]:
    told: list[Any] = [blocks.Text(_DEPENDENCE)] if found.dependences else []
    for one in found.dependences:
        tasks = list(one.means)
        drawn = [_draw_dependence(found, one, task) for task in tasks[:_MOST_TASKS]]
        told.append(blocks.Figures(drawn, one.field))
        told += _say_tasks(len(tasks))
        header = ["value", "rows", *_list_outputs(found, tasks[:_MOST_TASKS])]
        rows = [
            [
                inputs.tell_value(value),
                one.counts[place],
                *itertools.chain(*(_cut(one.means[t][place]) for t in tasks[:_MOST_TASKS])),
            ]
            for place, value in enumerate(one.grid)
        ]
        told.append(blocks.Fold(f"{one.field} as a table", [blocks.Table(header, rows)]))
    return told


def _cut(values: np.ndarray) -> list[float]:
    return [float(value) for value in values[:_MOST_CLASSES]]


def _list_outputs(found: explanation.Explanation, tasks: Sequence[str]) -> list[str]:
    listed = []
    for task in tasks:
        names, kind = found.outputs[task]
        own = [task] if list(names) == [kind] else [f"{task} {name}" for name in names]
        listed += own[:_MOST_CLASSES]
    return listed


def _draw_dependence(
    found: explanation.Explanation, one: dependence.Dependence, task: str
) -> figures.Figure:
    (names, kind), means = found.outputs[task], one.means[task]
    what = task if list(names) == [kind] else f"{task}, {kind}"
    what += f" of {names[0]}" if len(names) == 1 and list(names) != [kind] else ""
    few = list(names)[:_MOST_CLASSES]
    note = f"{len(few)} of {len(names)} classes shown." if len(few) < len(names) else ""
    if not one.is_number:
        # Bars of one class: that whose prediction the field moves most.
        most = int(np.argmax(np.ptp(means, 0)))
        told = "" if len(names) == 1 else f" of {names[most]}"
        bars = [
            pictures.Bar(inputs.tell_value(value), float(mean))
            for value, mean in zip(one.grid, means[:, most], strict=True)
        ]
        note = "" if len(names) == 1 else "The class whose mean the field moves most."
        return pictures.draw_bars(f"{what}{told}", bars, note)
    across = [float(value) for value in one.grid]
    lines = {
        str(name): list(zip(across, map(float, means[:, k]), strict=True))
        for k, name in enumerate(few)
    }
    behind = []
    if len(names) == 1:
        behind = [
            list(zip(across, map(float, one.lines[task][:, s, 0]), strict=True))
            for s in range(one.lines[task].shape[1])
        ]
    drawn = figures.draw_lines(what, lines, behind=behind, from_zero=False)
    return drawn._replace(note=note)


def _tell_gradients(found: explanation.Explanation) -> list[Any]:
    one = found.similarity
    if one is None:
        return []
    size = min(found.experiment.data.batch_size, found.held.size)
    told: list[Any] = [blocks.Text(_GRADIENTS.format(batches=one.batches, size=size))]
    told.append(
        blocks.Figures(
            [
                pictures.draw_matrix(f"cosines, {place}", one.tasks, one.tasks, one.mean[s])
                for s, place in enumerate(one.places[:1])
            ]
        )
    )
    return [*told, *_tell_pairs(one), *_tell_places(one)]


def _list_pairs(one: gradients.Similarity) -> list[tuple[int, int]]:
    """Return the pairs of tasks that some batch tells of, those that conflict most first."""
    pairs = list(itertools.combinations(range(len(one.tasks)), 2))
    known = [pair for pair in pairs if one.counts[0][pair] > 0]
    return sorted(known, key=lambda pair: one.mean[0][pair])


def _name_pair(one: gradients.Similarity, pair: tuple[int, int]) -> str:
    return " and ".join(one.tasks[task] for task in pair)


def _tell_pairs(one: gradients.Similarity) -> list[Any]:
    pairs = _list_pairs(one)
    rows = [
        [_name_pair(one, p), float(one.mean[0][p]), float(one.error[0][p]), int(one.counts[0][p])]
        for p in pairs[: _MOST_PAIRS * 2]
    ]
    header = ["tasks", "cosine", "standard error", "batches with labels of both"]
    table = blocks.Table(header, rows, "All that is shared; pairs that conflict most come first")
    return [table, *blocks.say_cut(len(rows), len(pairs), "pairs are")] if rows else []


def _tell_places(one: gradients.Similarity) -> list[Any]:
    """Return the cosines of each layer, for the pairs that conflict most."""
    pairs = _list_pairs(one)[:_MOST_PAIRS]
    places = range(1, len(one.places))[:_MOST_PLACES]
    if not pairs:
        return []
    rows = [
        [one.places[s], one.sizes[s], *itertools.chain(*(_tell_cosine(one, s, p) for p in pairs))]
        for s in places
    ]
    header = ["variables in", "numbers"]
    for pair in pairs:
        header += [_name_pair(one, pair), "±"]
    table = blocks.Table(header, rows, "Layer by layer, with standard errors")
    return [table, *blocks.say_cut(len(rows), len(one.places) - 1, "layers are")]


def _tell_cosine(one: gradients.Similarity, s: int, pair: tuple[int, int]) -> list[Any]:
    return [float(one.mean[s][pair]), float(one.error[s][pair])]
