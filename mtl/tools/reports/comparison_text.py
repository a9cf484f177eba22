"""Writes a comparison of runs as text for a terminal, and as a CSV file.

print(comparison_text.describe(comparison, width=80))
comparison_text.write_csv("runs.csv", comparison)
"""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence

from mtl import aligned
from mtl.checkpoints import flat_settings
from mtl.files import atomic, csv_text
from mtl.monitoring import summary
from mtl.tools.reports import comparison, record

_LONGEST = 48
_BEST = "*"


def describe(result: comparison.Comparison, width: int) -> str:
    """Return a text with several tables that compare runs.

    Args:
      result: the comparison of the runs.
      width: the largest number of characters in a line of a table; a wider table becomes a block of
        lines for each row.
    """
    runs = list(result.runs)
    tables = [
        ("Runs", ["run", "state", "best step"], [_tell_state(result, name) for name in runs]),
        ("Settings that differ", ["setting", *runs], _list_settings(result)),
        (
            f"Metrics of the best checkpoints ({_BEST} marks the best value)",
            ["metric", *runs],
            [_write_row(metric, result, runs) for metric in result.main_metrics],
        ),
        ("Runs that differ only by their seed", ["metric", "runs", "mean"], _list_groups(result)),
        (
            "Paired differences, seed by seed",
            ["metric", "second - first", "mean"],
            _list_pairs(result),
        ),
        ("Speed and size", ["what", *runs], _list_figures(result)),
    ]
    parts = [
        f"{title}\n{lay_out([header, *rows], width)}" for title, header, rows in tables if rows
    ]
    parts += ["\n".join(lines)] if (lines := comparison.list_repeats(result)) else []
    losses = comparison.describe_losses(result, result.main_metrics)
    parts += filter(None, [comparison.describe_rows(result), losses])
    return "\n\n".join(parts)


def rank(result: comparison.Comparison, metric: str, width: int) -> str:
    """Return a table of the runs as text, sorted by a metric from the best run to the worst.

    Args:
      result: the comparison of the runs.
      metric: the name of the metric.
      width: the largest number of characters in a line of a table; a wider table becomes a block of
        lines for each row.

    Raises:
      UserError: no run has the metric, or neither higher nor lower values are better.
    """
    order = comparison.sort_by(result, metric)
    rows = []
    for place, name in enumerate(order, 1):
        run, settings = result.runs[name], _tell_differences(result, name)
        rows.append(
            [
                str(place),
                name,
                summary.shorten(result.metrics[metric][name]),
                _tell_best(run),
                settings,
            ]
        )
    header = ["", "run", metric, "best step", "settings unlike most"]
    lines = [lay_out([header, *rows], width)]
    absent = [name for name in result.runs if name not in order]
    if absent:
        lines.append(f"These runs have no {metric}: {', '.join(absent)}.")
    losses = comparison.describe_losses(result, [metric])
    lines += filter(None, [comparison.describe_rows(result), losses])
    return "\n".join(lines)


def lay_out(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows as a table, or as a block of lines for each row if the table is too wide.

    Args:
      rows: the header, and then the rows of cells.
      width: the largest number of characters in a line of the table.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The table has two spaces before the first column and between columns.
    if 2 + sum(widths) + 2 * (len(widths) - 1) <= width:
        return "\n".join(f"  {line}" for line in aligned.align_columns(rows))
    header, *body = rows
    label = max(map(len, header[1:]))
    blocks = []
    for row in body:
        blocks.append(f"  {row[0]}")
        blocks += [
            f"    {name:<{label}}  {value}"
            for name, value in zip(header[1:], row[1:], strict=True)
            if value
        ]
    return "\n".join(blocks)


def write_csv(path: str, result: comparison.Comparison) -> None:
    """Write a CSV file with a header, and a row for each run.

    The columns are the name, folder, state, last step and best step of the run, its figures, its
    metrics, and the settings that differ, as `setting: <name>`. If a run lacks a number, the cell
    of the number is empty.

    Args:
      path: the path of the file.
      result: the comparison of the runs.
    """
    differing = [f"setting: {setting}" for setting in result.differing]
    fixed = ["run", "model_dir", "state", "step", "best_step"]
    rows: list[list] = [[*fixed, *result.figures, *result.metrics, *differing]]
    for name, run in result.runs.items():
        state, _ = run.state
        cells = [name, run.model_dir, state, run.step, run.best_step]
        cells += [_write_exactly(values, name) for values in (*result.figures.values(),)]
        cells += [_write_exactly(values, name) for values in result.metrics.values()]
        rows.append([*cells, *(row[name] for row in result.differing.values())])
    atomic.write(path, csv_text.write(rows))


def _write_exactly(values: Mapping[str, float], name: str) -> str:
    value = values.get(name, math.nan)
    return "" if math.isnan(value) else summary.exactly(value)


def _tell_state(result: comparison.Comparison, name: str) -> list[str]:
    run = result.runs[name]
    return [
        name,
        run.state[0],
        _tell_best(run),
    ]


def _tell_best(run: record.Run) -> str:
    return "none" if run.best_step is None else str(run.best_step)


def _list_settings(result: comparison.Comparison) -> list[list[str]]:
    cuts = {
        setting: flat_settings.cut_apart(row, _LONGEST) for setting, row in result.differing.items()
    }
    return [[setting, *(row[name] for name in result.runs)] for setting, row in cuts.items()]


def _write_row(metric: str, result: comparison.Comparison, runs: Sequence[str]) -> list[str]:
    best = result.best_of(metric)
    values = result.metrics[metric]
    return [
        metric,
        *(summary.shorten(values.get(name, math.nan)) + _BEST * (name in best) for name in runs),
    ]


def _list_groups(result: comparison.Comparison) -> list[list[str]]:
    return [
        [
            group.metric,
            comparison.describe_runs(group),
            _write_spread(group.mean, group.error),
        ]
        for group in result.groups
    ]


def _list_pairs(result: comparison.Comparison) -> list[list[str]]:
    return [
        [
            pair.metric,
            f"({', '.join(pair.second)}) - ({', '.join(pair.first)})"
            + comparison.describe_left_out(pair),
            "+" * (pair.difference >= 0) + _write_spread(pair.difference, pair.error),
        ]
        for pair in result.pairs
    ]


def _write_spread(mean: float, error: float) -> str:
    return f"{summary.shorten(mean)} ± {summary.shorten(error)}"


def _list_figures(result: comparison.Comparison) -> list[list[str]]:
    return [
        [figure.replace("_", " "), *(_write_number(values, name) for name in result.runs)]
        for figure, values in result.figures.items()
    ]


def _write_number(values: Mapping[str, float], name: str) -> str:
    value = values.get(name)
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _tell_differences(result: comparison.Comparison, name: str) -> str:
    """Return the settings in which a run differs from most other runs, as text."""
    texts = []
    for setting, row in result.differing.items():
        # If several values are equally frequent, `most_common` returns the value of the first run.
        ((usual, _),) = collections.Counter(row.values()).most_common(1)
        if row[name] not in (usual, flat_settings.ABSENT):
            texts.append(f"{setting}={flat_settings.cut_apart(row, _LONGEST)[name]}")
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def iterate_names(folders: Sequence[str]) -> Iterator[str]:
    """Return an iterator over short names for the folders of runs.

    Args:
      folders: the paths of the runs' folders.

    Yields:
      The last part of the path of each folder, or the whole path if another folder has the same
      last part.
    """
    names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        # If two folders have the same name, only their paths tell them apart.
        yield name if names.count(name) == 1 else folder
