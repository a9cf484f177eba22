"""Draws rows at random from a whole split, for reports on a sample of the split.

sample = drawn_rows.draw(data, "test", most=2000, seed=1)
sample.places, sample.total                # the places of the rows in the split, and its length
drawn_rows.keep(data, "test", sample).one_pass("test")     # these rows, in the order of the split

Do not use the first rows as a sample: a table may be sorted by a date, a class or a user.
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
    """A random sample of the rows of a split.

    Attributes:
      places: the indices in the split of the K rows of the sample, ascending int64 [K].
      total: the number of rows in the split.
    """

    places: np.ndarray
    total: int

    @property
    def is_whole(self) -> bool:
        """True if the sample contains all rows of the split."""
        return len(self.places) == self.total


def draw(
    data: pipeline.Pipeline, split: str, most: int, seed: int, group: str | None = None
) -> Drawn:
    """Draw rows of a split without replacement, each row with the same chance.

    Args:
      data: the pipeline that reads the split.
      split: the name of the split.
      most: the number of rows to draw.
      seed: the seed of the draw.
      group: the name of a label field, or None. Rows with the same value of this field form a
        group, and whole groups are drawn until there are at least `most` rows.

    Returns:
      The sample; all rows if the split has at most `most` rows.

    Raises:
      UserError: the split does not exist.
      Exception: the error that stopped the reading of the split.
    """
    if group is None:
        total = _count_rows(data, split)
        # Without groups, each row is a group. If a split has at most `most` rows, all rows are
        # drawn, so no keys are needed.
        keys = np.arange(total if total > most else 0)
    else:
        keys = _read_keys(data, split, group)
        total = len(keys)
    places = np.arange(total) if total <= most else _choose(keys, most, seed)
    return Drawn(places, total)


def keep(data: pipeline.Pipeline, split: str, drawn: Drawn) -> pipeline.Pipeline:
    """Return the same pipeline, but with only the rows of a sample in a split.

    Args:
      data: the pipeline that reads the split.
      split: the name of the split. Other splits keep all rows.
      drawn: the sample of the split, from `draw`.
    """
    if drawn.is_whole:
        return data
    source = _DrawnRows(source=data.source, split=split, places=drawn.places)
    return dataclasses.replace(data, source=source)


def _choose(keys: np.ndarray, max_rows: int, seed: int) -> np.ndarray:
    """Draw groups one by one until they have `max_rows` rows; return the indices of these rows."""
    _, groups, sizes = np.unique(keys, return_inverse=True, return_counts=True)  # [N], [groups]
    order = np.random.default_rng(seed).permutation(len(sizes))
    # Take the smallest number of drawn groups that have at least `max_rows` rows.
    count = int(np.searchsorted(np.cumsum(sizes[order]), max_rows)) + 1
    # `flatnonzero` returns ascending indices, which the binary search of `_DrawnRows` needs.
    return np.flatnonzero(np.isin(groups, order[:count]))


def _count_rows(data: pipeline.Pipeline, split: str) -> int:
    """Count the records of a split without decoding them."""

    def count() -> tf.data.Dataset:
        # Keep records raw, because decoding takes most of the time of reading.
        batches = source_lib.read_batches(data.source, split, _ROWS_AT_ONCE)
        return batches.map(lambda *batch: types.count_rows({"": tf.nest.flatten(batch)[0]}))

    return sum(map(int, _iterate(count)))


def _read_keys(data: pipeline.Pipeline, split: str, group: str) -> np.ndarray:
    """Return the group of each row of a split, [N]."""
    # A group depends only on labels, so decode no features.
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
    """A source with only some rows of one split, and with all rows of other splits."""

    source: types.Source
    split: str
    places: np.ndarray

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return a function that selects rows of the split; None for other splits."""
        return chosen_rows.Choice(self._takes) if split == self.split else None

    def _takes(self, numbers: Any, _: Any) -> Any:
        # Sources that list their rows pass a NumPy array; other sources call
        # this method in `tf.data`.
        if isinstance(numbers, np.ndarray):
            return np.isin(numbers, self.places)
        places = tf.constant(self.places)
        # For a number above all indices, `searchsorted` returns an index past the end.
        indices = tf.searchsorted(places, numbers)
        return tf.equal(tf.gather(places, tf.minimum(indices, len(self.places) - 1)), numbers)
