"""Writes a comparison as text for a terminal of any width, and as CSV.

print(comparison_text.describe(found, width=80))
comparison_text.write_csv("runs.csv", found)
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
    """Return all tables of a comparison, in lines of at most `width` if words allow it."""
    runs = list(found.runs)
    tables = [
        ("Runs", ["run", "state", "best step"], [_tell_state(found, name) for name in runs]),
        ("Settings that differ", ["setting", *runs], _list_settings(found)),
        (
            f"Metrics of the best checkpoints ({_BEST} marks the better one)",
            ["metric", *runs],
            [_write_row(metric, found, runs) for metric in found.main_metrics],
        ),
        ("Runs that differ by their seed alone", ["metric", "runs", "mean"], _list_groups(found)),
        (
            "Paired differences, seed by seed",
            ["metric", "second - first", "mean"],
            _list_pairs(found),
        ),
        ("Speed and size", ["what", *runs], _list_figures(found)),
    ]
    told = [f"{title}\n{lay_out([header, *rows], width)}" for title, header, rows in tables if rows]
    told += ["\n".join(lines)] if (lines := comparison.list_repeats(found)) else []
    told += [line] if (line := comparison.describe_rows(found)) else []
    return "\n\n".join(told)


def rank(found: comparison.Comparison, metric: str, width: int) -> str:
    """Return the runs in the order of a metric, the best first."""
    order = comparison.sort_by(found, metric)
    rows = []
    for place, name in enumerate(order, 1):
        run, told = found.runs[name], _tell_differences(found, name)
        rows.append(
            [str(place), name, summary.shorten(found.metrics[metric][name]), _tell_best(run), told]
        )
    header = ["", "run", metric, "best step", "settings unlike most"]
    lines = [lay_out([header, *rows], width)]
    absent = [name for name in found.runs if name not in order]
    if absent:
        lines.append(f"Without {metric}: {', '.join(absent)}.")
    lines += [line] if (line := comparison.describe_rows(found)) else []
    return "\n".join(lines)


def lay_out(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows as columns; if these are too wide, return each row as a block of lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Two spaces before the first column, and two between columns.
    if 2 + sum(widths) + 2 * (len(widths) - 1) <= width:
        return "\n".join(f"  {line}" for line in aligned.align_columns(rows))
    header, *others = rows
    label = max(map(len, header[1:]))
    blocks = []
    for row in others:
        blocks.append(f"  {row[0]}")
        blocks += [
            f"    {name:<{label}}  {value}"
            for name, value in zip(header[1:], row[1:], strict=True)
            if value
        ]
    return "\n".join(blocks)


def write_csv(path: str, found: comparison.Comparison) -> None:
    """Write a line for each run: its folder, its state, all figures, metrics and settings."""
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


def _tell_state(found: comparison.Comparison, name: str) -> list[str]:
    run = found.runs[name]
    return [
        name,
        run.state[0],
        _tell_best(run),
    ]


def _tell_best(run: record.Run) -> str:
    return "none" if run.best_step is None else str(run.best_step)


def _list_settings(found: comparison.Comparison) -> list[list[str]]:
    cuts = {
        setting: flat_settings.cut_apart(row, _LONGEST) for setting, row in found.differing.items()
    }
    return [[setting, *(row[name] for name in found.runs)] for setting, row in cuts.items()]


def _write_row(metric: str, found: comparison.Comparison, runs: Sequence[str]) -> list[str]:
    best = found.best_of(metric)
    values = found.metrics[metric]
    return [
        metric,
        *(summary.shorten(values.get(name, math.nan)) + _BEST * (name in best) for name in runs),
    ]


def _list_groups(found: comparison.Comparison) -> list[list[str]]:
    return [
        [
            one.metric,
            comparison.describe_runs(one),
            _write_spread(one.mean, one.error),
        ]
        for one in found.groups
    ]


def _list_pairs(found: comparison.Comparison) -> list[list[str]]:
    return [
        [
            one.metric,
            f"({', '.join(one.second)}) - ({', '.join(one.first)})"
            + comparison.describe_left_out(one),
            "+" * (one.difference >= 0) + _write_spread(one.difference, one.error),
        ]
        for one in found.pairs
    ]


def _write_spread(mean: float, error: float) -> str:
    return f"{summary.shorten(mean)} ± {summary.shorten(error)}"


def _list_figures(found: comparison.Comparison) -> list[list[str]]:
    return [
        [what.replace("_", " "), *(_write_number(values, name) for name in found.runs)]
        for what, values in found.figures.items()
    ]


def _write_number(values: Mapping[str, float], name: str) -> str:
    value = values.get(name)
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _tell_differences(found: comparison.Comparison, name: str) -> str:
    """Return the settings in which a run differs from most others."""
    told = []
    for setting, row in found.differing.items():
        # If values are equally frequent, the value of the first run counts as usual.
        ((usual, _),) = collections.Counter(row.values()).most_common(1)
        if row[name] not in (usual, flat_settings.ABSENT):
            told.append(f"{setting}={flat_settings.cut_apart(row, _LONGEST)[name]}")
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def iterate_names(folders: Sequence[str]) -> Iterator[str]:
    """Yield a short name for each folder: its last part, or the whole path if that repeats."""
    own = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
    for folder, name in zip(folders, own, strict=True):
        # Two runs named "a" in different folders need their paths.
        yield name if own.count(name) == 1 else folder
