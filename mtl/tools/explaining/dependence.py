"""Computes partial dependence: the mean prediction after a field is set to one value in all rows.

grid = dependence.make_grid(rows.features["age"], is_number=True)
result = dependence.compute(model, outputs, rows, "age", grid)
result.means["income"], result.lines["income"]           # [G, K], [G, S, K]

J. H. Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", 2001. The lines of
predictions for single rows are called individual conditional expectations. A. Goldstein, A.
Kapelner, J. Bleich, E. Pitkin, "Peeking Inside the Black Box", 2015, arXiv:1309.6392.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.deferred import tf
from mtl.tools.explaining import opened, outputs, rows

MOST_POINTS = 20
MOST_VALUES = 12
_MOST_LINES = 20
# The quantiles of numbers in the grid; few rows lie beyond the first and last quantile.
_SHARES = np.linspace(0.025, 0.975, MOST_POINTS)


class Dependence(NamedTuple):
    """The partial dependence of predictions on a field.

    Attributes:
      field: the name of the field.
      is_number: True if the values of the field have an order.
      grid: the G values that the field is set to, [G].
      counts: for each value of the grid, the number of rows that have exactly this value, [G].
      means: the mean predictions over all rows, {task: [G, K]}.
      lines: the predictions for S single rows, {task: [G, S, K]}.
    """

    field: str
    is_number: bool
    grid: np.ndarray
    counts: Sequence[int]
    means: Mapping[str, np.ndarray]
    lines: Mapping[str, np.ndarray]


def tell_unfit(values: Any, is_number: bool) -> str | None:
    """Return why partial dependence on a field cannot be computed, or None.

    Args:
      values: the values of the field, [N, ...].
      is_number: True if the values have an order.
    """
    # A field with several values per row has no single value to set in all rows.
    if isinstance(values, tf.compat.v1.ragged.RaggedTensorValue) or np.ndim(values) != 1:
        return "it has several values per row"
    if len(make_grid(values, is_number)) < 2:
        return "all rows hold the same value"
    # If no value occurs twice, the field is an id, which says nothing about other rows.
    if not is_number and len(np.unique(values)) == len(values):
        return "no value occurs twice"
    return None


def make_grid(values: np.ndarray, is_number: bool) -> np.ndarray:
    """Choose the values to set a field to: the most frequent values, or quantiles of numbers.

    Every chosen value is finite, and occurs in at least one row. If most rows have the same number,
    the chosen values also include quantiles of the distinct numbers.

    Args:
      values: the values of the field, [N].
      is_number: True if the values have an order.

    Returns:
      The values, [G]: ascending for numbers, otherwise the most frequent value first.
    """
    # NaN marks a missing value, which has no place on the axis of a plot.
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if not is_number:
        return distinct[np.argsort(-counts, kind="stable")[:MOST_VALUES]]
    if len(distinct) <= MOST_POINTS:
        return distinct
    # "inverted_cdf" returns values that occur in the rows; other methods would interpolate.
    grid = np.unique(np.quantile(values, _SHARES, method="inverted_cdf"))
    # If many numbers are equal, such as zeros, most quantiles are equal, too: add quantiles
    # of the distinct numbers.
    if len(grid) >= MOST_POINTS // 2:
        return grid
    quantiles = np.quantile(distinct, _SHARES[::2], method="inverted_cdf")
    return np.unique(np.concatenate([grid, quantiles]))


def compute(
    model: opened.Opened,
    said: Sequence[outputs.Output],
    held: rows.Rows,
    field: str,
    grid: np.ndarray,
    is_number: bool = True,
) -> Dependence:
    """Predict all rows once for each value of the grid, after the field is set to this value.

    Args:
      model: the opened model, whose graph contains the predicted numbers.
      said: the numbers that the head of each task predicts.
      held: the N rows to predict.
      field: the name of a field with one value per row.
      grid: the values to set the field to, [G].
      is_number: True if the values have an order.
    """
    tensors = {output.task: output.shown for output in said}
    # Choose rows at equal distances in the sample; all values and fields show the same rows.
    places = np.unique(np.linspace(0, held.size - 1, min(_MOST_LINES, held.size)).astype(int))
    means: dict[str, list[Any]] = {task: [] for task in tensors}
    lines: dict[str, list[Any]] = {task: [] for task in tensors}
    for value in grid:
        for task, values in model.compute(tensors, held.fill(field, value)).items():
            means[task].append(values.mean(0, dtype=np.float64))  # Mean over N rows: [K].
            lines[task].append(values[places])  # Values of S shown rows: [S, K].
    field_values = np.asarray(held.features[field])
    return Dependence(
        field,
        is_number,
        grid,
        [int(np.sum(field_values == value)) for value in grid],
        {task: np.stack(values_of_task) for task, values_of_task in means.items()},
        {task: np.stack(values_of_task) for task, values_of_task in lines.items()},
    )
