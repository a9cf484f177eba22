"""Writes an explanation as CSV files with all digits, one file for each part.

tables.write_tables("runs/adult/explained", explanation)
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


def write_tables(folder: str, explained: explanation.Explanation) -> list[str]:
    """Write a CSV file for each table that has rows, and remove old files of other tables.

    Args:
      folder: the folder for the files.
      explained: the explanation to write.

    Returns:
      The paths of the files.
    """
    listings = (list_importance, list_attributions, list_dependence, list_gradients)
    paths = []
    for name, make in zip(NAMES, listings, strict=True):
        header, *lines = make(explained)
        path = os.path.join(folder, name)
        if lines:
            paths.append(path)
            atomic.write(path, csv_text.write([header, *map(_tell, lines)]))
        # Remove the file of an earlier explanation, which would look like a
        # part of this explanation.
        elif tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)
    return paths


def _tell(line: Sequence[Any]) -> list[str]:
    return [_write_cell(value) for value in line]


def _write_cell(value: Any) -> str:
    """Return a value as text: a number with all digits, NaN as an empty text."""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else summary.exactly(value)
    return str(value)


def list_importance(explained: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each input and each metric.

    Args:
      explained: the explanation to write.

    Yields:
      The table as lists of cells: first the header, then each line.
    """
    yield ("input", "task", "metric", "value", "worse_by", "standard_error", "low", "high")
    result = explained.importance
    if result is None:
        return
    for i, entry in enumerate(result.inputs):
        for m, metric in enumerate(result.metrics):
            numbers = [
                table[i, m] for table in (result.drop, result.error, result.low, result.high)
            ]
            yield (entry.name, metric.task, metric.name, result.base[m], *numbers)


def list_attributions(explained: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each column of each explained prediction.

    Args:
      explained: the explanation to write.

    Yields:
      The table as lists of cells: first the header, then each line.
    """
    header = ("row", "task", "output", "scale", "value", "baseline", "column", "fields")
    yield (*header, "attribution", "residual")
    for attribution in explained.attributions:
        for column, value in attribution.columns.items():
            fields = " ".join(explained.fields[column])
            about = (
                attribution.row,
                attribution.task,
                attribution.name,
                attribution.scale,
                attribution.value,
                attribution.start,
            )
            yield (*about, column, fields, value, attribution.residual)


def list_dependence(explained: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each value of a field, each task and each class.

    Args:
      explained: the explanation to write.

    Yields:
      The table as lists of cells: first the header, then each line.
    """
    yield ("field", "value", "rows", "task", "output", "kind", "mean")
    for result in explained.dependences:
        for place, value in enumerate(result.grid):
            for task, means in result.means.items():
                names, kind = explained.outputs[task]
                # Decode text values, which are bytes; `_write_cell` writes numbers with all digits.
                text = inputs.tell_value(value) if result.grid.dtype.kind in "OSU" else value
                for name, mean in zip(names, means[place], strict=True):
                    yield (result.field, text, result.counts[place], task, name, kind, mean)


def list_gradients(explained: explanation.Explanation) -> Iterator[Sequence[Any]]:
    """Yield a line for each group of shared variables and each pair of tasks.

    Args:
      explained: the explanation to write.

    Yields:
      The table as lists of cells: first the header, then each line.
    """
    yield ("place", "numbers", "task", "other", "cosine", "standard_error", "batches")
    similarity = explained.similarity
    if similarity is None:
        return
    for s, place in enumerate(similarity.places):
        for a, task in enumerate(similarity.tasks):
            # List each pair once, because the matrix is symmetric, with a diagonal of 1.
            for b, other in enumerate(similarity.tasks[:a]):
                numbers = (
                    similarity.mean[s, a, b],
                    similarity.error[s, a, b],
                    similarity.counts[s, a, b],
                )
                yield (place, similarity.sizes[s], other, task, *numbers)
