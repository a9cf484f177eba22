"""Writes the curves of an evaluation to files: a picture for each task, and CSV tables.

curve_files.write_curves("runs/a/curves/eval_step_500", counted)
# income.svg, income_thresholds.csv, income_reliability.csv, income_histogram.csv, ..._confusion.csv
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from mtl import deferred
from mtl.deferred import tf
from mtl.files import atomic, csv_text
from mtl.tools.drawing import figures, line_charts, matrices

with deferred.imports():
    from mtl.monitoring import curves

_Lines = dict[str, list[tuple[float, float]]]


def write_curves(
    folder: str, counted: Mapping[str, curves.Counted], names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Write the curves of each task, such as ROC, to files.

    Every CSV file has a header; its column `class` contains the class that a row belongs to.

    Args:
      folder: the folder for the files, which is created if it is missing.
      counted: {task: the histograms of an evaluation from which its curves are drawn}.
      names: {task: the names of its classes}.

    Returns:
      The paths of the written files.
    """
    tf.io.gfile.makedirs(folder)
    paths = []
    for task, sums in counted.items():
        files = {".svg": _draw_curves(task, sums, names[task]), **_tabulate_sums(sums, names[task])}
        for ending, content in files.items():
            path = os.path.join(folder, f"{task}{ending}")
            atomic.write(path, content)
            paths.append(path)
    return paths


def _tabulate_sums(sums: curves.Counted, names: Sequence[str]) -> dict[str, str]:
    """Return {end of the file's name: text of the CSV file}."""
    tables: dict[str, tuple[Sequence[str], Callable[[int], Sequence[Sequence[float]]]]] = {
        "_thresholds.csv": (curves.Threshold._fields, sums.trace_thresholds),
        "_reliability.csv": (curves.Share._fields, sums.bin_shares),
        "_histogram.csv": (curves.Bar._fields, sums.count_predictions),
    }
    files = {
        ending: _write_csv(
            ["class", *header],
            ([name, *row] for number, name in enumerate(sums.names) for row in find(number)),
        )
        for ending, (header, find) in tables.items()
    }
    if sums.confusion is not None:
        pairs = itertools.product(names, names)
        rows = ([*pair, weight] for pair, weight in zip(pairs, sums.confusion.flat, strict=True))
        files["_confusion.csv"] = _write_csv(["true", "predicted", "weight"], rows)
    return files


def _write_csv(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    return csv_text.write([header, *([_show_cell(cell) for cell in row] for row in rows)])


def _show_cell(cell: str | float) -> str:
    # Nine digits restore every float32 exactly.
    return cell if isinstance(cell, str) else f"{cell:.9g}"


def _draw_curves(task: str, sums: curves.Counted, names: Sequence[str]) -> str:
    """Return a picture of all curves of a task."""
    roc, precision, reliability, bars = _Lines(), _Lines(), _Lines(), _Lines()
    for number, name in enumerate(sums.names):
        roc[name] = sums.trace_roc(number)
        precision[name] = [(t.recall, t.precision) for t in sums.trace_thresholds(number)]
        reliability[name] = sums.trace_reliability(number)
        bars |= _list_bars(sums, number)
    charts = [
        ("ROC", roc, "false positive rate", "recall", True, True),
        ("precision by recall", precision, "recall", "precision", True, False),
        ("reliability", reliability, "probability", "share of rows", True, True),
        ("histogram", bars, "probability", "weight of rows", False, False),
    ]
    panels = [
        line_charts.draw(
            f"{task}, {title}", finite, across, up, is_share=is_share, diagonal=diagonal
        )
        for title, lines, across, up, is_share, diagonal in charts
        if (finite := _keep_finite(lines))
    ]
    if sums.confusion is not None:
        # The maximum avoids a division by 0: a class without rows gets shares of 0.
        totals = np.maximum(sums.confusion.sum(axis=1, keepdims=True), 1e-12)
        title = f"{task}, confusion: shares of the rows of each true class"
        cells = sums.confusion / totals
        panels.append(matrices.draw(title, names, names, cells, "true", "predicted"))
    return figures.lay_out(f"{task}: curves of an evaluation", panels)


def _list_bars(sums: curves.Counted, number: int) -> _Lines:
    """Return the histogram of a class; for a binary task, of positives and negatives separately."""
    bars = sums.count_predictions(number)
    if len(sums.names) > 1:
        heights = {sums.names[number]: [bar.positives + bar.negatives for bar in bars]}
    else:
        heights = {
            "positives": [bar.positives for bar in bars],
            "negatives": [bar.negatives for bar in bars],
        }
    edges = [(bar.low, bar.high) for bar in bars]
    return {
        # Two points for each bar give the line a horizontal step.
        name: [(x, y) for ends, y in zip(edges, of_bars, strict=True) for x in ends]
        for name, of_bars in heights.items()
    }


def _keep_finite(lines: _Lines) -> _Lines:
    """Drop NaN and infinite points from the lines, and lines that have no other points."""
    finite = {n: [p for p in points if np.isfinite(p).all()] for n, points in lines.items()}
    return {name: points for name, points in finite.items() if points}
