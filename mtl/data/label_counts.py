"""Counts the rows of each label in the training split, to detect a long tail.

label_counts.accumulators("digit")               # counts with the columns' statistics
label_counts.read_counts(statistics, "digit")            # {0: 700, 1: 419, ...} or {"cat": 12, ...}
"""

import collections
import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np

from mtl import spec, types
from mtl.spec import literals


@dataclasses.dataclass(kw_only=True)
class LabelCounts:
    """An accumulator that counts the labels of a field, including -1, but without missing labels.

    Attributes:
      label: the field with the labels.
    """

    label: str

    def __post_init__(self):
        self._counts = collections.Counter()
        self._rows = 0

    def update(self, fields: types.Tensors) -> None:
        """Count the labels of a batch of eager tensors."""
        labels = fields[self.label].numpy()
        self._rows += len(labels)
        if labels.dtype.kind == "f":
            # Drop NaN, because NaN != NaN would make each missing label a new class.
            labels = labels[~np.isnan(labels)]
        self._counts.update(labels.tolist())

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the counts of labels, which `read_counts` reads from the statistics.

        Returns:
          {"values": labels in ascending order without missing labels, "counts": the number of rows
          of each label, "rows": the number of all rows, with or without a label}.

        Raises:
          UserError: a label is not UTF-8.
        """
        del directory, column
        where = f"label {self.label!r}"
        counts = {literals.decode_text(where, v): count for v, count in self._counts.items()}
        values = sorted(set(counts) - set(spec.MISSING.values()))
        value_counts = [counts[value] for value in values]
        return {"values": values, "counts": value_counts, "rows": self._rows}


def accumulators(label: str) -> dict[str, LabelCounts]:
    """Return {name in the statistics: accumulator that counts the labels of a field}."""
    return {_name_statistics(label): LabelCounts(label=label)}


def read_counts(
    statistics: types.Statistics, label: str, missing: Collection[Any] = (spec.NO_ID,)
) -> dict[int | str, int]:
    """Return the number of rows of each label in the training split.

    Args:
      statistics: the statistics of the training split.
      label: the name of the label field.
      missing: labels to leave out.

    Returns:
      {label: number of rows}.
    """
    entry = statistics.for_column(_name_statistics(label))
    counts = zip(entry["values"], entry["counts"], strict=True)
    return {value: rows for value, rows in counts if value not in missing}


def count_rows(statistics: types.Statistics, label: str) -> int:
    """Return the number of all rows of the training split, with or without a label.

    Statistics of release 0.2 lack the number of rows without a label; for these statistics, the
    result is the number of rows with a label.

    Args:
      statistics: the statistics of the training split.
      label: the name of the label field.
    """
    entry = statistics.for_column(_name_statistics(label))
    return entry.get("rows", sum(entry["counts"]))


def _name_statistics(label: str) -> str:
    return f"label/{label}"
