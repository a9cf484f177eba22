"""Writes two sections of a report: the data of the run, and the evaluation of each head."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import types
from mtl.tools.drawing import figures, line_charts
from mtl.tools.reports import assess, baselines, blocks, held_out, record, splits

# The largest number of tasks with pictures. A run may have hundreds of tasks; tasks with the lowest
# skill scores get pictures.
MOST_TASKS = 20
# The largest number of tasks in the table of labels.
_MOST_LABELLED = 100
_MOST_CLASSES = 12
# The largest number of classes of a matrix beside a table. A matrix with more classes needs the
# whole width of the page.
_MOST_BESIDE = 5
# The largest number of classes in a table of rows by class.
_MOST_COUNTED = 100
_MOST_FIELDS = 200
_MOST_CONFUSIONS = 15
_MOST_SLICES = 8
# The number of standard errors above which a difference is rarely due to chance.
_FAR = 2.0
# The share of slices whose error exceeds the error of other rows by more than `_FAR` standard
# errors by chance alone, as in a normal distribution.
_BY_CHANCE = statistics.NormalDist().cdf(-_FAR)
_LOSS = "log loss"


def choose_tasks(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[str]:
    """Return the tasks to draw: all tasks, or the tasks with the lowest skill scores.

    Args:
      run: the run that the report describes.
      verdicts: comparisons with trivial models. Tasks without a comparison are drawn first.

    Returns:
      At most `MOST_TASKS` names of tasks, in the order of the experiment.
    """
    tasks = list(run.experiment.model.tasks)
    ranks = {verdict.task: verdict.rank for verdict in verdicts}
    # Tasks without a baseline come first, because their skill score is unknown.
    drawn_tasks = set(sorted(tasks, key=lambda task: ranks.get(task, -math.inf))[:MOST_TASKS])
    return [task for task in tasks if task in drawn_tasks]


def say_chosen(run: record.Run, shown_tasks: Sequence[str]) -> list[blocks.Text]:
    """Return [a line that says how many tasks are shown], or [] if all tasks are shown."""
    items = "tasks, those with the lowest skill scores, are"
    return blocks.say_cut(len(shown_tasks), len(run.experiment.model.tasks), items)


def tell_data(
    run: record.Run, facts: Sequence[splits.Facts], problems: Sequence[str]
) -> list | str:
    """Return a section about rows, labels and missing values by split.

    Args:
      run: the run that the report describes.
      facts: the counts of rows, labels and missing values in each split; [] if no rows were read.
      problems: errors that occurred while rows were read.

    Returns:
      The blocks of the section; without `facts`, a text that says why the section is left out.
    """
    if not facts:
        return " ".join(problems) or "no rows were read, as --rows is 0."
    parts: list = [
        blocks.Table(
            ["split", "rows", "read"],
            [[entry.split, entry.total, _say_read(entry.rows, entry.total)] for entry in facts],
        ),
        *_tell_labels(run, facts),
    ]
    counts = _tell_classes(run, facts)
    if counts:
        parts.append(blocks.Fold("Rows by class", counts))
    return [*parts, *_tell_missing(facts)]


def _say_read(rows: int, total: int) -> str:
    return "all" if rows == total else f"{rows:,} drawn at random"


def _tell_labels(run: record.Run, facts: Sequence[splits.Facts]) -> list:
    rows = []
    tasks = run.experiment.model.tasks
    shown_tasks = tasks[:_MOST_LABELLED]
    for task in shown_tasks:
        for entry in facts:
            labels = entry.tasks.get(task)
            if labels is not None:
                share = labels.labelled / entry.rows if entry.rows else 0.0
                rows.append([task, entry.split, labels.labelled, blocks.Bar(share), _say(labels)])
    table = blocks.Table(["task", "split", "labelled rows", "share", "labels"], rows)
    return [table, *blocks.say_cut(len(shown_tasks), len(tasks), "tasks are")]


def _say(labels: splits.Labels) -> str:
    if labels.mean is not None and labels.spread is not None:
        return f"mean {labels.mean:.4g}, standard deviation {labels.spread:.4g}"
    if labels.largest is None:
        return ""
    name, rows = labels.largest
    return f"{labels.classes:,} classes, {100 * rows / labels.labelled:.1f}% {name}"


def _tell_classes(run: record.Run, facts: Sequence[splits.Facts]) -> list:
    """Return tables with the rows of each class, and a line about tasks with many classes.

    Tasks with many classes get no table here; the table of labels shows their most frequent class.
    """
    tables, large = [], []
    for task in run.experiment.model.tasks:
        labels_of_splits = {
            entry.split: entry.tasks[task] for entry in facts if task in entry.tasks
        }
        counts_of_splits = {split: labels.counts for split, labels in labels_of_splits.items()}
        # The classes of a task are the same in all splits.
        names = list(next(iter(counts_of_splits.values()), {}))
        if 0 < len(names) <= _MOST_COUNTED:
            rows = [
                [name, *(counts.get(name, 0) for counts in counts_of_splits.values())]
                for name in names
            ]
            tables.append(blocks.Table([task, *counts_of_splits], rows))
        elif any(labels.classes for labels in labels_of_splits.values()):
            large.append(task)
    notes = [*tables[:MOST_TASKS], *blocks.say_cut(MOST_TASKS, len(tables), "tasks are")]
    return notes + _say_large(large)


def _say_large(tasks: Sequence[str]) -> list[blocks.Text]:
    """Return a line about the tasks with too many classes for a table; [] without such tasks."""
    names = ", ".join(tasks[:MOST_TASKS]) + ", ..." * (len(tasks) > MOST_TASKS)
    line = f"Left out, because they have more than {_MOST_COUNTED} classes: {names}."
    return [blocks.Text(line, "note")] if tasks else []


def _tell_missing(facts: Sequence[splits.Facts]) -> list:
    # List only fields with missing values in at least one split.
    fields = [name for name in facts[0].missing if any(entry.missing.get(name) for entry in facts)]
    if not fields:
        return [blocks.Text("No value is missing in any field.", "note")]
    rows = [
        [name, *(blocks.Bar(entry.missing.get(name, 0) / max(entry.rows, 1)) for entry in facts)]
        for name in fields[:_MOST_FIELDS]
    ]
    caption = "Missing values by field, including values that equal the field's default"
    if len(rows) == len(fields):
        caption += "; all other fields are complete"
    table = blocks.Table(["field", *(entry.split for entry in facts)], rows, caption)
    return [table, *blocks.say_cut(len(rows), len(fields), "fields with missing values are")]


def tell_evaluation(
    run: record.Run, verdicts: Sequence[baselines.Verdict], seen: held_out.Seen | None
) -> list | str:
    """Return a section with the metrics of the heads, and with pictures of their predictions.

    Args:
      run: the run that the report describes.
      verdicts: comparisons with trivial models, which determine the tasks to show.
      seen: the predictions of held-out rows; None to leave out pictures and slices.

    Returns:
      The blocks of the section; for a run without metrics, a text that says why the section is left
      out.
    """
    if not run.metrics:
        return "no checkpoint is evaluated yet, or the event files of the evaluations are gone."
    parts: list = [
        blocks.Text(
            "The metrics come from evaluations during the run. Point at a number to see all its "
            "digits."
        )
    ]
    if seen is not None:
        parts += _say_shown(run, seen)
    tasks = choose_tasks(run, verdicts)
    parts += say_chosen(run, tasks)
    for head in run.experiment.model.heads:
        if head.name in tasks:
            parts += [blocks.Heading(head.name), *_tell_head(run, head, seen)]
    # Leave out Estimator's `loss`, which is a mean over batches, in favour of `average_loss`, the
    # mean over rows.
    left_out = {"loss"} - {run.experiment.best.metric} if "average_loss" in run.metrics else set()
    common = [name for name in run.metrics if "/" not in name and name not in left_out]
    parts += [blocks.Heading("all tasks"), _tell_metrics(run, common, "")]
    return parts


def _say_shown(run: record.Run, seen: held_out.Seen) -> list[blocks.Text]:
    """Return a line about the rows that pictures show, and a warning if the split has changed."""
    sample = _say_read(seen.rows, seen.total)
    split = run.experiment.data.eval_split
    made_by = os.path.basename(run.checkpoint or "")
    line = f"Pictures and slices show rows of split {split!r} ({sample}), by {made_by}."
    change = run.describe_change(seen.total, seen.hashes)
    note = blocks.Text(line, "note")
    return [note, blocks.Text(change, "warning")] if change else [note]


def _tell_head(run: record.Run, head: types.Head, seen: held_out.Seen | None) -> list:
    prefix = f"{head.name}/"
    names = [name for name in run.metrics if name.startswith(prefix)]
    # Put the recalls of single classes into a fold, because there may be thousands of classes.
    recalls = [name for name in names if "/recall/" in name]
    table = _tell_metrics(run, [n for n in names if n not in recalls], prefix)
    pictures, slices = _picture_head(head, seen) if seen else ([], [])
    parts = [*_lay_out(table, pictures), *slices]
    if recalls:
        title = f"Recall of {len(recalls)} classes"
        parts.append(blocks.Fold(title, [_tell_metrics(run, recalls, f"{prefix}recall/")]))
    return parts


def _lay_out(table: blocks.Table, pictures: Sequence[Any]) -> list:
    """Return a table with small pictures beside it and wide pictures below it."""
    wide = [picture for picture in pictures if _is_wide(picture)]
    beside = [picture for picture in pictures if not _is_wide(picture)]
    return [blocks.Side([table], beside) if beside else table, *wide]


def _is_wide(picture: Any) -> bool:
    return isinstance(picture, blocks.Matrix) and len(picture.names) > _MOST_BESIDE


def _picture_head(head: types.Head, seen: held_out.Seen) -> tuple[list, list]:
    """Return pictures of a head's predictions and a table of slices; empty lists without rows."""
    # A head without labels has no errors, so draw the distribution of its predictions.
    if (unlabelled := seen.unlabelled.get(head.name)) and np.isfinite(unlabelled.values).any():
        quantity = unlabelled.name.replace("_", " ")
        return [blocks.Figures([_draw_shares(quantity, unlabelled.values)])], []
    labels = seen.labels.get(head.name)
    # If a head has several labels in each row, treat each label as a row of a binary task.
    rows = labels.entries if labels else seen.tasks.get(head.name)
    if rows is None or not ((rows.weight > 0) & np.isfinite(rows.score)).any():
        return [], []
    pictures = [blocks.Figures(_draw_head(rows, of_all="of all labels, " if labels else ""))]
    if labels:
        line = "The pictures and the table count each label of a row separately."
        confusion = [_count_confusion(rows, ["0", "1"]), blocks.Text(line, "note")]
        return [*pictures, *confusion], _tell_slices(labels.errors, labels.weights, seen, _LOSS)
    quantity = "distance" if rows.kind == held_out.NUMBER else _LOSS
    slices = _tell_slices(rows.error, rows.weight, seen, quantity)
    return [*pictures, *_tell_confusion(head, rows)], slices


