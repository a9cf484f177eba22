"""Describes data sets, and the differences between two data sets, as text for a terminal.

print(tell.describe(dataset, most=50, width=100))
print(tell.compare(compared, most=50, width=100, threshold=0.1))
"""

import math
import textwrap
from collections.abc import Sequence

from mtl import aligned, checks
from mtl.tools.statistics import drift, facts, hashing

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUMBERS = ("column", "type", "gaps", "distinct", "zeros", "min", "25%", "median", "75%", "max")
_LONGEST_NAME, _LONGEST_VALUE, _MOST_FREQUENT, _MOST_LISTED = 40, 24, 5, 20
_MOST_FILES = 5
# The least width of the last column, which holds values, even if lines become too long.
_LEAST_ROOM = 24


def shorten(text: str, most: int) -> str:
    """Return a text in one line; if it is too long, "…" replaces its middle.

    Args:
      text: the text to shorten.
      most: the largest number of characters in the line.
    """
    text = checks.escape(text)
    half = most // 2
    return text if len(text) <= most else f"{text[: most - half]}…{text[len(text) - half + 1 :]}"


def show_share(share: float) -> str:
    """Return a share as a percentage.

    Args:
      share: the share, in [0, 1], or NaN.

    Returns:
      A text such as "12.5%" or "<0.1%"; "" for 0 and NaN.
    """
    if share != share or not share:
        return ""
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def show_number(value: float) -> str:
    """Return a number as a short text.

    Args:
      value: the number to show.

    Returns:
      All digits of a whole number below 1e12, or below 1e9 for a float; four significant digits of
      other numbers; "" for NaN.
    """
    if value != value:
        return ""
    is_short = isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e9)
    return f"{int(value):,}" if is_short and abs(value) < 1e12 else f"{value:.4g}"


def show_distinct(column: facts.Column) -> str:
    """Return the number of distinct values, with "~" before an estimate."""
    return f"{'' if column.is_exact else '~'}{column.distinct:,}"


def name_type(column: facts.Column) -> str:
    """Return the type of a column as text, with the mean length of lists.

    Args:
      column: the statistics of the column.

    Returns:
      A text such as "int" or "list of int, 3.5 a row".
    """
    if column.lengths is None or not column.lengths.count:
        return column.type_name
    return f"{column.type_name}, {column.lengths.mean:.3g} a row"


def show_frequent(column: facts.Column, most: int = _MOST_FREQUENT) -> str:
    """Return the most frequent values of a column with their shares, as text.

    Args:
      column: the statistics of the column.
      most: the largest number of values in the text.

    Returns:
      A text such as "'Berlin' 50.0%, 'Rome' 12.5%"; "" if the values are not read.
    """
    shares = []
    for value, count in column.list_frequent(most):
        is_text = column.texts is not None
        name = f"'{shorten(value, _LONGEST_VALUE)}'" if is_text else value
        shares.append(f"{name} {show_share(count / column.count)}")
    return ", ".join(shares)


def list_notes(dataset: facts.Dataset) -> list[str]:
    """Return notes about a data set: marks of missing values, estimates, unread values."""
    notes = list(dataset.notes)
    for name, column in dataset.columns.items():
        notes += _list_notes(f"Column '{shorten(name, _LONGEST_NAME)}'", column)
    cut_columns = [column for column in dataset.columns.values() if not column.is_exact]
    return notes + ([_tell_errors(cut_columns)] if cut_columns else [])


def _list_notes(where: str, column: facts.Column) -> list[str]:
    """Return notes about values that the statistics of a column leave out."""
    notes = []
    if column.marks:
        marks = ", ".join(f"'{shorten(m, 20)}' ({n:,})" for m, n in column.marks.items())
        notes.append(f"{where} holds {_name_kind(column)}. These texts count as gaps: {marks}.")
    if column.numbers is not None and column.numbers.infinite:
        infinite = f"{column.numbers.infinite:,} infinite numbers"
        notes.append(f"{where} has {infinite}, which the figures leave out.")
    if column.kind == facts.OTHER:
        notes.append(f"{where} has a type whose values are not read.")
    return notes


def _name_kind(column: facts.Column) -> str:
    return "times" if column.kind == facts.TIME else "numbers"


def _tell_errors(cut_columns: Sequence[facts.Column]) -> str:
    """Return a note about the errors in columns with too many distinct values."""
    largest_loss = max(column.counted.lost for column in cut_columns if column.counted is not None)
    errors = [column.numbers.rank_error for column in cut_columns if column.numbers is not None]
    note = (
        f"{len(cut_columns)} columns have more distinct values than fit into memory. Their "
        f"numbers of distinct values (~) err by about {hashing.ERROR:.1%}, and counts of frequent "
        f"values are too low by at most {largest_loss:,}."
    )
    error = f" Their quantiles are off by at most {max(errors):.2%} of the rows." if errors else ""
    return f"{note}{error}"


