"""Measures how well windows of rows shuffle the training split.

mixing.describe_mixing(blocks, spec, batch_size=512)             # lines for the log
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mtl import spec as spec_lib
from mtl import types

# The measurement reads at most this number of blocks.
_MOST_BLOCKS = 32
# Warn if the mean label of a batch varies this many times as much as with shuffled rows.
_LARGE_FACTOR = 1.2


def describe_mixing(blocks: types.Blocks, spec: spec_lib.Spec, batch_size: int) -> list[str]:
    """Describe the windows of shuffled rows, and warn of each label that depends on row order.

    Args:
      blocks: the blocks of the training split.
      spec: the fields of the training split.
      batch_size: the rows of a batch.
    """
    count, rows = len(blocks.sizes), sum(blocks.sizes)
    at_once = max(1, round(blocks.window * count / rows))
    lines = [
        f"Training mixes {blocks.window:,} of {rows:,} rows at a time, about {at_once:,} of "
        f"{count:,} blocks."
    ]
    if blocks.window >= rows or at_once >= count > 1:
        return lines
    fields = dict(_list_numbers(spec))
    sample = np.unique(np.linspace(0, count - 1, _MOST_BLOCKS).astype(int)).tolist()
    values = [blocks.read(block, fields) for block in sample] if fields else []
    for name, field in fields.items():
        labels = [
            _list_labels(piece, field)
            for block in values
            for piece in _cut(block[name], blocks.window)
        ]
        factor = measure_batches(labels, at_once, batch_size)
        if factor > _LARGE_FACTOR:
            lines.append(
                f"Label {name!r} depends on the position of a row: the mean of a batch varies "
                f"{factor:.1f} times as much as with rows in random order. Raise the window, or "
                "write the rows in random order once (docs/data.md)."
            )
    return lines


def _list_numbers(spec: spec_lib.Spec) -> Iterator[tuple[str, spec_lib.Field]]:
    """Yield the names and fields of labels that hold one number in each row."""
    for name, field in spec.label_fields.items():
        if not field.shape and field.dtype != "string":
            yield name, field


def _cut(values: np.ndarray, window: int) -> list[np.ndarray]:
    """Cut a block into parts that are no larger than a window."""
    return np.array_split(values, max(1, -(-len(values) // window)))


def _list_labels(values: np.ndarray, field: spec_lib.Field) -> np.ndarray:
    """Return the labels as float64, without missing labels."""
    if field.dtype == "float32":
        return values[np.isfinite(values)].astype(np.float64)
    return values[values != field.missing].astype(np.float64)


def measure_batches(labels: list[np.ndarray], at_once: int, batch_size: int) -> float:
    """Return how much more the mean label of a batch varies than with shuffled rows.

    If blocks differ by more than chance, rows of the same block are similar, so a batch with rows
    of only a few blocks has similar rows. For B rows from n blocks with an intraclass correlation
    r, the variance of the mean label is 1 + (B - 1) * r / n times the variance for shuffled rows
    (Kish, "Survey Sampling", 1965, section 5.4).

    Args:
      labels: the labels of each block in a sample of blocks.
      at_once: n, the number of blocks in a window.
      batch_size: B, the number of rows in a batch.

    Returns:
      The standard deviation of the mean label of a batch, as a multiple of the standard deviation
      for shuffled rows; at least 1.
    """
    labels = [block for block in labels if len(block) > 1]
    if len(labels) < 2:
        return 1.0
    sizes = np.array([len(block) for block in labels])
    means = np.array([block.mean() for block in labels])
    within_variance = (
        sum(((block - block.mean()) ** 2).sum() for block in labels) / (sizes - 1).sum()
    )
    between_squares = float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum())
    freedom = len(labels) - 1
    # If blocks differ only by chance, `between_squares / within_variance` is about chi-squared with
    # `freedom` degrees of freedom.
    if between_squares <= within_variance * (freedom + 6 * math.sqrt(2 * freedom)):
        return 1.0
    variance = (between_squares / freedom - within_variance) / sizes.mean()
    correlation = variance / (variance + within_variance)
    return math.sqrt(1 + (batch_size - 1) * correlation / at_once)
