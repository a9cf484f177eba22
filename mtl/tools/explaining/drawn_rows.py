"""Draws rows at random from a whole split, for reports about a sample.

sample = drawn_rows.draw(data, "test", most=2000, seed=1)
sample.places, sample.total                # the places of the rows in the split, and its length
drawn_rows.keep(data, "test", sample).one_pass("test")     # these rows, in the order of the split

Do not take the first rows as a sample: a table may be sorted by a date, a class or a user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mtl import types
from mtl.data import chosen_rows, pipeline
from mtl.data import source as source_lib
from mtl.deferred import tf

_ROWS_AT_ONCE = 4096


class Drawn(NamedTuple):
    """Rows of a split.

    Attributes:
      places: the place of each row in the split, from 0 on: ascending int64 [K].
      total: the number of rows in the split.
    """

    places: np.ndarray
    total: int

    @property
    def is_whole(self) -> bool:
        """True if the sample has all rows of the split."""
        return len(self.places) == self.total


def draw(
    data: pipeline.Pipeline, split: str, most: int, seed: int, group: str | None = None
) -> Drawn:
    """Draw rows without replacement, each with the same chance.

    Args:
      data: the data with the rows.
      split: the split to draw from.
      most: the number of rows to draw.
      seed: the seed of the draw.
      group: a label field. Rows with equal values are drawn together, until there are at least
        `most` rows.

    Returns:
      The drawn rows; all rows if the split has at most `most`.

    Raises:
      UserError: the split does not exist.
      Exception: the error that ended the reading of the split.
    """
    if group is None:
        total = _count_rows(data, split)
        # Each row is a separate group. A split with at most `most` rows needs no keys.
        keys = np.arange(total if total > most else 0)
    else:
        keys = _read_keys(data, split, group)
        total = len(keys)
    places = np.arange(total) if total <= most else _choose(keys, most, seed)
    return Drawn(places, total)


def keep(data: pipeline.Pipeline, split: str, drawn: Drawn) -> pipeline.Pipeline:
    """Return the same data, but with only the drawn rows in this split."""
    if drawn.is_whole:
        return data
    source = _DrawnRows(source=data.source, split=split, places=drawn.places)
    return dataclasses.replace(data, source=source)


def _choose(keys: np.ndarray, max_rows: int, seed: int) -> np.ndarray:
    """Draw groups one by one until they have `max_rows` rows; return the places of these rows."""
    _, groups, sizes = np.unique(keys, return_inverse=True, return_counts=True)  # [N], [groups]
    order = np.random.default_rng(seed).permutation(len(sizes))
    # The smallest number of groups that together have at least `max_rows` rows.
    count = int(np.searchsorted(np.cumsum(sizes[order]), max_rows)) + 1
    # `flatnonzero` returns ascending places, which the binary search of `_DrawnRows` needs.
    return np.flatnonzero(np.isin(groups, order[:count]))


def _count_rows(data: pipeline.Pipeline, split: str) -> int:
    """Count the records without decoding them."""

    def count() -> tf.data.Dataset:
        # Records stay raw: decoding takes most of the time of reading.
        batches = source_lib.read_batches(data.source, split, _ROWS_AT_ONCE)
        return batches.map(lambda *batch: types.count_rows({"": tf.nest.flatten(batch)[0]}))

    return sum(map(int, _iterate(count)))


def _read_keys(data: pipeline.Pipeline, split: str, group: str) -> np.ndarray:
    """Return the group of each row, [N]."""
    # Groups depend only on labels, so no features are decoded.
    light = data.keep_labels().in_large_batches(split)
    labels = _iterate(lambda: light.one_pass(split).map(lambda _, labels: labels[group]))
    return np.concatenate([np.asarray(part) for part in labels] or [np.zeros(0, np.int64)])


def _iterate(make: Any) -> Iterator[Any]:
    for element in source_lib.iterate(make):
        if isinstance(element, Exception):
            raise element
        yield element


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DrawnRows(chosen_rows.ChosenRows):
    """A source with only some rows of one split, and all rows of other splits."""

    source: types.Source
    split: str
    places: np.ndarray

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return the function that chooses rows of a split; None for another split."""
        return chosen_rows.Choice(self._takes) if split == self.split else None

    def _takes(self, numbers: Any, _: Any) -> Any:
        # Sources that list their rows pass a NumPy array; other sources call this in `tf.data`.
        if isinstance(numbers, np.ndarray):
            return np.isin(numbers, self.places)
        places = tf.constant(self.places)
        # For a number above all places, `searchsorted` returns an index past the end.
        indices = tf.searchsorted(places, numbers)
        return tf.equal(tf.gather(places, tf.minimum(indices, len(self.places) - 1)), numbers)
