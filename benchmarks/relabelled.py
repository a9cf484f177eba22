"""A split with other labels, or without some of its rows, in front of any source.

source = relabelled.Relabelled(source=source, field="digit", labels=labels, kept=kept)
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import spec as spec_lib
from mtl import types


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Relabelled:
    """A source whose split has the given labels; other splits are passed on.

    Attributes:
      source: of the rows.
      field: the label that is replaced.
      labels: {split: [N]}, of the rows in the order of the source.
      kept: {split: [N] bools}, the rows that are left; all of a split that is not named.
    """

    source: types.Source
    field: str
    labels: dict[str, np.ndarray]
    kept: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def records(self, split: str) -> tf.data.Dataset:
        """{"record": the source's, "label": scalar, "given": whether it counts}."""
        records = self.source.records(split)
        labels = self.labels.get(split)
        if labels is None:
            (kind,) = {values.dtype for values in self.labels.values()}
            blank = tf.zeros([], tf.string if kind.kind in "OS" else kind)
            return records.map(lambda r: {"record": r, "label": blank, "given": False})
        kept = self.kept.get(split, np.ones(len(labels), bool))
        rows = tf.data.Dataset.from_tensor_slices((labels, kept))
        both = tf.data.Dataset.zip((records, rows)).filter(lambda _, row: row[1])
        return both.map(lambda r, row: {"record": r, "label": row[0], "given": True})

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """As the source does, but for the label."""
        values = dict(self.source.decode(batch["record"], spec, with_labels))
        if self.field in values:
            values[self.field] = tf.where(batch["given"], batch["label"], values[self.field])
        return values

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the rows of the source one by one, with their first labels."""
        for row, found in enumerate(self.source.scan(split, spec)):
            if split not in self.kept or self.kept[split][row]:
                yield found


def flipped(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share became one of the others, and which these are, [N] bools."""
    rng = np.random.default_rng(seed)
    classes, ids = np.unique(labels, return_inverse=True)
    is_wrong = np.zeros(len(labels), bool)
    is_wrong[rng.permutation(len(labels))[: round(share * len(labels))]] = True
    moved = (ids + rng.integers(1, len(classes), len(labels))) % len(classes)
    return classes[np.where(is_wrong, moved, ids)], is_wrong