def describe(dataset: facts.Dataset, most: int, width: int) -> str:
    """Return a text with the rows, tasks and columns of a data set, as tables.

    Args:
      dataset: the statistics of the data set.
      most: the largest number of columns to show; 0 to show all columns.
      width: the number of characters in a line.
    """
    columns = list(dataset.columns.values())
    shown = columns[: most or None]
    lines = [_tell_head(dataset), *_tell_files(dataset), *_tell_tasks(dataset)]
    lines += _tell_numbers([column for column in shown if column.numbers is not None])
    lines += _tell_texts([column for column in shown if column.texts is not None], width)
    empty = [column.name for column in columns if column.kind == facts.EMPTY]
    lines += ["", f"Without any value: {_list_names(empty)}."] if empty else []
    lines += _tell_more(len(shown), len(columns))
    return "\n".join([*lines, *_tell_notes(list_notes(dataset))])


def _tell_files(dataset: facts.Dataset) -> list[str]:
    """Return lines with the number of rows in each file; [] for a single file."""
    if len(dataset.files) < 2:
        return []
    files = list(dataset.files.items())
    more = len(files) - _MOST_FILES
    more_lines = [f"  and {more} more files"] if more > 0 else []
    return [*(f"  {path}: {rows:,} rows" for path, rows in files[:_MOST_FILES]), *more_lines]


def _tell_notes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    more = len(notes) - _MOST_LISTED
    more_lines = [f"  - and {more} more"] if more > 0 else []
    return [
        "",
        "Note:",
        *(f"  - {checks.escape(note)}" for note in notes[:_MOST_LISTED]),
        *more_lines,
    ]


def _tell_head(dataset: facts.Dataset) -> str:
    return f"{dataset.name}: {dataset.rows:,} rows, {len(dataset.columns):,} columns"


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(shorten(name, _LONGEST_NAME) for name in names[:_MOST_LISTED]) + more


def _tell_more(shown: int, total: int) -> list[str]:
    if shown == total:
        return []
    return ["", f"{total - shown:,} more: --most 0 lists all, and --output page.html draws all."]


