"""What the metrics of an evaluation were measured on: its rows, and the settings of the model.

rows = measured.Rows()
graph = evaluation_graph.EvaluationGraph(experiment, model_dir, rows.watch)
graph.evaluate(checkpoint, hooks)
rows.describe()                        # "48 rows, 0c5f3a9d1be27744"

Two evaluations are comparable if both are equal.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mtl import types
from mtl.checkpoints import flat_settings
from mtl.checkpoints import settings as settings_lib

tf1 = tf.compat.v1


def hash_rows(values: Any) -> tf.Tensor:
    """Return a hash of each row, int64 [B], of any structure of tensors [B, ...], ragged or not."""
    with tf.device("/cpu:0"):
        fields = [_hash_values(v) for v in tf.nest.flatten(values)]
        return _hash_values(tf.stack(fields, axis=1))


def digest_settings(model: Any) -> str:
    """Return a digest of the settings of a model that are not at their defaults.

    A setting that a later version adds changes no digest, as long as nobody sets it.
    """
    found = [(s.path, s.meaning) for s in flat_settings.flatten(model) if not s.is_default]
    return settings_lib.compute_digest(found)


class Rows(tf.compat.v1.train.SessionRunHook):
    """Adds up the hashes of all rows of an evaluation; their order does not matter."""

    def __init__(self) -> None:
        self._hashes: tf.Tensor | None = None
        self._count, self._sum = 0, 0

    def watch(self, features: Any, labels: Any, logits: types.Tensors) -> Sequence["Rows"]:
        """Return what watches an evaluation of these rows; called when its graph is built."""
        del logits
        self._hashes = hash_rows((features, labels))
        return [self]

    def begin(self):
        self._count, self._sum = 0, 0

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._hashes)

    def after_run(self, run_context, run_values):
        self._count += len(run_values.results)
        self._sum = (self._sum + sum(map(int, run_values.results))) % (1 << 64)

    def describe(self) -> str:
        """Return the number of rows of the last evaluation, and their hash."""
        return f"{self._count} rows, {self._sum:016x}"


def _hash_values(values: Any) -> tf.Tensor:
    """Return a hash of each row of a tensor [B, ...], int64 [B]."""
    if not isinstance(values, tf.RaggedTensor):
        return tf.bitcast(tf.fingerprint(values), tf.int64)
    inner, lengths = _hash_values(values.values), values.row_lengths()
    # The place in its list counts, the width of the batch does not.
    places = _hash_values(tf.ragged.range(lengths).values)
    mixed = _hash_values(tf.stack([inner, places], axis=1))
    sums = tf.math.unsorted_segment_sum(mixed, values.value_rowids(), values.nrows())
    return _hash_values(tf.stack([sums, lengths], axis=1))
