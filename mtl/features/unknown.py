"""Counts values that are unknown to the columns, such as new categories, for a warning.

counts = unknown.count_unknown(columns, features, fitted)         # in a graph: int64 [F, 2]
shares = unknown.Shares(unknown.list_fields(columns))
shares.add(session.run(counts))
shares.describe("of split 'test'")                 # ["The model does not know 51.0% of ...", ...]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtl import types
from mtl.deferred import tf

# Warn only above this share, because some new categories are normal.
_LEAST_SHARE = 0.05
# Warn only above this number of values, because a share of few values says little.
_LEAST_VALUES = 20


def list_fields(columns: Sequence[types.Column]) -> list[str]:
    """List the fields whose columns may have unknown values.

    Args:
      columns: the columns of the model; columns nested in them, as in a `History`, count, too.

    Returns:
      The fields in which unknown values are counted, each once, in the order of the columns.
    """
    parts = [part for column in columns for part in _with_parts(column)]
    fields_by_part = [types.read_member(part, types.Column, "limited_fields") for part in parts]
    return list(dict.fromkeys(field for fields in fields_by_part for field in fields))


def count_unknown(
    columns: Sequence[types.Column], features: types.Tensors, fitted: types.Statistics
) -> tf.Tensor:
    """Count the unknown values of a batch.

    Args:
      columns: the column objects of the model.
      features: {field: [B, ...]}.
      fitted: the statistics of the training split.

    Returns:
      For each field of `list_fields`, the number of values and the number of unknown values, int64
      [F, 2].
    """
    is_unknown: dict[str, tf.Tensor] = {}
    for column in columns:
        for part in _with_parts(column):
            part_masks = types.read_member(part, types.Column, "find_unknown")(features, fitted)
            for field, unknown in part_masks.items():
                is_unknown[field] = is_unknown[field] | unknown if field in is_unknown else unknown
    rows = [
        [tf.size(is_unknown[field], tf.int64), tf.reduce_sum(tf.cast(is_unknown[field], tf.int64))]
        for field in list_fields(columns)
    ]
    return tf.stack(rows)


def _with_parts(column: types.Column) -> list[types.Column]:
    return [column, *types.read_member(column, types.Column, "parts")]


class Shares:
    """Adds up the counts of batches, and computes shares of unknown values.

    Args:
      fields: the names of the fields, in the order of the rows of the counts.
    """

    def __init__(self, fields: Sequence[str]):
        self._fields, self._counts = fields, np.zeros([len(fields), 2], np.int64)
        self._told: set[int] = set()

    def add(self, counts: np.ndarray) -> None:
        """Add the counts of a batch to the counts of all earlier batches.

        Args:
          counts: the number of values and the number of unknown values of each field, int64 [F, 2],
            as `count_unknown` returns them.
        """
        self._counts = self._counts + counts

    def compute(self) -> list[float]:
        """Return the share of unknown values of each field, [F]; NaN for a field without values."""
        with np.errstate(invalid="ignore"):
            return (self._counts[:, 1] / self._counts[:, 0]).tolist()

    def describe(self, where: str) -> list[str]:
        """Return a warning for each field with many unknown values.

        Args:
          where: a text that names the rows, such as "of split 'test'".
        """
        return [self._describe_field(index, where) for index in self._find_many()]

    def describe_new(self, where: str) -> list[str]:
        """Return a warning for each field with many unknown values, once for each field.

        The counts of fields with enough values for a warning then start again from 0.

        Args:
          where: a text that names the rows, such as "in the input".
        """
        new = [index for index in self._find_many() if index not in self._told]
        lines = [self._describe_field(index, where) for index in new]
        self._told.update(new)
        # Fields with fewer values keep their counts, for callers with few rows at a time.
        has_enough = self._counts[:, :1] >= _LEAST_VALUES
        self._counts = np.where(has_enough, 0, self._counts)
        return lines

    def _find_many(self) -> list[int]:
        """List the indices of the fields with many unknown values."""
        total, unknown = self._counts.T
        is_many = (total >= _LEAST_VALUES) & (unknown > _LEAST_SHARE * total)
        return np.flatnonzero(is_many).tolist()

    def _describe_field(self, index: int, where: str) -> str:
        field, (total, unknown) = self._fields[index], self._counts[index].tolist()
        return (
            f"The model does not know {unknown / total:.1%} of the values of field {field!r} "
            f"{where}, {unknown:,} of {total:,}: its vocabulary lacks them, as the training "
            "split had none or too few, max_size left them out, or they have a line break."
        )
