"""Reads the first rows of a split, to check exports and to write warm-up requests.

held_out = rows.hold_rows(features, spec)
held_out.examples[:7]                        # serialized tf.Examples
held_out.first(7).raw()                      # {raw input: array}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.deferred import tf, tf1
from mtl.serving import inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Features of N rows.

    Attributes:
      spec: the fields of the rows.
      values: {field: N arrays}.
    """

    spec: spec_lib.Spec
    values: Mapping[str, Sequence[np.ndarray]]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def first(self, count: int) -> Rows:
        """Return the first `count` rows, or all rows if there are fewer.

        Args:
          count: the largest number of rows to return.
        """
        if count >= len(self):
            return self  # Make no copy, to keep the cached `examples`.
        values = {name: rows[:count] for name, rows in self.values.items()}
        return dataclasses.replace(self, values=values)

    @functools.cached_property
    def examples(self) -> list[bytes]:
        """The rows as serialized tf.Examples."""
        names = list(self.values)
        rows = zip(*self.values.values(), strict=True)
        return [self.spec.serialize(dict(zip(names, row, strict=True))) for row in rows]

    def dense(self, name: str) -> np.ndarray:
        """Return the values of a feature of fixed length.

        Args:
          name: the name of the feature.

        Returns:
          An array [N, ...] of the field's type; texts are an array of objects.
        """
        field = self.spec.fields[name]
        dtype = tf.as_dtype(field.dtype).as_numpy_dtype
        return np.array(list(self.values[name]), dtype).reshape([len(self), *field.shape])

    def ragged(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of a feature of lists.

        Returns:
          The concatenated values of all lists, and the length of each list, int64 [N].
        """
        rows, dtype = self.values[name], tf.as_dtype(self.spec.fields[name].dtype).as_numpy_dtype
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.concatenate([np.zeros([0], dtype), *rows]).astype(dtype), lengths

    def raw(self) -> dict[str, np.ndarray]:
        """Return the raw inputs of all rows, {raw input: [N, ...]}."""
        raw: dict[str, np.ndarray] = {}
        for name, field in self.spec.feature_fields.items():
            if field.is_ragged:
                values, lengths = self.ragged(name)
                padded = np.zeros([len(self), max(lengths, default=0)], values.dtype)
                padded = padded if field.dtype != "string" else np.full(padded.shape, b"", object)
                # The mask selects positions row by row, which is the order of the values.
                padded[np.arange(padded.shape[1]) < lengths[:, np.newaxis]] = values
                raw |= {name: padded, inputs.length_name(name): lengths}
            else:
                raw[name] = self.dense(name)
        return raw


class HeldOut(NamedTuple):
    """Rows of the evaluation split with the predictions of a checkpoint.

    Attributes:
      rows: rows of the evaluation split.
      expected: {"<task>/<name>": [N, ...]}, the predictions of the checkpoint.
    """

    rows: Rows
    expected: Mapping[str, np.ndarray]


def read_rows(make_dataset: Callable[[], tf.data.Dataset], spec: spec_lib.Spec, count: int) -> Rows:
    """Read up to `count` rows of a dataset, in a separate graph.

    Args:
      make_dataset: builds a dataset of batches {field: [B, ...]} in the default graph.
      spec: the fields of the dataset; labels are left out.
      count: the largest number of rows to read.

    Raises:
      UserError: the dataset is empty.
    """
    values: dict[str, Sequence[np.ndarray]] = {name: [] for name in spec.features}
    with tf.Graph().as_default(), tf1.Session(config=on_cpu()) as session:
        # Make a single batch of `count` rows, independently of the batch size of the run.
        dataset = make_dataset().unbatch().take(count).batch(count)
        iterator = tf1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        session.run([tf1.tables_initializer(), iterator.initializer])
        try:
            columns = session.run(batch)
        except tf.errors.OutOfRangeError:
            checks.fail("the dataset of an export", "have rows for its checks", "none")
        for name, column in columns.items():
            values[name] = _split(column)
    return Rows(spec=spec, values=values)


def hold_rows(features: Mapping[str, Any], spec: spec_lib.Spec) -> Rows:
    """Return the rows of a batch.

    Args:
      features: {field: an eager tensor [N, ...], which is ragged for lists}.
      spec: the fields of the rows.
    """
    return Rows(spec=spec, values={name: _split(column) for name, column in features.items()})


def _split(column: Any) -> Sequence[np.ndarray]:
    if isinstance(column, (tf1.ragged.RaggedTensorValue, tf.RaggedTensor)):
        # Leave out the first row split, 0, and the last, the number of values.
        return np.split(np.asarray(column.values), np.asarray(column.row_splits)[1:-1])
    return list(np.asarray(column))


def on_cpu() -> tf.compat.v1.ConfigProto:
    """Return settings of a session without GPUs, which would round float32 differently."""
    config = tf1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    # Turn off an optimizer pass that saves GPU memory. The pass assumes that fed inputs are empty
    # batches. In TensorFlow 2.16 to 2.20, the memory optimizer also prints a warning for each
    # convolution, at any log level.
    options = config.graph_options.rewrite_options
    options.memory_optimization = options.NO_MEM_OPT
    return config
