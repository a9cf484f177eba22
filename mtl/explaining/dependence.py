"""Partial dependence: the mean prediction over all rows, with one value of a field in all of them.

grid = dependence.make_grid(held.features["age"], is_number=True)
found = dependence.compute(model, outputs, held, "age", grid)
found.means["income"], found.lines["income"]             # [G, K], [G, S, K]

J. H. Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", 2001. The lines of
single rows are individual conditional expectations: A. Goldstein, A. Kapelner, J. Bleich,
E. Pitkin, "Peeking Inside the Black Box", 2015, arXiv:1309.6392.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mtl.explaining import opened, outputs, rows

MOST_POINTS = 20
MOST_VALUES = 12
_MOST_LINES = 20
# Further out lie too few rows.
_SHARES = np.linspace(0.025, 0.975, MOST_POINTS)


class Dependence(NamedTuple):
    """How predictions depend on a field.

    Attributes:
      field: which.
      is_number: whether its values are in an order.
      grid: G values.
      counts: how many rows have them, G; of a number how many rows have exactly this one.
      means: {task: [G, K]}, over all rows.
      lines: {task: [G, S, K]}, of some rows.
    """

    field: str
    is_number: bool
    grid: np.ndarray
    counts: Sequence[int]
    means: Mapping[str, np.ndarray]
    lines: Mapping[str, np.ndarray]


def tell_unfit(values: Any, is_number: bool) -> str | None:
    """Return why there is no grid for the values of a field in N rows; None if there is one."""
    if isinstance(values, tf.compat.v1.ragged.RaggedTensorValue) or np.ndim(values) != 1:
        return "it has several values a row, and no grid"
    if len(make_grid(values, is_number)) < 2:
        return "all rows hold the same value"
    if not is_number and len(np.unique(values)) == len(values):
        return "no value occurs twice"
    return None


def make_grid(values: np.ndarray, is_number: bool) -> np.ndarray:
    """Return the values to ask for: the most frequent ones, or quantiles of a number.

    Each of them occurs, and what is no number (NaN, infinity) is none of them. Where most rows hold
    one number, quantiles of the different numbers are asked for, too.
    """
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if not is_number:
        return distinct[np.argsort(-counts, kind="stable")[:MOST_VALUES]]
    if len(distinct) <= MOST_POINTS:
        return distinct
    grid = np.unique(np.quantile(values, _SHARES, method="inverted_cdf"))
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
      model: with the outputs.
      said: the outputs of the tasks.
      held: N rows.
      field: one with one value a row.
      grid: G values.
      is_number: whether they are in an order.
    """
    shown = {output.task: output.shown for output in said}
    some = np.unique(np.linspace(0, held.size - 1, min(_MOST_LINES, held.size)).astype(int))
    means: dict[str, list[Any]] = {task: [] for task in shown}
    lines: dict[str, list[Any]] = {task: [] for task in shown}
    for value in grid:
        for task, found in model.compute(shown, held.fill(field, value)).items():
            means[task].append(found.mean(0, dtype=np.float64))
            lines[task].append(found[some])
    given = np.asarray(held.features[field])
    return Dependence(
        field,
        is_number,
        grid,
        [int(np.sum(given == value)) for value in grid],
        {task: np.stack(each) for task, each in means.items()},
        {task: np.stack(each) for task, each in lines.items()},
    )
