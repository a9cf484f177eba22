"""Describes the rows and the model settings of an evaluation, to find comparable evaluations.

rows = measured.Rows()
graph = evaluation_graph.EvaluationGraph(experiment, model_dir, rows.watch)
graph.evaluate(checkpoint, hooks)
rows.describe()                        # "48 rows, 0c5f3a9d1be27744"

Two evaluations are comparable if the descriptions of their rows, and of their model settings, are
equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl import deferred, types
from mtl.checkpoints import settings as settings_lib
from mtl.deferred import tf, tf1

with deferred.imports():
    from mtl.checkpoints import flat_settings


def hash_rows(values: Sequence[Any]) -> tf.Tensor:
    """Hash rows, such that equal rows have equal hashes in every batch.

    Args:
      values: a list of F fields, each a tensor [B, ...], ragged or not.

    Returns:
      Hashes, int64 [B, F + 1]: a column for each field, and a last column for the whole row.
    """
    with tf.device("/cpu:0"):
        fields = tf.stack([_hash_values(value) for value in values], axis=1)
        return tf.concat([fields, _hash_values(fields)[:, tf.newaxis]], axis=1)


def digest_settings(model: Any) -> str:
    """Return a digest of the settings of a model that differ from their defaults.

    If a later version of `mtl` adds a setting, the default of this setting does not change the
    digest.

    Args:
      model: the model, or any part with settings; the digest includes the settings of inner parts.

    Returns:
      Eight hexadecimal digits.
    """
    pairs = [(s.path, s.meaning) for s in flat_settings.flatten(model) if not s.is_default]
    return settings_lib.compute_digest(pairs)


class Rows(tf.compat.v1.train.SessionRunHook):
    """Adds up the hashes of all rows of an evaluation; the order of rows does not matter."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: Any = None
        self._count, self._sums = 0, [0]

    def watch(self, features: Any, labels: Any, logits: types.Tensors) -> Sequence[Rows]:
        """Return hooks that hash features and labels; called while an evaluation's graph is built.

        Args:
          features: {field: [B, ...]}, the features of a batch, ragged or not.
          labels: {field: [B, ...]}, the labels of a batch, ragged or not.
          logits: the logits of the tasks, which are not hashed.
        """
        del logits
        self._tensors = self._hash({**features, **labels})
        return [self]

    def hash_fields(self, fields: types.Tensors) -> tf.Tensor:
        """Return the hashes of the rows of a batch {field: [B, ...]}, which `add` adds up."""
        self._names = [f"{name} {value.dtype.name}" for name, value in fields.items()]
        return hash_rows(list(fields.values()))

    def add(self, hashes: np.ndarray) -> None:
        """Add the rows of a batch, of which `hash_fields` has returned the hashes."""
        if not self._count:
            self.begin()
        self._add(len(hashes), hashes.sum(0))

    def begin(self):
        self._count, self._sums = 0, [0] * (len(self._names) + 1)

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context, run_values):
        self._add(*run_values.results)

    def _hash(self, fields: types.Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        hashes = self.hash_fields(fields)
        return tf.shape(hashes)[0], tf.reduce_sum(hashes, 0)

    def _add(self, count: Any, sums: Any) -> None:
        self._count += int(count)
        self._sums = [(a + int(b)) % (1 << 64) for a, b in zip(self._sums, sums, strict=True)]

    def describe(self) -> str:
        """Return the number of rows of the last evaluation, and their hash."""
        return f"{self._count} rows, {self._sums[-1]:016x}"

    def describe_fields(self) -> dict[str, str]:
        """Return {field and type: the number of rows, and their hash}, to compare runs.

        Hashes of single fields help if two runs read different fields of the same rows.
        """
        hashes = zip(self._names, self._sums, strict=False)
        return {name: f"{self._count} rows, {value:016x}" for name, value in hashes}


def _hash_values(values: Any) -> tf.Tensor:
    """Return a hash of each row of a tensor [B, ...], int64 [B]."""
    if not isinstance(values, tf.RaggedTensor):
        return tf.bitcast(tf.fingerprint(values), tf.int64)
    inner, lengths = _hash_values(values.values), values.row_lengths()
    # The hash depends on the position of each item in its list, but not on the padding of the
    # batch.
    places = _hash_values(tf.ragged.range(lengths).values)
    item_hashes = _hash_values(tf.stack([inner, places], axis=1))
    sums = tf.math.unsorted_segment_sum(item_hashes, values.value_rowids(), values.nrows())
    return _hash_values(tf.stack([sums, lengths], axis=1))