def _align_table(title: str, rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Return the lines of a title and a table, without columns that are empty in all rows."""
    # Always show the first column, a name, which may be empty.
    used = [i for i in range(len(rows[0])) if i < 1 or any(row[i] for row in rows[1:])]
    rows = [[row[i] for i in used] for row in rows]
    places = [place for place, i in enumerate(used) if i in right]
    lines = aligned.align_columns(rows, right=places)
    return ["", title, *(f"  {line}" for line in lines)]


def _tell_numbers(columns: Sequence[facts.Column]) -> list[str]:
    if not columns:
        return []
    rows = [[*_NUMBERS, "mean", "deviation", "unknown"]]
    for column in columns:
        numeric = column.numbers
        assert numeric is not None
        is_time = column.kind == facts.TIME
        quantiles = numeric.find_quantiles(_QUANTILES)
        show = column.show if is_time else show_number
        zeros = 0.0 if is_time or not column.count else numeric.zeros / column.count
        moments = ("", "") if is_time else map(show_number, (numeric.mean, numeric.deviation))
        rows.append(
            [
                *_list_cells(column),
                show_share(zeros),
                *map(show, quantiles),
                *moments,
                _show_unknown(column),
            ]
        )
    return _align_table("Numbers and times", rows, range(2, 13))


def _list_cells(column: facts.Column) -> list[str]:
    name = shorten(column.name, _LONGEST_NAME)
    return [name, name_type(column), show_share(column.gaps), show_distinct(column)]


def _show_unknown(column: facts.Column) -> str:
    return "" if column.unknown is None else f"{column.unknown:.1%}"


def _tell_texts(columns: Sequence[facts.Column], width: int) -> list[str]:
    if not columns:
        return []
    rows = [["column", "type", "gaps", "distinct", "unknown", "bytes", "most frequent"]]
    for column in columns:
        assert column.texts is not None
        length = f"{column.texts.bytes / max(column.texts.count, 1):.3g}"
        rows.append([*_list_cells(column), _show_unknown(column), length, show_frequent(column)])
    widths = [max(map(len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    room = max(width - sum(widths) - 2 * len(widths) - 2, _LEAST_ROOM)
    for row in rows:
        row[-1] = row[-1] if len(row[-1]) <= room else row[-1][: room - 1] + "…"
    return _align_table("Texts", rows, range(2, 6))


def _tell_tasks(dataset: facts.Dataset) -> list[str]:
    if not dataset.tasks:
        return []
    rows = [["task", "labelled", "missing", "labels"]]
    for name, task in list(dataset.tasks.items())[:_MOST_LISTED]:
        share = task.labelled / task.rows if task.rows else math.nan
        labels = show_labels(task)
        rows.append(
            [shorten(name, _LONGEST_NAME), f"{task.labelled:,}", f"{1 - share:.1%}", labels]
        )
    more = len(dataset.tasks) - _MOST_LISTED
    return _align_table("Tasks", rows, (1, 2)) + ([f"  and {more} more"] if more > 0 else [])


def show_labels(task: facts.Task, most: int = 3) -> str:
    """Return the shares of the most frequent classes, or the mean and deviation, as text.

    Args:
      task: the statistics of the task's labels.
      most: the largest number of classes in the text.

    Returns:
      A text such as "cat 60.00%, dog 30.00% and 5 more classes" or "mean 3, deviation 1.5".
    """
    if task.mean is not None and task.deviation is not None:
        return f"mean {show_number(task.mean)}, deviation {show_number(task.deviation)}"
    ranked = sorted(task.counts.items(), key=lambda item: -item[1])
    rates = [
        f"{shorten(name, _LONGEST_VALUE)} {n / max(task.labelled, 1):.2%}"
        for name, n in ranked[:most]
    ]
    more = f" and {len(ranked) - most} more classes" if len(ranked) > most else ""
    return ", ".join(rates) + more


def compare(compared: drift.Compared, most: int, width: int, threshold: float) -> str:
    """Return a text about the differences between two data sets, from the largest to the smallest.

    Args:
      compared: the comparison of the data sets.
      most: the largest number of fields to show; 0 to show all fields.
      width: the number of characters in a line.
      threshold: the distance above which a field drifts, if the distance also exceeds its noise.
    """
    before, after = compared.before, compared.after
    lines = [f"before: {_tell_head(before)}", f"after:  {_tell_head(after)}"]
    lines += [f"Lost: {_list_names(compared.lost)}."] if compared.lost else []
    lines += [f"New: {_list_names(compared.added)}."] if compared.added else []
    lines += _compare_tasks(before, after)
    shown = compared.differences[: most or None]
    if shown:
        lines += _compare_fields(shown, width, threshold)
    lines += _tell_more(len(shown), len(compared.differences))
    num_drifts = sum(bool(d.list_failures(threshold)) for d in compared.differences)
    summary = f"{num_drifts} of {len(compared.differences)} fields drift: {explain(threshold)}"
    lines += ["", *textwrap.wrap(summary, max(width, _LEAST_ROOM))]
    notes = [f"before: {note}" for note in list_notes(before)]
    notes += [f"after: {note}" for note in list_notes(after)]
    return "\n".join([*lines, *_tell_notes(notes)])


def explain(threshold: float) -> str:
    """Return the end of a sentence that explains when fields drift.

    Args:
      threshold: the distance in [0, 1] above which a field drifts, if the distance also exceeds its
        noise.
    """
    return (
        f"they differ by more than {threshold:g} and by more than their noise. If rows are "
        f"independent, chance exceeds the noise in at most 1 of {1 / drift.CHANCE:.0f} comparisons."
    )


def _compare_fields(
    differences: Sequence[drift.Difference], width: int, threshold: float
) -> list[str]:
    rows = [
        ["field", "", "type", "measure", "distance", "noise", "gaps", "gaps now", "unseen"]
        + ["unknown", "unknown now", "values"]
    ]
    for difference in differences:
        has_drift = bool(difference.list_failures(threshold))
        rows.append(
            [
                shorten(difference.name, _LONGEST_NAME),
                "drift" if has_drift else "",
                shorten(difference.changed or name_type(difference.before), _LONGEST_NAME),
                difference.values.what,
                show_distance(difference.values.distance),
                show_distance(difference.values.noise),
                show_share(difference.before.gaps),
                show_share(difference.after.gaps),
                show_share(difference.unseen.distance),
                _show_unknown(difference.before),
                _show_unknown(difference.after),
                show_change(difference),
            ]
        )
    lines = _align_table("Fields, the largest difference first", rows, range(4, 11))
    return [line if len(line) <= width else line[: max(width, 60) - 1] + "…" for line in lines]


def show_distance(value: float) -> str:
    """Return a distance with three decimal places; "" for NaN."""
    return "" if value != value else f"{value:.3f}"


def show_change(difference: drift.Difference) -> str:
    """Return how a typical value changed: a mean, a range of times or the most frequent text.

    Args:
      difference: the differences between two data sets in a field.

    Returns:
      A text such as "mean 3 -> mean 4", or a single value if it is the same in both data sets; ""
      if the type changed, or if a data set has no values.
    """
    before, after = difference.before, difference.after
    if difference.changed or facts.EMPTY in (before.kind, after.kind):
        return ""
    typical = [_show_typical(column) for column in (before, after)]
    return typical[0] if typical[0] == typical[1] else " -> ".join(typical)


def _show_typical(column: facts.Column) -> str:
    if column.texts is not None:
        return show_frequent(column, 1)
    if column.numbers is None:
        return ""
    if column.kind == facts.TIME:
        return f"{column.show(column.numbers.least)} to {column.show(column.numbers.greatest)}"
    return f"mean {show_number(column.numbers.mean)}"


def _compare_tasks(before: facts.Dataset, after: facts.Dataset) -> list[str]:
    if not before.tasks or not after.tasks:
        return []
    rows = [["task", "missing", "missing now", "labels", "labels now"]]
    for name, task in list(before.tasks.items())[:_MOST_LISTED]:
        if name in after.tasks:
            sides = (task, after.tasks[name])
            gaps = [f"{1 - side.labelled / max(side.rows, 1):.1%}" for side in sides]
            rows.append([shorten(name, _LONGEST_NAME), *gaps, *map(show_labels, sides)])
    return _align_table("Tasks", rows, (1, 2)) if len(rows) > 1 else []
