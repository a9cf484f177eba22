"""Writes an HTML page about a draft: a picture, the gaps and the use of each column, and doubts.

page.write("visits.html", plan, "visits.gin", ["python -m launch.train --gin_file visits.gin"])
"""

import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.files import storage
from mtl.tools.drafting import columns, dates, gin_text, plans, weights
from mtl.tools.drafting import inputs as inputs_lib
from mtl.tools.drawing import figures, shares
from mtl.tools.reports import blocks, report

_BINS, _MOST_VALUES = 30, 10
# The largest number of columns that the page shows before the reader clicks.
_MOST_OPEN = 30
# The page does not show expected shares of unknown values up to this number.
_NO_SHARE = 1e-4
_START = datetime.datetime(1970, 1, 1)


def write(path: str, plan: plans.Plan, out: str, commands: Sequence[str]) -> None:
    """Write the page of a draft.

    Args:
      path: the path of the HTML file.
      plan: the plan that the page shows.
      out: the gin file of the draft, which the page names.
      commands: shell commands that train and use the model.

    Raises:
      UserError: the file cannot be written.
    """
    with storage.writing("--page", "a file", path):
        report.write(path, make_page(plan, out, commands))


def make_page(plan: plans.Plan, out: str, commands: Sequence[str]) -> blocks.Page:
    """Return the page of a draft; see `write`."""
    labels = [task.label for task in plan.tasks]
    doubts = [blocks.Text(doubt) for doubt in plan.doubts]
    sections = [
        blocks.Section("doubts", "Look at", doubts),
        blocks.Section("tasks", "Tasks", [_tell_tasks(plan), _draw_columns(plan, labels)]),
        blocks.Section("inputs", "Inputs", _tell_columns(plan, plan.used)),
        blocks.Section("left-out", "Left out", _tell_columns(plan, plan.left_out)),
        blocks.Section("next", "Next", [blocks.Commands([("", line) for line in commands])]),
    ]
    return blocks.Page(
        title=f"Draft of {out}",
        state=f"{len(doubts)} doubts" if doubts else "no doubts",
        mood="warning" if doubts else "good",
        lead=_write_lead(plan, out),
        sections=[section for section in sections if section.blocks],
        left_out=[],
    )


def _write_lead(plan: plans.Plan, out: str) -> list[str]:
    table = plan.table
    files = ", ".join(list(table.rows_of)[:3])
    lead = [
        f"{files}: {table.rows:,} rows, {len(table.facts):,} columns, {len(plan.used):,} of them "
        "inputs.",
        f"{out} trains {plan.train_steps:,} steps of {plan.batch_size:,} rows.",
    ]
    if not table.is_whole:
        lead.append(f"Pictures and the value alone are of {len(table.places):,} random rows.")
    return lead


def _tell_tasks(plan: plans.Plan) -> blocks.Table:
    rows = [
        [
            task.name,
            gin_text.show_line(task.label),
            f"heads.{task.head}",
            _show_gaps(plan, task.label),
            task.why,
        ]
        for task in plan.tasks
    ]
    return blocks.Table(["task", "column", "head", "missing", "decision"], rows)


def _tell_columns(plan: plans.Plan, chosen: Sequence[inputs_lib.Input]) -> list[Any]:
    """Return a table and pictures of columns, sorted by how well they predict the first task."""
    uses = {use.name: use for use in chosen}
    ranked, unknown = plan.rank_columns(uses), expect_unknown(plan)
    parts = [
        [_list_columns(plan, [uses[name] for name in names], unknown), _draw_columns(plan, names)]
        for names in (ranked[:_MOST_OPEN], ranked[_MOST_OPEN:])
        if names
    ]
    more = f"{len(ranked) - _MOST_OPEN:,} more columns"
    return [*itertools.chain(*parts[:1]), *(blocks.Fold(more, part) for part in parts[1:])]


def _list_columns(
    plan: plans.Plan, chosen: Sequence[inputs_lib.Input], unknown: Mapping[str, float]
) -> blocks.Table:
    metrics = [f"{task.metric} alone: {task.label}" for task in plan.tasks]
    header = ["column", "missing", *(["unknown"] if unknown else []), *metrics, "decision"]
    rows = []
    for use in chosen:
        values = [plan.alone[use.name][task.name] for task in plan.tasks]
        alone = [blocks.Right(f"{value:.3f}" if np.isfinite(value) else "") for value in values]
        rare = [blocks.Right(_show_share(unknown.get(use.name, 0.0)))] if unknown else []
        cells = [gin_text.show_line(use.name), _show_gaps(plan, use.name), *rare, *alone, use.why]
        rows.append(cells)
    return blocks.Table(header, rows)


def expect_unknown(plan: plans.Plan) -> dict[str, float]:
    """Return {column: the expected share of its held-out values that are unknown to the model}.

    The model learns a vector for a category only if at least two training rows have the category.
    Suppose that a share s of the rows is held out at random, and that one of the n rows of a
    category is held out. The model does not know the category if at most one of its other n - 1
    rows is a training row. With the share s of held-out rows, the probability is s^(n-1) + (n-1)
    s^(n-2) (1-s).

    Returns:
      The expected share of unknown values, in [0, 1], for each column of categories; {} if no rows
      are held out at random.
    """
    holdout = plan.holdout
    share = sum(holdout.shares.values())
    if not share or not holdout.is_drawn or holdout.key or holdout.folds:
        return {}
    facts = {use.name: plan.table.facts[use.name] for use in plan.used if _is_category(use)}
    return {
        name: _expect_unknown(column, share)
        for name, column in facts.items()
        if column.present and column.is_counted
    }


