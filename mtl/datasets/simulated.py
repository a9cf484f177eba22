"""The base class of sources that draw rows from a seed, the split and the row number."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source
from mtl.deferred import tf

SPLITS = ("train", "validation", "test")
ROWS_TOGETHER = 1000
"""The number of rows that are drawn together: drawing them one by one takes 100 times as long."""


class Simulated(types.Source):
    """A source whose rows depend only on the seed, the split and the row number.

    A subclass is a dataclass with the setting `rows`.

    Attributes:
      rows: {split: number of rows} for some of `SPLITS`.
    """

    rows: Mapping[str, int]

    @property
    @abc.abstractmethod
    def fields(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """{field: (type, shape)}."""

    @abc.abstractmethod
    def draw(self, split: int, part: tf.Tensor) -> dict[str, Any]:
        """Draw one part of a split, which has `ROWS_TOGETHER` rows.

        Args:
          split: the index of the split in `SPLITS`.
          part: the number of the part, an int64 scalar.

        Returns:
          {field: [`ROWS_TOGETHER`, ...]}.
        """

    def check_rows(self) -> None:
        """Fail unless `rows` maps splits to positive numbers of rows."""
        where = f"{type(self).__name__}.rows"
        checks.mapping(where, self.rows, "map splits to their number of rows")
        for split, rows in self.rows.items():
            checks.one_of(where, split, SPLITS)
            checks.whole(f"{where}[{split!r}]", rows, 1)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {field: [...]}."""
        checks.one_of(f"{type(self).__name__} split", split, self.rows)
        rows, number = self.rows[split], SPLITS.index(split)
        # The last part may exceed the split, so `take` drops the surplus rows.
        parts = tf.data.Dataset.range(math.ceil(rows / ROWS_TOGETHER))
        return parts.map(functools.partial(self.draw, number)).unbatch().take(rows)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Return the fields of the specification from a batch."""
        fields = spec.fields if with_labels else spec.feature_fields
        self._check_fields(fields)
        return {name: batch[name] for name in fields}

    def _check_fields(self, fields: Mapping[str, spec_lib.Field]) -> None:
        for name, field in fields.items():
            where = f"{type(self).__name__} field {name!r}"
            checks.one_of(where, name, self.fields)
            dtype, shape = self.fields[name]
            checks.require(field.dtype == dtype, where, f"be {dtype}", field.dtype)
            fix = f"Make it {shape} in the Spec."
            checks.require(field.shape == shape, where, f"have shape {shape}", field.shape, fix)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values) for each row of a split."""
        self._check_fields(spec.fields)
        for row, values in enumerate(source.iterate(functools.partial(self.records, split))):
            example = {name: np.asarray(values[name]).tolist() for name in spec.fields}
            yield f"{type(self).__name__} split {split!r} row {row}", example


def draw_directions(seed: int, dimension: int, cosine: float) -> np.ndarray:
    """Draw two unit vectors with a given cosine of their angle, [D, 2].

    Args:
      seed: the seed of the random vectors.
      dimension: D, the number of elements of a vector.
      cosine: the cosine of the angle between the two vectors, in [-1, 1].
    """
    normal = np.random.default_rng(seed).normal(size=[dimension, 2])
    # The columns are orthonormal; turn the second column towards the first column.
    first, second = np.linalg.qr(normal)[0].T
    rest = math.sqrt(1 - cosine**2)
    return np.stack([first, cosine * first + rest * second], axis=1)
