"""Rows of a split as NumPy values, to be taken, permuted and fed to a graph again and again.

rows = rows_lib.read_rows(experiment, "test", most=2000)
rows.take([0, 3]), rows.permute(["age"], order), rows.fill("age", 40)
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import experiment as experiment_lib
from mtl import spec as spec_lib
from mtl.data import source as source_lib
from mtl.runs import diagnosis, inspection

tf1 = tf.compat.v1
_Ragged = tf1.ragged.RaggedTensorValue

Values = Mapping[str, Any]
"""{field: [N, ...]}, NumPy arrays, or `tf1.ragged` values of lists."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """N rows of a split.

    Attributes:
      split: where they are from.
      features: {field: [N, ...]}.
      labels: the same.
    """

    split: str
    features: Values
    labels: Values

    @property
    def size(self) -> int:
        """N."""
        return inspection.Batch(self.features, self.labels).size

    def take(self, places: Any) -> "Rows":
        """Return the rows at these places, [K] -> K rows."""
        return Rows(self.split, take(self.features, places), take(self.labels, places))

    def permute(self, fields: Sequence[str], order: np.ndarray) -> dict[str, Any]:
        """Return the features, where row i has the values of row `order[i]` in these fields."""
        moved = [*fields, *map(spec_lib.counts_name, fields)]
        own = {name: self.features[name] for name in moved if name in self.features}
        return {**self.features, **take(own, order)}

    def fill(self, field: str, value: Any) -> dict[str, Any]:
        """Return the features with one value for all rows in a field of one value a row."""
        given = np.asarray(self.features[field])
        return {**self.features, field: np.full(given.shape, value, given.dtype)}

    def split_up(self, size: int) -> Iterator["Rows"]:
        """Yield these rows in batches of so many."""
        for start in range(0, self.size, size):
            yield self.take(np.arange(start, min(start + size, self.size)))


def read_rows(experiment: experiment_lib.Experiment, split: str | None, most: int) -> Rows:
    """Return the first rows of a split, that of evaluation by default.

    Raises:
      UserError: there is no such split, or a record is bad.
    """
    batch = inspection.read_split(experiment, split, most)
    return Rows(split or experiment.data.eval_split, batch.features, batch.labels)


def read_batches(experiment: experiment_lib.Experiment, split: str, most: int) -> Iterator[Rows]:
    """Yield the first batches of a split, as large as those of training; a lone one may be smaller.

    Raises:
      UserError: a record is bad.
    """
    data = experiment.data
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        found = source_lib.iterate(lambda: data.one_pass(split).take(most))
        for number, batch in enumerate(found):
            if isinstance(batch, Exception):
                raise batch
            one = Rows(split, *batch)
            if number and one.size < data.batch_size:
                return
            yield one


def take(values: Values, places: Any) -> dict[str, Any]:
    """Return the rows at these places of {field: [N, ...]}."""
    places = np.asarray(places, np.int64)
    return {name: _take(value, places) for name, value in values.items()}


def _take(value: Any, places: np.ndarray) -> Any:
    if not isinstance(value, _Ragged):
        return np.asarray(value)[places]
    splits = np.asarray(value.row_splits)
    lengths = np.diff(splits)[places]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    entries = np.repeat(splits[:-1][places], lengths) + inner
    return _Ragged(np.asarray(value.values)[entries], ends.astype(splits.dtype))
