"""Writes the sections of a report that need rows: the data, and the evaluation of each head."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import types
from mtl.tools.drawing import figures, line_charts
from mtl.tools.reports import assess, baselines, blocks, held_out, record, splits

# A run may have hundreds of tasks: only so many, with the least skill, get pictures.
MOST_TASKS = 20
# The most rows of the table of labels.
_MOST_LABELLED = 100
_MOST_CLASSES = 12
# A matrix with more classes needs the whole width.
_MOST_BESIDE = 5
# The most rows of the table of rows by class.
_MOST_COUNTED = 100
_MOST_FIELDS = 200
_MOST_CONFUSIONS = 15
_MOST_SLICES = 8
# A difference above this many standard errors is seldom chance.
_FAR = 2.0
# The share of slices above `_FAR` standard errors by chance alone.
_BY_CHANCE = 0.025
_LOSS = "log loss"


def choose_tasks(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[str]:
    """Return the tasks to draw, in their order: all, or the tasks with the least skill."""
    tasks = list(run.experiment.model.tasks)
    ranks = {one.task: one.rank for one in verdicts}
    # A task without a verdict comes first, as nothing is known of it.
    few = set(sorted(tasks, key=lambda task: ranks.get(task, -math.inf))[:MOST_TASKS])
    return [task for task in tasks if task in few]


def say_chosen(run: record.Run, chosen: Sequence[str]) -> list[blocks.Text]:
    """Return a line if some tasks are not drawn."""
    what = "tasks, those with least skill, are"
    return blocks.say_cut(len(chosen), len(run.experiment.model.tasks), what)


def tell_data(
    run: record.Run, facts: Sequence[splits.Facts], problems: Sequence[str]
) -> list | str:
    """Return rows, labels of each task and missing values, by split."""
    if not facts:
        return " ".join(problems) or "no rows were read, as --rows is 0."
    told: list = [
        blocks.Table(
            ["split", "rows", "read"],
            [[one.split, one.total, _say_read(one.rows, one.total)] for one in facts],
        ),
        *_tell_labels(run, facts),
    ]
    counts = _tell_classes(run, facts)
    if counts:
        told.append(blocks.Fold("Rows by class", counts))
    return [*told, *_tell_missing(facts)]


def _say_read(rows: int, total: int) -> str:
    return "all" if rows == total else f"{rows:,}, drawn at random,"


def _tell_labels(run: record.Run, facts: Sequence[splits.Facts]) -> list:
    rows = []
    tasks = run.experiment.model.tasks
    few = tasks[:_MOST_LABELLED]
    for task in few:
        for one in facts:
            labels = one.tasks.get(task)
            if labels is not None:
                share = labels.labelled / one.rows if one.rows else 0.0
                rows.append([task, one.split, labels.labelled, blocks.Bar(share), _say(labels)])
    table = blocks.Table(["task", "split", "labelled rows", "share", "labels"], rows)
    return [table, *blocks.say_cut(len(few), len(tasks), "tasks are")]


def _say(labels: splits.Labels) -> str:
    if labels.mean is not None and labels.spread is not None:
        return f"mean {labels.mean:.4g}, standard deviation {labels.spread:.4g}"
    if labels.largest is None:
        return ""
    name, rows = labels.largest
    return f"{labels.classes:,} classes, {100 * rows / labels.labelled:.1f}% {name}"


def _tell_classes(run: record.Run, facts: Sequence[splits.Facts]) -> list:
    """Return tables of the first tasks with classes, and the tasks that are too large for one.

    Tasks with very many classes lack counts: the table of labels only shows their largest class.
    """
    tables, large = [], []
    for task in run.experiment.model.tasks:
        seen = {one.split: one.tasks[task] for one in facts if task in one.tasks}
        found = {split: labels.counts for split, labels in seen.items()}
        # All splits have the same classes.
        names = list(next(iter(found.values()), {}))
        if 0 < len(names) <= _MOST_COUNTED:
            rows = [[name, *(of.get(name, 0) for of in found.values())] for name in names]
            tables.append(blocks.Table([task, *found], rows))
        elif any(labels.classes for labels in seen.values()):
            large.append(task)
    told = [*tables[:MOST_TASKS], *blocks.say_cut(MOST_TASKS, len(tables), "tasks are")]
    return told + _say_large(large)


def _say_large(tasks: Sequence[str]) -> list[blocks.Text]:
    """Return a line if some tasks have too many classes to count."""
    listed = ", ".join(tasks[:MOST_TASKS]) + ", ..." * (len(tasks) > MOST_TASKS)
    line = f"Left out for more than {_MOST_COUNTED} classes: {listed}."
    return [blocks.Text(line, "note")] if tasks else []


def _tell_missing(facts: Sequence[splits.Facts]) -> list:
    # Fields that are full in all splits are not listed.
    lacking = [name for name in facts[0].missing if any(one.missing.get(name) for one in facts)]
    if not lacking:
        return [blocks.Text("No value is missing in any field.", "note")]
    rows = [
        [name, *(blocks.Bar(one.missing.get(name, 0) / max(one.rows, 1)) for one in facts)]
        for name in lacking[:_MOST_FIELDS]
    ]
    caption = "Missing values by field, or values that are the field's default"
    if len(rows) == len(lacking):
        caption += "; all others are full"
    table = blocks.Table(["field", *(one.split for one in facts)], rows, caption)
    return [table, *blocks.say_cut(len(rows), len(lacking), "fields with missing values are")]


def tell_evaluation(
    run: record.Run, verdicts: Sequence[baselines.Verdict], seen: held_out.Seen | None
) -> list | str:
    """Return the metrics of every head, and pictures of its predictions."""
    if not run.metrics:
        return "no checkpoint is evaluated yet, or the event files of the evaluations are gone."
    told: list = [
        blocks.Text(
            "The metrics come from the evaluations of the run. Point at a number to see all its "
            "digits."
        )
    ]
    if seen is not None:
        which = _say_read(seen.rows, seen.total)
        split = run.experiment.data.eval_split
        made_by = os.path.basename(run.checkpoint or "")
        line = f"Pictures and slices: {which} of the rows of split {split!r}, by {made_by}."
        told.append(blocks.Text(line, "note"))
    chosen = choose_tasks(run, verdicts)
    told += say_chosen(run, chosen)
    for head in run.experiment.model.heads:
        if head.name in chosen:
            told += [blocks.Heading(head.name), *_tell_head(run, head, seen)]
    # Estimator's `loss` is a mean over batches, beside `average_loss` over rows.
    left_out = {"loss"} - {run.experiment.best.metric} if "average_loss" in run.metrics else set()
    others = [name for name in run.metrics if "/" not in name and name not in left_out]
    told += [blocks.Heading("all tasks"), _tell_metrics(run, others, "")]
    return told


def _tell_head(run: record.Run, head: types.Head, seen: held_out.Seen | None) -> list:
    prefix = f"{head.name}/"
    names = [name for name in run.metrics if name.startswith(prefix)]
    # One for each class: folded, as there may be thousands.
    recalls = [name for name in names if "/recall/" in name]
    table = _tell_metrics(run, [n for n in names if n not in recalls], prefix)
    pictures, slices = _picture_head(head, seen) if seen else ([], [])
    told = [*_lay_out(table, pictures), *slices]
    if recalls:
        title = f"Recall of {len(recalls)} classes"
        told.append(blocks.Fold(title, [_tell_metrics(run, recalls, f"{prefix}recall/")]))
    return told


def _lay_out(table: blocks.Table, pictures: Sequence[Any]) -> list:
    """Return a table with pictures beside it, and wide ones below."""
    wide = [one for one in pictures if _is_wide(one)]
    beside = [one for one in pictures if not _is_wide(one)]
    return [blocks.Side([table], beside) if beside else table, *wide]


def _is_wide(picture: Any) -> bool:
    return isinstance(picture, blocks.Matrix) and len(picture.names) > _MOST_BESIDE


def _picture_head(head: types.Head, seen: held_out.Seen) -> tuple[list, list]:
    """Return pictures of a head's predictions, and slices of the rows; empty without rows."""
    # A head without labels has no errors: its numbers are shown instead.
    if (unlabelled := seen.unlabelled.get(head.name)) and np.isfinite(unlabelled.values).any():
        what = unlabelled.name.replace("_", " ")
        return [blocks.Figures([_draw_shares(what, unlabelled.values)])], []
    labels = seen.labels.get(head.name)
    # A head with several labels a row is drawn as one binary task of all labels.
    rows = labels.entries if labels else seen.tasks.get(head.name)
    if rows is None or not ((rows.weight > 0) & np.isfinite(rows.score)).any():
        return [], []
    pictures = [blocks.Figures(_draw_head(rows, of_all="of all labels, " if labels else ""))]
    if labels:
        line = "Pictures and table count each label of a row by itself."
        confusion = [_count_confusion(rows, ["0", "1"]), blocks.Text(line, "note")]
        return [*pictures, *confusion], _tell_slices(labels.errors, labels.weights, seen, _LOSS)
    what = "distance" if rows.kind == held_out.NUMBER else _LOSS
    slices = _tell_slices(rows.error, rows.weight, seen, what)
    return [*pictures, *_tell_confusion(head, rows)], slices


