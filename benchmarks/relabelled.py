"""Replaces the labels of a split of any source, or leaves out some of its rows.

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
    """A source that replaces the labels of some splits, and passes on other splits.

    Attributes:
      source: the source of the rows.
      field: the field of the label.
      labels: {split: new labels [N]}, in the order of the rows of the source.
      kept: {split: bools [N], True for rows to keep}; other splits keep all rows.
    """

    source: types.Source
    field: str
    labels: dict[str, np.ndarray]
    kept: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def records(self, split: str) -> tf.data.Dataset:
        """Return {"record": record, "label": scalar, "given": True if the label is a new one}."""
        records = self.source.records(split)
        labels = self.labels.get(split)
        if labels is None:
            (kind,) = {values.dtype for values in self.labels.values()}
            blank = tf.zeros([], tf.string if kind.kind in "OS" else kind)
            return records.map(lambda r: {"record": r, "label": blank, "given": False})
        is_kept = self.kept.get(split, np.ones(len(labels), bool))
        rows = tf.data.Dataset.from_tensor_slices((labels, is_kept))
        pairs = tf.data.Dataset.zip((records, rows)).filter(lambda _, row: row[1])
        return pairs.map(lambda r, row: {"record": r, "label": row[0], "given": True})

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch as the source does, and replace the label."""
        values = dict(self.source.decode(batch["record"], spec, with_labels))
        if self.field in values:
            values[self.field] = tf.where(batch["given"], batch["label"], values[self.field])
        return values

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows of the source that are kept, with their original labels."""
        for row, place_and_values in enumerate(self.source.scan(split, spec)):
            if split not in self.kept or self.kept[split][row]:
                yield place_and_values


def flipped(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels [N] with a share of wrong classes, and which of them are wrong (bools [N])."""
    rng = np.random.default_rng(seed)
    classes, ids = np.unique(labels, return_inverse=True)
    is_wrong = np.zeros(len(labels), bool)
    is_wrong[rng.permutation(len(labels))[: round(share * len(labels))]] = True
    wrong_ids = (ids + rng.integers(1, len(classes), len(labels))) % len(classes)
    return classes[np.where(is_wrong, wrong_ids, ids)], is_wrong
