"""Measures how well training mixes rows that it reads in windows.

mixing.describe_mixing(blocks, spec, batch_size=512)             # lines for the log
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mtl import spec as spec_lib
from mtl import types

# The most blocks that are read.
_MOST_BLOCKS = 32
# A warning comes if the mean of a batch varies this many times as much as by chance.
_LARGE_FACTOR = 1.2


def describe_mixing(blocks: types.Blocks, spec: spec_lib.Spec, batch_size: int) -> list[str]:
    """Return a line about the windows, and a line for each label that follows the order of rows.

    Args:
      blocks: the blocks of the training split.
      spec: its fields.
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
                f"Label {name!r} depends on the place of a row: the mean of a batch varies "
                f"{factor:.1f} times as much as with rows in random order. Raise the window, or "
                "write the rows in random order once (docs/data.md)."
            )
    return lines


def _list_numbers(spec: spec_lib.Spec) -> Iterator[tuple[str, spec_lib.Field]]:
    """Yield the labels with one number in each row."""
    for name, field in spec.label_fields.items():
        if not field.shape and field.dtype != "string":
            yield name, field


def _cut(values: np.ndarray, window: int) -> list[np.ndarray]:
    """Cut a block into parts that each fit into a window."""
    return np.array_split(values, max(1, -(-len(values) // window)))


def _list_labels(values: np.ndarray, field: spec_lib.Field) -> np.ndarray:
    """Return the labels as numbers, without missing labels."""
    if field.dtype == "float32":
        return values[np.isfinite(values)].astype(np.float64)
    return values[values != field.missing].astype(np.float64)


def measure_batches(labels: list[np.ndarray], at_once: int, batch_size: int) -> float:
    """Return by which factor the mean of a batch varies more than with rows in random order.

    If blocks differ by more than chance, the rows of a block are similar, and so are the rows of a
    batch from few blocks. The variance of the batch's mean is then 1 + (B - 1) * r / n times as
    large: L. Kish, "Survey Sampling", 1965, section 5.4, for B rows of n blocks with an intraclass
    correlation r.

    Args:
      labels: the labels of the rows of some blocks.
      at_once: n, the number of blocks that are mixed at a time.
      batch_size: B.

    Returns:
      A factor of at least 1.
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
    # If blocks differ by chance, the ratio is chi-squared with `freedom` degrees of freedom.
    if between_squares <= within_variance * (freedom + 6 * math.sqrt(2 * freedom)):
        return 1.0
    variance = (between_squares / freedom - within_variance) / sizes.mean()
    correlation = variance / (variance + within_variance)
    return math.sqrt(1 + (batch_size - 1) * correlation / at_once)
