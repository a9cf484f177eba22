"""Partial dependence: the mean prediction over all rows if a field has one value in all of them.

grid = dependence.make_grid(held.features["age"], is_number=True)
found = dependence.compute(model, outputs, held, "age", grid)
found.means["income"], found.lines["income"]             # [G, K], [G, S, K]

J. H. Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", 2001. The lines of
single rows are individual conditional expectations: A. Goldstein, A. Kapelner, J. Bleich,
E. Pitkin, "Peeking Inside the Black Box", 2015, arXiv:1309.6392.
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
# Beyond these quantiles are too few rows.
_SHARES = np.linspace(0.025, 0.975, MOST_POINTS)


class Dependence(NamedTuple):
    """The dependence of predictions on a field.

    Attributes:
      field: the field.
      is_number: True if its values have an order.
      grid: G values.
      counts: how many rows have exactly each value, G.
      means: {task: [G, K]}, the means over all rows.
      lines: {task: [G, S, K]}, the predictions for some rows.
    """

    field: str
    is_number: bool
    grid: np.ndarray
    counts: Sequence[int]
    means: Mapping[str, np.ndarray]
    lines: Mapping[str, np.ndarray]


def tell_unfit(values: Any, is_number: bool) -> str | None:
    """Return why the values of a field in N rows have no grid; None if they have one."""
    # A list has no single value to set in all rows.
    if isinstance(values, tf.compat.v1.ragged.RaggedTensorValue) or np.ndim(values) != 1:
        return "it has several values a row, and no grid"
    if len(make_grid(values, is_number)) < 2:
        return "all rows hold the same value"
    # An id, for example: each value stands for one row alone.
    if not is_number and len(np.unique(values)) == len(values):
        return "no value occurs twice"
    return None


def make_grid(values: np.ndarray, is_number: bool) -> np.ndarray:
    """Return the values to try: the most frequent ones, or quantiles of a number.

    All of them occur and are finite. If most rows hold the same number, the grid also has quantiles
    of the distinct numbers.

    Args:
      values: the values of the field, [N].
      is_number: True if they have an order.

    Returns:
      [G], ascending for numbers, otherwise the most frequent value first.
    """
    # NaN marks a missing value; it has no place on an axis.
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if not is_number:
        return distinct[np.argsort(-counts, kind="stable")[:MOST_VALUES]]
    if len(distinct) <= MOST_POINTS:
        return distinct
    # This method returns values that occur; others interpolate between two of them.
    grid = np.unique(np.quantile(values, _SHARES, method="inverted_cdf"))
    # Many equal numbers, such as zeros, make most quantiles equal: then distinct numbers help.
    if len(grid) >= MOST_POINTS // 2:
        return grid
    others = np.quantile(distinct, _SHARES[::2], method="inverted_cdf")
    return np.unique(np.concatenate([grid, others]))


def compute(
    model: opened.Opened,
    said: Sequence[outputs.Output],
    held: rows.Rows,
    field: str,
    grid: np.ndarray,
    is_number: bool = True,
) -> Dependence:
    """Predict all rows with each value of the grid in the field.

    Args:
      model: the model with the outputs.
      said: the outputs of the tasks.
      held: N rows.
      field: a field with one value a row.
      grid: G values.
      is_number: True if they have an order.
    """
    shown = {output.task: output.shown for output in said}
    # Rows from the whole sample, the same ones for each value and field.
    some = np.unique(np.linspace(0, held.size - 1, min(_MOST_LINES, held.size)).astype(int))
    means: dict[str, list[Any]] = {task: [] for task in shown}
    lines: dict[str, list[Any]] = {task: [] for task in shown}
    for value in grid:
        for task, found in model.compute(shown, held.fill(field, value)).items():
            means[task].append(found.mean(0, dtype=np.float64))  # [N, K] -> [K]
            lines[task].append(found[some])  # [S, K]
    given = np.asarray(held.features[field])
    return Dependence(
        field,
        is_number,
        grid,
        [int(np.sum(given == value)) for value in grid],
        {task: np.stack(each) for task, each in means.items()},
        {task: np.stack(each) for task, each in lines.items()},
    )
