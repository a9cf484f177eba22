"""How many rows of the training split have each value of a label: what a long tail is known by.

label_counts.accumulators("digit")               # what gathers them, with the columns' statistics
label_counts.read_counts(statistics, "digit")            # {0: 700, 1: 419, ...} or {"cat": 12, ...}
"""

import collections
import dataclasses
from collections.abc import Collection
from typing import Any

from mtl import spec, types
from mtl.spec import literals


@dataclasses.dataclass(kw_only=True)
class LabelCounts:
    """An accumulator of the labels of one field; absent ones do not count, and -1 does.

    Attributes:
      label: the field.
    """

    label: str

    def __post_init__(self):
        self._counts = collections.Counter()

    def update(self, fields: types.Tensors) -> None:
        """Count the labels of a batch of eager tensors."""
        self._counts.update(fields[self.label].numpy().tolist())

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the values and their counts."""
        del directory, column
        where = f"label {self.label!r}"
        counts = {literals.decode_text(where, v): count for v, count in self._counts.items()}
        values = sorted(set(counts) - set(spec.MISSING.values()))
        return {"values": values, "counts": [counts[value] for value in values]}


def accumulators(label: str) -> dict[str, LabelCounts]:
    """Return {name in the statistics: what gathers the counts of this field}."""
    return {_name(label): LabelCounts(label=label)}


def read_counts(
    statistics: types.Statistics, label: str, missing: Collection[Any] = (spec.NO_ID,)
) -> dict[int | str, int]:
    """Return {value of the label: its rows in the training split}, but for the `missing` ones."""
    entry = statistics.for_column(_name(label))
    counts = zip(entry["values"], entry["counts"], strict=True)
    return {value: rows for value, rows in counts if value not in missing}


def _name(label: str) -> str:
    return f"label/{label}"
