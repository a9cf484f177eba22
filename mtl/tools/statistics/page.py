"""Writes a page about data sets: tables, and a picture of each column, both sides over each other.

page.write("drift.html", [training, new], compared, threshold=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.files import storage
from mtl.tools.drawing import figures, shares
from mtl.tools.reports import blocks, report
from mtl.tools.statistics import drift, facts, metadata, tell
from mtl.tools.statistics import numbers as numbers_lib

_BINS, _MOST_VALUES = 30, 10
# The ends of the pictured range, if few numbers lie far outside of it.
_ENDS, _FAR = (0.005, 0.995), 4.0
_LONGEST_NAME = 60


def write(
    path: str,
    datasets: Sequence[facts.Dataset],
    compared: drift.Compared | None,
    threshold: float,
) -> None:
    """Write the page of one data set, of several, or of two that are compared.

    Args:
      path: the HTML file.
      datasets: what is described; unused with `compared`.
      compared: the differences of two data sets; None without a comparison.
      threshold: the distance in [0, 1] above which a field drifts, if it is also above the noise.
    """
    made = _describe(datasets) if compared is None else _compare_datasets(compared, threshold)
    with storage.writing("--output", "a file", path):
        report.write(path, made)


def _describe(datasets: Sequence[facts.Dataset]) -> blocks.Page:
    sections = []
    for number, dataset in enumerate(datasets):
        several = len(datasets) > 1
        title = f"{dataset.name}: " if several else ""
        told = [*_tell_tasks({dataset.name: dataset}), *_tell_columns(dataset)]
        drawn = draw_columns({dataset.name: dataset}, list(dataset.columns))
        sections.append(blocks.Section(f"columns-{number}", f"{title}Columns", told))
        sections.append(blocks.Section(f"pictures-{number}", f"{title}Pictures", [drawn]))
        sections += _tell_notes(number, title, dataset)
    lead = [f"{one.name}: {one.rows:,} rows, {len(one.columns):,} columns." for one in datasets]
    name = ", ".join(one.name for one in datasets)
    return blocks.Page(
        title=tell.shorten(name, _LONGEST_NAME),
        state="data",
        mood="",
        lead=lead,
        sections=sections,
        left_out=[],
    )


def _compare_datasets(compared: drift.Compared, threshold: float) -> blocks.Page:
    before, after = compared.before, compared.after
    failures = compared.list_failures(threshold)
    sides = {"before": before, "after": after}
    names = [one.name for one in compared.differences]
    lead = [f"{key}: {one.name}, {one.rows:,} rows." for key, one in sides.items()]
    lead += [f"Lost: {', '.join(compared.lost)}."] if compared.lost else []
    lead += [f"New: {', '.join(compared.added)}."] if compared.added else []
    sections = [
        blocks.Section("differences", "Differences", _tell_differences(compared, threshold)),
        blocks.Section("pictures", "Pictures", [draw_columns(sides, names)]),
    ]
    tasks = _tell_tasks(sides)
    if tasks:
        sections.insert(0, blocks.Section("tasks", "Tasks", tasks))
    for number, (key, one) in enumerate(sides.items()):
        sections.append(blocks.Section(f"columns-{number}", f"{key}: Columns", _tell_columns(one)))
        sections += _tell_notes(number, f"{key}: ", one)
    return blocks.Page(
        title=tell.shorten(f"{before.name} and {after.name}", _LONGEST_NAME),
        state=f"{len(failures)} fields drift" if failures else "no drift",
        mood="warning" if failures else "good",
        lead=lead,
        sections=sections,
        left_out=[],
    )


def _tell_notes(number: int, title: str, dataset: facts.Dataset) -> list[blocks.Section]:
    notes = [blocks.Text(note) for note in tell.list_notes(dataset)]
    return [blocks.Section(f"notes-{number}", f"{title}Notes", notes)] if notes else []


def _tell_differences(compared: drift.Compared, threshold: float) -> list[Any]:
    header = ["field", "drift", "type", "measure", "distance", "noise", "gaps before", "gaps after"]
    header += ["unseen", "unknown before", "unknown after", "values"]
    rows = []
    for one in compared.differences:
        has_drift = bool(one.list_failures(threshold))
        rows.append(
            [
                one.name,
                "drift" if has_drift else "",
                one.changed or tell.name_type(one.before),
                one.values.what,
                *map(
                    _align_right, map(tell.show_distance, (one.values.distance, one.values.noise))
                ),
                *_show_shares(one.before.gaps, one.after.gaps, one.unseen.distance),
                *_show_shares(one.before.unknown, one.after.unknown),
                tell.show_change(one),
            ]
        )
    return [
        blocks.Text(f"Fields drift if {tell.explain(threshold)}", "note"),
        blocks.Table(header, rows),
    ]


def _align_right(text: str) -> Any:
    return blocks.Right(text) if text else ""


def _show_shares(*values: float | None) -> list[Any]:
    return [_align_right("" if value is None else tell.show_share(value)) for value in values]


def _tell_tasks(sides: Mapping[str, facts.Dataset]) -> list[Any]:
    rows = [
        [name, key, task.labelled, blocks.Bar(task.labelled / max(task.rows, 1)), told]
        for name in dict.fromkeys(task for one in sides.values() for task in one.tasks)
        for key, one in sides.items()
        if (task := one.tasks.get(name)) is not None
        if (told := tell.show_labels(task)) is not None
    ]
    header = ["task", "data", "labelled rows", "share", "labels"]
    return [blocks.Table(header, rows)] if rows else []


def _tell_columns(dataset: facts.Dataset) -> list[Any]:
    columns = list(dataset.columns.values())
    numbers = [column for column in columns if column.numbers is not None]
    texts = [column for column in columns if column.numbers is None]
    made: list[Any] = []
    if numbers:
        header = ["column", "type", "gaps", "distinct", "zeros", "min", "25%", "median", "75%"]
        rows = [_tell_numbers(column) for column in numbers]
        made.append(blocks.Table([*header, "max", "mean", "deviation", "unknown"], rows))
    if texts:
        header = ["column", "type", "gaps", "distinct", "unknown", "most frequent"]
        rows = [
            [*_list_cells(column), *_show_shares(column.unknown), tell.show_frequent(column)]
            for column in texts
        ]
        made.append(blocks.Table(header, rows))
    return made


def _list_cells(column: facts.Column) -> list[Any]:
    distinct = _align_right(tell.show_distinct(column) if column.counted is not None else "")
    return [column.name, tell.name_type(column), *_show_shares(column.gaps), distinct]


def _tell_numbers(column: facts.Column) -> list[Any]:
    numeric = column.numbers
    assert numeric is not None
    is_time = column.kind == facts.TIME
    show = column.show if is_time else tell.show_number
    quantiles = numeric.find_quantiles([0.0, 0.25, 0.5, 0.75, 1.0])
    zeros = None if is_time or not column.count else numeric.zeros / column.count
    moments = ["", ""] if is_time else [tell.show_number(numeric.mean)]
    moments += [] if is_time else [tell.show_number(numeric.deviation)]
    figures_ = [*map(show, quantiles), *moments]
    return [
        *_list_cells(column),
        *_show_shares(zeros),
        *map(_align_right, figures_),
        *_show_shares(column.unknown),
    ]


def draw_columns(sides: Mapping[str, facts.Dataset], names: Sequence[str]) -> blocks.Figures:
    """Return a picture of each column that can be drawn.

    Args:
      sides: {name of a side: its data}; the sides of a column share a picture.
      names: columns that all sides have.
    """
    drawn = []
    for name in names:
        columns = {key: one.columns[name] for key, one in sides.items()}
        figure = _draw_column(name, columns)
        drawn += [figure] if figure is not None else []
    return blocks.Figures(drawn)


def _draw_column(name: str, columns: Mapping[str, facts.Column]) -> figures.Figure | None:
    title = tell.shorten(name, _LONGEST_NAME)
    if all(column.texts is not None for column in columns.values()):
        return _draw_texts(title, columns)
    if all(column.numbers is not None and column.numbers.count for column in columns.values()):
        return _draw_numbers(title, columns)
    return None


def _draw_texts(title: str, columns: Mapping[str, facts.Column]) -> figures.Figure:
    counts = {key: dict(column.list_frequent()) for key, column in columns.items()}
    ranked: dict[str, float] = {}
    for key, column in columns.items():
        for value, count in counts[key].items():
            ranked[value] = max(ranked.get(value, 0.0), count / column.count)
    names = sorted(ranked, key=lambda value: -ranked[value])[:_MOST_VALUES]
    # Not every side lists the frequent values of the other one.
    found = {
        key: _find_shares(column, counts[key], names, len(columns) > 1)
        for key, column in columns.items()
    }
    more = max(column.distinct for column in columns.values()) - len(names)
    note = f"{more:,} more values are not drawn." if more > 0 else ""
    return shares.draw_values(title, [tell.shorten(n, 40) for n in names], found, note)


def _find_shares(
    column: facts.Column, counts: Mapping[str, int], names: Sequence[str], is_compared: bool
) -> list[float]:
    lacking = [name for name in names if name not in counts]
    known = dict(counts)
    if lacking and is_compared:
        # A value that is frequent on one side may be rare on the other: only the whole list has it.
        known |= dict(column.list_frequent(column.distinct))
    return [known.get(name, 0) / max(column.count, 1) for name in names]


def _draw_numbers(title: str, columns: Mapping[str, facts.Column]) -> figures.Figure:
    numbers = {key: c.numbers for key, c in columns.items() if c.numbers is not None}
    low, high, is_far = _find_ends(list(numbers.values()))
    size = _BINS
    if all(column.kind in (facts.INT, facts.BOOL) for column in columns.values()):
        low, high, size = _fit_whole(low, high)
    is_time = any(column.kind == facts.TIME for column in columns.values())
    # From microseconds to days: ticks of microseconds would be too long to read.
    scale = 1e6 * 86400 if is_time else 1.0
    bins, outside = {}, 0.0
    for key, one in numbers.items():
        counted = metadata.count_buckets(one, size, low, high)
        bins[key] = [(a / scale, b / scale, n / one.count) for a, b, n in counted]
        outside = max(outside, 1 - sum(share for *_, share in bins[key]))
    note = f"{outside:.2%} of the values lie outside." if is_far else ""
    note = f"Days since 1970. {note}".strip() if is_time else note
    return shares.draw_bins(title, bins, note)


def _find_ends(sides: Sequence[numbers_lib.Numbers]) -> tuple[float, float, bool]:
    """Return the range to draw, and whether few numbers lie far outside of it."""
    low = min(float(one.least) for one in sides)
    high = max(float(one.greatest) for one in sides)
    ends = [one.find_quantiles(_ENDS) for one in sides]
    inner = min(float(a) for a, _ in ends), max(float(b) for _, b in ends)
    is_far = high - low > _FAR * (inner[1] - inner[0]) > 0
    return (*inner, True) if is_far else (low, high, False)


def _fit_whole(low: float, high: float) -> tuple[float, float, int]:
    """Return ends and a number of bins, so that each bin holds equally many whole numbers."""
    low, high = math.floor(low), math.ceil(high)
    width = math.ceil((high - low + 1) / _BINS)
    size = math.ceil((high - low + 1) / width)
    # Ends between whole numbers: none lies on an edge.
    return low - 0.5, low - 0.5 + size * width, size