def _tell_metrics(run: record.Run, names: Sequence[str], prefix: str) -> blocks.Table:
    """Return a table of metrics at the best checkpoint and at the last evaluation."""
    best, last_values = run.metrics, run.metrics_at(run.last_evaluated)
    # If the best checkpoint is also the last, a single column is enough.
    is_same = run.shown_step == run.last_evaluated
    checkpoint = "last" if run.best_step is None else "best"
    header = ["metric", f"{checkpoint} (step {run.shown_step})"]
    if not is_same:
        header.append(f"last (step {run.last_evaluated})")
    rows = []
    for name in sorted(names):
        # Metrics that warn of problems are shown only if they are not 0.
        is_warning = name.endswith(("nan_predictions", "_error_bound"))
        if not is_warning or best[name] != 0:
            row = [name.removeprefix(prefix), best[name]]
            rows.append(row if is_same else [*row, last_values.get(name, math.nan)])
    return blocks.Table(header, rows)


def _draw_head(rows: held_out.Rows, of_all: str) -> list[figures.Figure]:
    """Draw the reliability of scores, and the ROC curve of a binary task.

    The text `of_all` is inserted into the titles of the pictures, before the name of the shown
    value.
    """
    bins = [(entry.score, entry.true) for entry in assess.bin_scores(rows)]
    if rows.kind == held_out.NUMBER:
        # The line of a perfect model goes from the smallest to the largest coordinate of both axes.
        low, high = (pick(pick(point) for point in bins) for pick in (min, max))
        lines = {"label": bins, "perfect": [(low, low), (high, high)]}
        title = "mean label by predicted number, for each tenth of the rows"
        means = line_charts.draw(title, lines, "predicted number", "mean label")
        return [means, _draw_errors(rows)]
    share_name = "share of class 1" if rows.kind == held_out.BINARY else "share of correct rows"
    title = f"reliability: {of_all}{share_name} by probability"
    pictures = [
        line_charts.draw(
            title, {share_name: bins}, "probability", share_name, is_share=True, diagonal=True
        )
    ]
    corners = assess.trace_roc(rows) if rows.kind == held_out.BINARY else []
    if corners:
        title = f"ROC: {of_all}recall by false positive rate"
        lines = {"recall": corners}
        roc = line_charts.draw(
            title, lines, "false positive rate", "recall", is_share=True, diagonal=True
        )
        pictures.insert(0, roc)
    return pictures


