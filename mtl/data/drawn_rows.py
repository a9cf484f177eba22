"""Rows drawn at random over a whole split, for what looks at a part of it.

drawn = drawn_rows.draw(data, "test", most=2000, seed=1)
drawn.places, drawn.total                     # where they stand in the split, and how long it is
drawn_rows.keep(data, "test", drawn).one_pass("test")      # these rows, in the order of the split

The first rows of a split are no sample of it: a table may be sorted by a date, a class or a user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mtl import spec as spec_lib
from mtl import types
from mtl.data import pipeline
from mtl.data import source as source_lib
from mtl.deferred import tf

_ROWS_AT_ONCE = 4096


class Drawn(NamedTuple):
    """Rows of a split.

    Attributes:
      places: where each of them stands in the split, from 0 on: ascending int64 [K].
      total: how many rows the split has.
    """

    places: np.ndarray
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether they are all rows of the split."""
        return len(self.places) == self.total


def draw(
    data: pipeline.Pipeline, split: str, most: int, seed: int, group: str | None = None
) -> Drawn:
    """Draw rows without replacement, each with the same chance; all rows if there are no more.

    Args:
      data: where they come from.
      split: one of its splits.
      most: how many rows are drawn.
      seed: what the choice depends on.
      group: a label field, whose groups of equal values are drawn whole, as many as it takes to
        have `most` rows.

    Raises:
      UserError: there is no such split.
      Exception: what reading it ended with.
    """
    if group is None:
        total = _count_rows(data, split)
        keys = np.arange(total if total > most else 0)
    else:
        keys = _read_keys(data, split, group)
        total = len(keys)
    places = np.arange(total) if total <= most else _choose(keys, most, seed)
    return Drawn(places, total)


def keep(data: pipeline.Pipeline, split: str, drawn: Drawn) -> pipeline.Pipeline:
    """Return the same data, where a split holds the drawn rows alone."""
    if drawn.is_whole:
        return data
    source = _DrawnRows(source=data.source, split=split, places=drawn.places)
    return dataclasses.replace(data, source=source)


def _choose(keys: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Return the places of the rows of groups that are drawn one by one, until there are enough."""
    _, groups, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    count = int(np.searchsorted(np.cumsum(sizes[order]), most)) + 1
    return np.flatnonzero(np.isin(groups, order[:count]))


def _count_rows(data: pipeline.Pipeline, split: str) -> int:
    """Count the records, none of which is decoded."""

    def count() -> tf.data.Dataset:
        batches = source_lib.read_batches(data.source, split, _ROWS_AT_ONCE)
        return batches.map(lambda *batch: types.count_rows({"": tf.nest.flatten(batch)[0]}))

    return sum(map(int, _iterate(count)))


def _read_keys(data: pipeline.Pipeline, split: str, group: str) -> np.ndarray:
    """Return the group of each row, [N]."""
    light = data.keep_labels().in_large_batches(split)
    labels = _iterate(lambda: light.one_pass(split).map(lambda _, labels: labels[group]))
    return np.concatenate([np.asarray(part) for part in labels] or [np.zeros(0, np.int64)])


def _iterate(make: Any) -> Iterator[Any]:
    for found in source_lib.iterate(make):
        if isinstance(found, Exception):
            raise found
        yield found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DrawnRows(source_lib.ChosenRows):
    """The rows at some places of a split, and the other splits whole."""

    source: types.Source
    split: str
    places: np.ndarray

    @property
    def names(self) -> list[str]:
        """The columns of the source, if it has names for them."""
        return list(getattr(self.source, "names", ()))

    def chooser(self, split: str) -> source_lib.Chooser | None:
        """Return what chooses the rows; None for another split."""
        return self._takes if split == self.split else None

    def _takes(self, numbers: tf.Tensor, _: Any) -> tf.Tensor:
        places = tf.constant(self.places)
        found = tf.searchsorted(places, numbers)
        return tf.equal(tf.gather(places, tf.minimum(found, len(self.places) - 1)), numbers)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split record by record."""
        chosen = set(self.places.tolist()) if split == self.split else None
        for number, row in enumerate(self.source.scan(split, spec)):
            if chosen is None or number in chosen:
                yield row
