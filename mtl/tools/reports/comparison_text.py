"""Writes a comparison as text for a terminal of any width, and as CSV.

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


def describe(found: comparison.Comparison, width: int) -> str:
    """Return all tables of a comparison as text.

    Args:
      found: the comparison.
      width: the largest number of letters in a line; only long words may exceed it.
    """
    runs = list(found.runs)
    tables = [
        ("Runs", ["run", "state", "best step"], [_tell_state(found, name) for name in runs]),
        ("Settings that differ", ["setting", *runs], _list_settings(found)),
        (
            f"Metrics of the best checkpoints ({_BEST} marks the best value)",
            ["metric", *runs],
            [_write_row(metric, found, runs) for metric in found.main_metrics],
        ),
        ("Runs that differ only by their seed", ["metric", "runs", "mean"], _list_groups(found)),
        (
            "Paired differences, seed by seed",
            ["metric", "second - first", "mean"],
            _list_pairs(found),
        ),
        ("Speed and size", ["what", *runs], _list_figures(found)),
    ]
    parts = [
        f"{title}\n{lay_out([header, *rows], width)}" for title, header, rows in tables if rows
    ]
    parts += ["\n".join(lines)] if (lines := comparison.list_repeats(found)) else []
    parts += [line] if (line := comparison.describe_rows(found)) else []
    return "\n\n".join(parts)


def rank(found: comparison.Comparison, metric: str, width: int) -> str:
    """Return a table of the runs as text, sorted by a metric, the best run first.

    Args:
      found: the comparison.
      metric: the name of the metric.
      width: the largest number of letters in a line; only long words may exceed it.

    Raises:
      UserError: all runs lack the metric, or neither direction of it is better.
    """
    order = comparison.sort_by(found, metric)
    rows = []
    for place, name in enumerate(order, 1):
        run, settings = found.runs[name], _tell_differences(found, name)
        rows.append(
            [
                str(place),
                name,
                summary.shorten(found.metrics[metric][name]),
                _tell_best(run),
                settings,
            ]
        )
    header = ["", "run", metric, "best step", "settings unlike most"]
    lines = [lay_out([header, *rows], width)]
    absent = [name for name in found.runs if name not in order]
    if absent:
        lines.append(f"These runs have no {metric}: {', '.join(absent)}.")
    lines += [line] if (line := comparison.describe_rows(found)) else []
    return "\n".join(lines)


def lay_out(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows as text in columns, or as a block of lines for each row if columns are too wide.

    Args:
      rows: the cells, with the header first.
      width: the largest width of the columns together, in letters.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # There are two spaces before the first column, and two between columns.
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


def write_csv(path: str, found: comparison.Comparison) -> None:
    """Write a CSV file with a line for each run: folder, state, figures, metrics and settings."""
    differing = [f"setting: {setting}" for setting in found.differing]
    fixed = ["run", "model_dir", "state", "step", "best_step"]
    rows: list[list] = [[*fixed, *found.figures, *found.metrics, *differing]]
    for name, run in found.runs.items():
        state, _ = run.state
        cells = [name, run.model_dir, state, run.step, run.best_step]
        cells += [_write_exactly(values, name) for values in (*found.figures.values(),)]
        cells += [_write_exactly(values, name) for values in found.metrics.values()]
        rows.append([*cells, *(row[name] for row in found.differing.values())])
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
    """Return the settings in which a run differs from most others."""
    texts = []
    for setting, row in result.differing.items():
        # If several values are equally frequent, the value of the first run counts as usual.
        ((usual, _),) = collections.Counter(row.values()).most_common(1)
        if row[name] not in (usual, flat_settings.ABSENT):
            texts.append(f"{setting}={flat_settings.cut_apart(row, _LONGEST)[name]}")
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def iterate_names(folders: Sequence[str]) -> Iterator[str]:
    """Yield a name for each folder: its last part, or the whole path if folders share this part."""
    names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        # Two runs named "a" in different folders need their paths.
        yield name if names.count(name) == 1 else folder