def _tell_confusion(head: types.Head, rows: held_out.Rows) -> list:
    """Return a confusion matrix; for many classes, a table of the most frequent confusions."""
    if rows.kind == held_out.NUMBER:
        return []
    # Binary heads may lack names for their classes.
    names = list(types.read_member(head, types.ClassHead, "class_names")) or ["0", "1"]
    if len(names) > _MOST_CLASSES:
        return [_tell_confusions(names, assess.count_confusions(rows))]
    return [_count_confusion(rows, names)]


def _count_confusion(rows: held_out.Rows, names: Sequence[str]) -> blocks.Matrix:
    counts = assess.count_confusion(rows, len(names))
    return blocks.Matrix("Confusion: rows by true and predicted class", names, counts)


def _draw_errors(rows: held_out.Rows) -> figures.Figure:
    return _draw_shares("error", rows.error[rows.weight > 0])


def _draw_shares(quantity: str, values: np.ndarray) -> figures.Figure:
    """Draw the cumulative distribution of a quantity that has a value for each row."""
    values = np.sort(values[np.isfinite(values)])
    # A share of i / n of the n values is less than or equal to the i-th smallest value.
    shares = (np.arange(len(values)) + 1) / len(values)
    points = list(zip(values.tolist(), shares.tolist(), strict=True))
    title = f"share of rows whose {quantity} is at most"
    return line_charts.draw(title, {"share": points}, quantity, "share of rows")


