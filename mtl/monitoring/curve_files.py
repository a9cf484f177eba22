"""Writes the curves of an evaluation to files: a picture for each task, and its numbers as CSV.

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
from mtl.monitoring import chart

with deferred.imports():
    from mtl.monitoring import curves

_Lines = dict[str, list[tuple[float, float]]]


def write_curves(
    folder: str, counted: Mapping[str, curves.Counted], names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Write the files of each task, {task: its sums} and {task: its classes}; return their paths.

    Every CSV has a header; the column `class` names the class of a curve.
    """
    tf.io.gfile.makedirs(folder)
    written = []
    for task, sums in counted.items():
        files = {".svg": _draw(task, sums, names[task]), **_tabulate(sums, names[task])}
        for ending, content in files.items():
            path = os.path.join(folder, f"{task}{ending}")
            atomic.write(path, content)
            written.append(path)
    return written


def _tabulate(sums: curves.Counted, names: Sequence[str]) -> dict[str, str]:
    """Return {ending: CSV}."""
    tables: dict[str, tuple[Sequence[str], Callable[[int], Sequence[Sequence[float]]]]] = {
        "_thresholds.csv": (curves.Threshold._fields, sums.trace_thresholds),
        "_reliability.csv": (curves.Share._fields, sums.bin_shares),
        "_histogram.csv": (curves.Bar._fields, sums.count_predictions),
    }
    found = {
        ending: _write_csv(
            ["class", *header],
            ([name, *row] for number, name in enumerate(sums.names) for row in find(number)),
        )
        for ending, (header, find) in tables.items()
    }
    if sums.confusion is not None:
        pairs = itertools.product(names, names)
        rows = ([*pair, weight] for pair, weight in zip(pairs, sums.confusion.flat, strict=True))
        found["_confusion.csv"] = _write_csv(["true", "predicted", "weight"], rows)
    return found


def _write_csv(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    return csv_text.write([header, *([_show(cell) for cell in row] for row in rows)])


def _show(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.9g}"


def _draw(task: str, sums: curves.Counted, names: Sequence[str]) -> str:
    """Return one picture of all curves."""
    roc, precision, bars = _Lines(), _Lines(), _Lines()
    shares = _Lines(perfect=[(0.0, 0.0), (1.0, 1.0)])
    for number, name in enumerate(sums.names):
        traced = sums.trace_thresholds(number)
        roc[name] = [(0.0, 0.0), *((one.false_positive_rate, one.recall) for one in traced)]
        precision[name] = [(one.recall, one.precision) for one in traced]
        shares[name] = sums.trace_reliability(number)
        bars |= _list_bars(sums, number)
    titles = {
        f"{task}, ROC: recall by false positive rate": roc,
        f"{task}, precision by recall": precision,
        f"{task}, reliability: share of rows by probability": shares,
        f"{task}, histogram: weight of rows by probability": bars,
    }
    panels = [chart.draw_lines(title, found) for title, found in _keep_finite(titles).items()]
    if sums.confusion is not None:
        totals = np.maximum(sums.confusion.sum(axis=1, keepdims=True), 1e-12)
        title = f"{task}, confusion: share of each true class (down) by predicted class (across)"
        panels.append(chart.draw_shares(title, names, sums.confusion / totals))
    return chart.draw_page(panels)


def _list_bars(sums: curves.Counted, number: int) -> _Lines:
    """Return the histogram of a class; for a binary task, split into positives and negatives."""
    bars = [((bar.low + bar.high) / 2, bar) for bar in sums.count_predictions(number)]
    if len(sums.names) > 1:
        return {sums.names[number]: [(x, bar.positives + bar.negatives) for x, bar in bars]}
    return {
        "positives": [(x, bar.positives) for x, bar in bars],
        "negatives": [(x, bar.negatives) for x, bar in bars],
    }


def _keep_finite(panels: Mapping[str, _Lines]) -> dict[str, _Lines]:
    """Return the panels without undefined points and empty lines."""
    found = {}
    for title, lines in panels.items():
        kept = {n: [p for p in points if np.isfinite(p).all()] for n, points in lines.items()}
        found[title] = {name: points for name, points in kept.items() if points}
    return {title: lines for title, lines in found.items() if lines}