def _is_category(use: inputs_lib.Input) -> bool:
    """Return True if the values of a column are categories; False for lists of categories."""
    return "categories" in use.parts and not use.dtype.startswith("list")


def _expect_unknown(facts: columns.Facts, share: float) -> float:
    """Return the expected share of held-out values that a vocabulary lacks.

    Args:
      facts: the facts of a column of categories.
      share: the share of held-out rows.
    """
    rows = np.array(list(facts.values.values()), np.float64)
    none, one = share ** (rows - 1), (rows - 1) * share ** np.maximum(rows - 2, 0) * (1 - share)
    is_broken = list(map(inputs_lib.has_break, facts.values))
    return float((rows * np.where(is_broken, 1.0, none + one)).sum() / rows.sum())


def _show_gaps(plan: plans.Plan, name: str) -> Any:
    facts = plan.table.facts[name]
    return blocks.Right(_show_share(facts.missing / facts.rows))


def _show_share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "< 0.1%" if share > _NO_SHARE else ""


def _draw_columns(plan: plans.Plan, names: Sequence[str]) -> blocks.Figures:
    """Return a picture of each column that holds a value."""
    uses = {use.name: use for use in plan.inputs}
    drawn = [_draw_column(plan, name, uses.get(name)) for name in names]
    return blocks.Figures([figure for figure in drawn if figure is not None])


def _draw_column(
    plan: plans.Plan, name: str, use: inputs_lib.Input | None
) -> figures.Figure | None:
    """Return the picture of a column; `use` is None for a task."""
    facts, title = plan.table.facts[name], gin_text.show_line(name)
    if not facts.present:
        return None
    if use is not None and use.times is not None and use.times.form is not None:
        return _draw_times(title, facts, use.times.form)
    if facts.is_number and facts.distinct > _MOST_VALUES:
        numbers = plan.table.numbers(name)
        return _draw_numbers(title, numbers[np.isfinite(numbers)], facts.kind == "int")
    texts = pc.drop_null(plan.table.texts(name))
    if use is not None and use.dtype.startswith("list"):
        return _draw_texts(title, _split_lists(plan, use, texts), 0)
    return _draw_texts(title, texts, facts.distinct)


def _split_lists(
    plan: plans.Plan, use: inputs_lib.Input, texts: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the values of all lists, without their weights."""
    dialect = plan.table.dialect
    # `tables` and `objects` join the values of stored lists by this delimiter.
    is_joined = dialect.is_arrow or use.name in dialect.lists
    delimiter = "|" if is_joined else plan.list_delimiter
    values = pc.list_flatten(pc.split_pattern(texts, delimiter))
    if use.dtype.endswith("with weights"):
        values = pc.replace_substring_regex(
            values, f"{weights.DELIMITER}[^{weights.DELIMITER}]*$", ""
        )
    return pc.filter(values, pc.not_equal(values, ""))


def _draw_times(title: str, facts: columns.Facts, form: str) -> figures.Figure | None:
    texts_of_times = list(facts.values)
    moments = dates.read_times(texts_of_times, form)
    counts = [facts.values[text] for text in texts_of_times]
    pairs = [(time - _START, n) for time, n in zip(moments, counts, strict=True) if time]
    if not pairs:
        return None
    days = np.array([time / datetime.timedelta(days=1) for time, _ in pairs])
    return _draw_numbers(title, days, False, np.array([n for _, n in pairs]), "Days since 1970.")


def _draw_numbers(
    title: str,
    numbers: np.ndarray,
    is_whole: bool,
    counts: np.ndarray | None = None,
    note: str = "",
) -> figures.Figure | None:
    """Return a histogram.

    Args:
      title: the title of the picture.
      numbers: the finite numbers of a column, float64 [N].
      is_whole: True if all numbers are whole.
      counts: the number of rows of each number [N]; None if each number has one row.
      note: a line below the picture.
    """
    if not len(numbers):
        return None
    ends = [float(numbers.min()), float(numbers.max())]
    low, high, is_far = shares.choose_ends(*ends, *map(float, np.quantile(numbers, shares.INNER)))
    size = _BINS
    if is_whole:
        low, high, size = shares.fit_whole(low, high, _BINS)
    elif low == high:
        low, high, size = low - 0.5, high + 0.5, 1
    heights, edges = np.histogram(numbers, size, (low, high), weights=counts)
    total = len(numbers) if counts is None else counts.sum()
    outside = 1 - heights.sum() / total
    note = f"{note} {outside:.2%} of the values lie outside.".strip() if is_far else note
    bins = list(
        zip(edges[:-1].tolist(), edges[1:].tolist(), (heights / total).tolist(), strict=True)
    )
    return shares.draw_bins(title, {"rows": bins}, note)


def _draw_texts(title: str, values: pa.ChunkedArray, distinct: int) -> figures.Figure | None:
    """Return bars of the most frequent values.

    Args:
      title: the title of the picture.
      values: the texts of a column, [N], without nulls.
      distinct: the number of distinct values in the table, of which `values` may be a sample; 0 if
        unknown.
    """
    counted = pc.value_counts(values.combine_chunks())
    counts: Mapping[str, int] = {one["values"]: one["counts"] for one in counted.to_pylist()}
    if not counts:
        return None
    names = sorted(counts, key=lambda name: (-counts[name], name))[:_MOST_VALUES]
    more = max(distinct, len(counts)) - len(names)
    note = f"{more:,} more values are not drawn." if more > 0 else ""
    shown = [gin_text.show_line(name) for name in names]
    bars = {"rows": [counts[name] / len(values) for name in names]}
    return shares.draw_values(title, shown, bars, note)