def _tell_metrics(run: record.Run, names: Sequence[str], prefix: str) -> blocks.Table:
    """Return the metrics at the best checkpoint and at the last evaluation."""
    best, last = run.metrics, run.metrics_at(run.last_evaluated)
    # One column is enough then.
    is_same = run.shown_step == run.last_evaluated
    what = "last" if run.best_step is None else "best"
    header = ["metric", f"{what} (step {run.shown_step})"]
    if not is_same:
        header.append(f"last (step {run.last_evaluated})")
    rows = []
    for name in sorted(names):
        # These metrics are 0 unless something is wrong.
        is_warning = name.endswith(("nan_predictions", "_error_bound"))
        if not is_warning or best[name] != 0:
            row = [name.removeprefix(prefix), best[name]]
            rows.append(row if is_same else [*row, last.get(name, math.nan)])
    return blocks.Table(header, rows)


def _draw_head(rows: held_out.Rows, of_all: str) -> list[figures.Figure]:
    """Draw the reliability of scores, and the ROC of a binary task; `of_all` completes titles."""
    bins = [(one.score, one.true) for one in assess.bin_scores(rows)]
    if rows.kind == held_out.NUMBER:
        # The least and the greatest coordinate: the diagonal spans both axes.
        low, high = (pick(pick(point) for point in bins) for pick in (min, max))
        lines = {"label": bins, "perfect": [(low, low), (high, high)]}
        title = "mean label by predicted number, in tenths of the rows"
        means = line_charts.draw(title, lines, "predicted number", "mean label")
        return [means, _draw_errors(rows)]
    what = "share of class 1" if rows.kind == held_out.BINARY else "share that is right"
    title = f"reliability: {of_all}{what} by probability"
    drawn = [
        line_charts.draw(title, {what: bins}, "probability", what, is_share=True, diagonal=True)
    ]
    corners = assess.trace_roc(rows) if rows.kind == held_out.BINARY else []
    if corners:
        title = f"ROC: {of_all}recall by false positive rate"
        lines = {"recall": corners}
        roc = line_charts.draw(
            title, lines, "false positive rate", "recall", is_share=True, diagonal=True
        )
        drawn.insert(0, roc)
    return drawn


