"""Writes an explanation as CSV with all digits: one file for each part.

tables.write_tables("runs/adult/explained", found)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf
from mtl.files import atomic, csv_text
from mtl.monitoring import summary
from mtl.tools.explaining import explanation, inputs

NAMES = ("importance.csv", "attributions.csv", "dependence.csv", "gradients.csv")


def write_tables(folder: str, found: explanation.Explanation) -> list[str]:
    """Write all tables with rows to a folder; return their paths.

    If a table has no rows now, the file of an earlier explanation is removed.
    """
    made = (list_importance, list_attributions, list_dependence, list_gradients)
    written = []
    for name, make in zip(NAMES, made, strict=True):
        header, *lines = make(found)
        path = os.path.join(folder, name)
        if lines:
            written.append(path)
            atomic.write(path, csv_text.write([header, *map(_tell, lines)]))
        # An old file would look like a part of this explanation.
        elif tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)
    return written


def _tell(line: Sequence[Any]) -> list[str]:
    return [_write_cell(value) for value in line]


def _write_cell(value: Any) -> str:
    """Return a number with all digits; an undefined number is an empty cell."""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else summary.exactly(value)
    return str(value)


def list_importance(found: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each input and metric."""
    yield ("input", "task", "metric", "value", "worse_by", "standard_error", "low", "high")
    one = found.importance
    if one is None:
        return
    for i, each in enumerate(one.inputs):
        for m, metric in enumerate(one.metrics):
            numbers = [table[i, m] for table in (one.drop, one.error, one.low, one.high)]
            yield (each.name, metric.task, metric.name, one.base[m], *numbers)


def list_attributions(found: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each column of each explained prediction."""
    header = ("row", "task", "output", "scale", "value", "baseline", "column", "fields")
    yield (*header, "attribution", "residual")
    for one in found.attributions:
        for column, value in one.columns.items():
            fields = " ".join(found.fields[column])
            about = (one.row, one.task, one.name, one.scale, one.value, one.start)
            yield (*about, column, fields, value, one.residual)


def list_dependence(found: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each value of a field, task and class."""
    yield ("field", "value", "rows", "task", "output", "kind", "mean")
    for one in found.dependences:
        for place, value in enumerate(one.grid):
            for task, means in one.means.items():
                names, kind = found.outputs[task]
                # Texts come as bytes. Numbers keep all digits.
                told = inputs.tell_value(value) if one.grid.dtype.kind in "OSU" else value
                for name, mean in zip(names, means[place], strict=True):
                    yield (one.field, told, one.counts[place], task, name, kind, mean)


def list_gradients(found: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each place and pair of tasks."""
    yield ("place", "numbers", "task", "other", "cosine", "standard_error", "batches")
    one = found.similarity
    if one is None:
        return
    for s, place in enumerate(one.places):
        for a, task in enumerate(one.tasks):
            # Each pair once: the matrix is symmetric, and its diagonal is 1.
            for b, other in enumerate(one.tasks[:a]):
                numbers = (one.mean[s, a, b], one.error[s, a, b], one.counts[s, a, b])
                yield (place, one.sizes[s], other, task, *numbers)