def _tell_confusions(names: Sequence[str], wrong: Mapping[tuple[int, int], float]) -> blocks.Table:
    rows = [[names[a], names[b], weight] for (a, b), weight in wrong.items()][:_MOST_CONFUSIONS]
    caption = f"The most frequent confusions of {len(names)} classes"
    if len(rows) < len(wrong):
        caption += f": {len(rows)} of {len(wrong):,} pairs shown"
    return blocks.Table(["true", "predicted", "rows"], rows, caption)


def _tell_slices(
    errors: np.ndarray, weights: np.ndarray, seen: held_out.Seen, quantity: str
) -> list:
    slices, number = assess.compare_slices(errors, weights, seen.fields)
    far_slices = [entry for entry in slices if entry.deviations > _FAR]
    shown_slices = far_slices[:_MOST_SLICES]
    if not far_slices:
        # Without fields that have one value in each row, there are no slices to report.
        line = f"None of {number} slices is clearly worse than all other rows." if number else ""
        return [blocks.Text(line, "note")] if line else []
    table = blocks.Table(
        ["field", "value", "rows", f"mean {quantity}", "of other rows", "standard errors above"],
        [_tell_slice(entry) for entry in shown_slices],
        f"The worst of {number} slices of the rows. By chance alone, about "
        f"{_BY_CHANCE * number:.2g} of them would be more than {_FAR:.0f} standard errors above "
        "other rows",
    )
    return [table, *blocks.say_cut(len(shown_slices), len(far_slices), "such slices are")]


def _tell_slice(entry: assess.Slice) -> list:
    deviations = blocks.Right(f"{entry.deviations:.1f}")
    return [entry.field, entry.value, entry.rows, entry.error, entry.others, deviations]