def _tell_confusion(head: types.Head, rows: held_out.Rows) -> list:
    """Return the rows by true and predicted class; for many classes, only frequent confusions."""
    if rows.kind == held_out.NUMBER:
        return []
    # Binary heads may lack names of their classes.
    names = list(types.read_member(head, types.ClassHead, "class_names")) or ["0", "1"]
    if len(names) > _MOST_CLASSES:
        return [_tell_confusions(names, assess.count_confusions(rows))]
    return [_count_confusion(rows, names)]


def _count_confusion(rows: held_out.Rows, names: Sequence[str]) -> blocks.Matrix:
    counts = assess.count_confusion(rows, len(names))
    return blocks.Matrix("Confusion: rows by true and predicted class", names, counts)


def _draw_errors(rows: held_out.Rows) -> figures.Figure:
    return _draw_shares("error", rows.error[rows.weight > 0])


def _draw_shares(what: str, values: np.ndarray) -> figures.Figure:
    """Draw the cumulative share of rows by a value, whose name is `what`."""
    values = np.sort(values[np.isfinite(values)])
    # The i-th least of n values has the share i / n at or below it.
    shares = (np.arange(len(values)) + 1) / len(values)
    points = list(zip(values.tolist(), shares.tolist(), strict=True))
    title = f"share of rows whose {what} is at most"
    return line_charts.draw(title, {"share": points}, what, "share of rows")


def _tell_confusions(names: Sequence[str], wrong: Mapping[tuple[int, int], float]) -> blocks.Table:
    rows = [[names[a], names[b], weight] for (a, b), weight in wrong.items()][:_MOST_CONFUSIONS]
    caption = f"The most frequent confusions of {len(names)} classes"
    if len(rows) < len(wrong):
        caption += f": {len(rows)} of {len(wrong):,} pairs shown"
    return blocks.Table(["true", "predicted", "rows"], rows, caption)


def _tell_slices(errors: np.ndarray, weights: np.ndarray, seen: held_out.Seen, what: str) -> list:
    slices, number = assess.compare_slices(errors, weights, seen.fields)
    far = [one for one in slices if one.deviations > _FAR]
    few = far[:_MOST_SLICES]
    if not far:
        # Without any slice, such as for a table of lists, there is nothing to say.
        line = f"No slice of the rows, of {number}, is far worse than all others." if number else ""
        return [blocks.Text(line, "note")] if line else []
    table = blocks.Table(
        ["field", "value", "rows", f"mean {what}", "of all others", "standard errors above"],
        [_tell_slice(one) for one in few],
        f"The worst of {number} slices of the rows; of as many, chance alone puts about "
        f"{_BY_CHANCE * number:.2g} more than {_FAR:.0f} standard errors above the others",
    )
    return [table, *blocks.say_cut(len(few), len(far), "such slices are")]


def _tell_slice(one: assess.Slice) -> list:
    apart = blocks.Right(f"{one.deviations:.1f}")
    return [one.field, one.value, one.rows, one.error, one.others, apart]
