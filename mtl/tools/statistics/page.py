"""Writes an HTML page about data sets, with tables and a picture of each column.

page.write("drift.html", [training, new], compared, threshold=0.1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtl.files import storage
from mtl.tools.drawing import figures, shares
from mtl.tools.reports import blocks, report
from mtl.tools.statistics import drift, facts, metadata, tell
from mtl.tools.statistics import numbers as numbers_lib

_BINS, _MOST_VALUES = 30, 10
_LONGEST_NAME = 60


def write(
    path: str,
    datasets: Sequence[facts.Dataset],
    compared: drift.Compared | None,
    threshold: float,
) -> None:
    """Write a page about data sets, or about the comparison of two data sets.

    Args:
      path: the path of the HTML file.
      datasets: the statistics of the data sets; not used if `compared` is given.
      compared: the comparison of two data sets; None to describe `datasets`.
      threshold: the distance in [0, 1] above which a field drifts, if the distance also exceeds its
        noise.
    """
    page = _describe(datasets) if compared is None else _compare_datasets(compared, threshold)
    with storage.writing("--output", "a file", path):
        report.write(path, page)


def _describe(datasets: Sequence[facts.Dataset]) -> blocks.Page:
    sections = []
    for number, dataset in enumerate(datasets):
        several = len(datasets) > 1
        title = f"{dataset.name}: " if several else ""
        parts = [*_tell_tasks({dataset.name: dataset}), *_tell_columns(dataset)]
        pictures = draw_columns({dataset.name: dataset}, list(dataset.columns))
        sections.append(blocks.Section(f"columns-{number}", f"{title}Columns", parts))
        sections.append(blocks.Section(f"pictures-{number}", f"{title}Pictures", [pictures]))
        sections += _tell_notes(number, title, dataset)
    lead = [f"{d.name}: {d.rows:,} rows, {len(d.columns):,} columns." for d in datasets]
    name = ", ".join(dataset.name for dataset in datasets)
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
    names = [difference.name for difference in compared.differences]
    lead = [f"{key}: {data.name}, {data.rows:,} rows." for key, data in sides.items()]
    lead += [f"Lost: {', '.join(compared.lost)}."] if compared.lost else []
    lead += [f"New: {', '.join(compared.added)}."] if compared.added else []
    sections = [
        blocks.Section("differences", "Differences", _tell_differences(compared, threshold)),
        blocks.Section("pictures", "Pictures", [draw_columns(sides, names)]),
    ]
    tasks = _tell_tasks(sides)
    if tasks:
        sections.insert(0, blocks.Section("tasks", "Tasks", tasks))
    for number, (key, data) in enumerate(sides.items()):
        sections.append(blocks.Section(f"columns-{number}", f"{key}: Columns", _tell_columns(data)))
        sections += _tell_notes(number, f"{key}: ", data)
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
    for difference in compared.differences:
        has_drift = bool(difference.list_failures(threshold))
        rows.append(
            [
                difference.name,
                "drift" if has_drift else "",
                difference.changed or tell.name_type(difference.before),
                difference.values.what,
                *map(
                    _align_right,
                    map(tell.show_distance, (difference.values.distance, difference.values.noise)),
                ),
                *_show_shares(
                    difference.before.gaps, difference.after.gaps, difference.unseen.distance
                ),
                *_show_shares(difference.before.unknown, difference.after.unknown),
                tell.show_change(difference),
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
        [name, key, task.labelled, blocks.Bar(task.labelled / max(task.rows, 1)), labels]
        for name in dict.fromkeys(task for data in sides.values() for task in data.tasks)
        for key, data in sides.items()
        if (task := data.tasks.get(name)) is not None
        if (labels := tell.show_labels(task)) is not None
    ]
    header = ["task", "data", "labelled rows", "share", "labels"]
    return [blocks.Table(header, rows)] if rows else []


def _tell_columns(dataset: facts.Dataset) -> list[Any]:
    columns = list(dataset.columns.values())
    numbers = [column for column in columns if column.numbers is not None]
    texts = [column for column in columns if column.numbers is None]
    tables: list[Any] = []
    if numbers:
        header = ["column", "type", "gaps", "distinct", "zeros", "min", "25%", "median", "75%"]
        rows = [_tell_numbers(column) for column in numbers]
        tables.append(blocks.Table([*header, "max", "mean", "deviation", "unknown"], rows))
    if texts:
        header = ["column", "type", "gaps", "distinct", "unknown", "most frequent"]
        rows = [
            [*_list_cells(column), *_show_shares(column.unknown), tell.show_frequent(column)]
            for column in texts
        ]
        tables.append(blocks.Table(header, rows))
    return tables


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
    """Return pictures of all columns that can be drawn.

    Args:
      sides: {name of a data set: its statistics}. Each picture shows the same column of all data
        sets.
      names: the names of columns that all data sets have.
    """
    pictures = []
    for name in names:
        columns = {key: data.columns[name] for key, data in sides.items()}
        figure = _draw_column(name, columns)
        pictures += [figure] if figure is not None else []
    return blocks.Figures(pictures)


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
    # A value that is frequent in one data set may be rare in the other.
    column_shares = {
        key: _find_shares(column, counts[key], names, len(columns) > 1)
        for key, column in columns.items()
    }
    more = max(column.distinct for column in columns.values()) - len(names)
    note = f"{more:,} more values are not drawn." if more > 0 else ""
    return shares.draw_values(title, [tell.shorten(n, 40) for n in names], column_shares, note)


def _find_shares(
    column: facts.Column, counts: Mapping[str, int], names: Sequence[str], is_compared: bool
) -> list[float]:
    rare_names = [name for name in names if name not in counts]
    all_counts = dict(counts)
    if rare_names and is_compared:
        # Only the list of all values contains rare values.
        all_counts |= dict(column.list_frequent(column.distinct))
    return [all_counts.get(name, 0) / max(column.count, 1) for name in names]


def _draw_numbers(title: str, columns: Mapping[str, facts.Column]) -> figures.Figure:
    numbers = {key: c.numbers for key, c in columns.items() if c.numbers is not None}
    low, high, is_far = _find_ends(list(numbers.values()))
    size = _BINS
    if all(column.kind in (facts.INT, facts.BOOL) for column in columns.values()):
        low, high, size = shares.fit_whole(low, high, _BINS)
    is_time = any(column.kind == facts.TIME for column in columns.values())
    # Convert microseconds to days, because ticks in microseconds would be too long to read.
    scale = 1e6 * 86400 if is_time else 1.0
    bins, outside = {}, 0.0
    for key, side in numbers.items():
        buckets = metadata.count_buckets(side, size, low, high)
        bins[key] = [(a / scale, b / scale, n / side.count) for a, b, n in buckets]
        outside = max(outside, 1 - sum(share for *_, share in bins[key]))
    note = f"{outside:.2%} of the values lie outside." if is_far else ""
    note = f"Days since 1970. {note}".strip() if is_time else note
    return shares.draw_bins(title, bins, note)


def _find_ends(sides: Sequence[numbers_lib.Numbers]) -> tuple[float, float, bool]:
    """Return the range to draw, and True if a few numbers lie far outside of the range."""
    low = min(float(side.least) for side in sides)
    high = max(float(side.greatest) for side in sides)
    inner = [side.find_quantiles(shares.INNER) for side in sides]
    return shares.choose_ends(
        low, high, min(float(a) for a, _ in inner), max(float(b) for _, b in inner)
    )
