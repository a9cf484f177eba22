"""Accumulators gather statistics of the training split, batch by batch, in NumPy.

gathered = accumulators.Moments(source="age", read=lambda features: features["age"].numpy())
gathered.update(features)                                # for each batch
gathered.save(directory, "numeric_age")                  # {"mean": [38.6], "stddev": [13.6], ...}
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import column as columns

_log = logging.getLogger(__name__)

# Quantiles of many values are computed from a uniform sample of this size.
_SAMPLE_SIZE = 1 << 18
# If a field has more than `_MOST_ELEMENTS` elements, the sample has fewer rows, to bound the
# memory.
_MOST_ELEMENTS = 16


@dataclasses.dataclass(kw_only=True)
class Moments:
    """Computes mean, standard deviation, least and greatest finite value of each element.

    Batches are merged in float64 by the update of Chan, Golub and LeVeque (1979). The update's
    rounding errors stay small even if the mean of an element is much larger than its standard
    deviation.

    Attributes:
      source: a description of the measured values; statistics of another source are not reused.
      read: a function from features to values, [N, n].
      by_example: True if `read` returns one row for each example; `together` then updates all
        accumulators of this kind at once.
    """

    source: str
    read: Callable[[types.Tensors], np.ndarray] = dataclasses.field(repr=False)
    by_example: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self):
        self._count, self._mean, self._squares = 0.0, 0.0, 0.0
        self._least, self._greatest = np.inf, -np.inf

    def update(self, fields: types.Tensors) -> None:
        """Merge the moments of a batch into the moments of all earlier batches."""
        self._merge_values(np.asarray(self.read(fields), np.float64))

    def deal(self, parts: Sequence[Moments], widths: Sequence[int]) -> None:
        """Split the moments by element, and copy consecutive elements to several accumulators.

        Args:
          parts: the accumulators that get the elements, in order.
          widths: the number of elements of each accumulator.
        """
        ends = np.cumsum(widths)[:-1]
        for name in ("_count", "_mean", "_squares", "_least", "_greatest"):
            for part, values in zip(parts, np.split(getattr(self, name), ends), strict=True):
                setattr(part, name, values)

    def _merge_values(self, values: np.ndarray) -> None:
        finite = np.isfinite(values)
        counts = finite.sum(0)
        mean = np.where(finite, values, 0).sum(0) / np.maximum(counts, 1)
        squares = np.where(finite, values - mean, 0) ** 2
        total = np.maximum(self._count + counts, 1)
        # The update of Chan, Golub and LeVeque (1979), as in `heads.metrics.Moments`, because sums
        # of squares would lose a small variance beside a large mean.
        delta = mean - self._mean
        self._squares = self._squares + squares.sum(0) + delta**2 * self._count * counts / total
        self._mean = self._mean + delta * counts / total
        self._count = self._count + counts
        self._least = np.minimum(self._least, np.where(finite, values, np.inf).min(0))
        self._greatest = np.maximum(self._greatest, np.where(finite, values, -np.inf).max(0))

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return mean, standard deviation, least and greatest value of each element; write no file.

        Returns:
          {"mean", "stddev", "least" and "greatest": a list of n numbers each}.

        Raises:
          UserError: the training split has no finite value for one of the elements.
        """
        _require_values(bool(np.all(self._count)), column, self.source)
        # Rounding errors of the mean would give equal values a tiny deviation.
        squares = np.where(self._least == self._greatest, 0.0, self._squares)
        return {
            "mean": np.atleast_1d(self._mean).tolist(),
            "stddev": np.atleast_1d(np.sqrt(squares / self._count)).tolist(),
            "least": np.atleast_1d(self._least).tolist(),
            "greatest": np.atleast_1d(self._greatest).tolist(),
        }


def together(gathered: Sequence[types.Accumulator]) -> list[Callable[[types.Tensors], None]]:
    """Return functions that update accumulators; one function updates all `by_example` moments.

    Args:
      gathered: the accumulators to update, which may be of different classes.

    Returns:
      Functions of the eager fields of a batch, {field: [B, ...]}. For each batch, call each
      returned function once.
    """
    moments: list[Moments] = []
    updates: list[Callable[[types.Tensors], None]] = []
    for part in gathered:
        if isinstance(part, Moments) and part.by_example:
            moments.append(part)
        else:
            updates.append(part.update)
    return [*updates, _Together(moments)] if moments else updates


class _Together:
    """Updates the moments of many columns at once, like the elements of a single column."""

    def __init__(self, parts: Sequence[Moments]):
        self._parts = parts
        self._all = Moments(source="", read=self._read)

    def _read(self, features: types.Tensors) -> np.ndarray:
        parts = [part.read(features) for part in self._parts]
        self._widths = [values.shape[1] for values in parts]
        return np.concatenate(parts, axis=1, dtype=np.float64, casting="unsafe")

    def __call__(self, features: types.Tensors) -> None:
        self._all.update(features)
        self._all.deal(self._parts, self._widths)


@dataclasses.dataclass(kw_only=True)
class Quantiles:
    """Computes the boundaries of buckets that hold about equally many finite values.

    Attributes:
      source: a description of the measured values.
      read: a function from features to values, [N].
      num_buckets: the approximate number of buckets.
    """

    source: str
    read: Callable[[types.Tensors], np.ndarray] = dataclasses.field(repr=False)
    num_buckets: int

    def __post_init__(self):
        self._sample = _Sample(_SAMPLE_SIZE)

    def update(self, fields: types.Tensors) -> None:
        """Add the values of a batch."""
        values = _widen_values(np.asarray(self.read(fields)).ravel())
        self._sample.add(values[np.isfinite(values)])

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Compute the boundaries of the buckets; write no file.

        Returns:
          {"boundaries": ascending numbers, as from `quantile_boundaries`}. If all values are equal,
          the list of boundaries is empty.

        Raises:
          UserError: the split has no finite value.
        """
        values = self._sample.take()
        _require_values(len(values) > 0, column, self.source)
        return {"boundaries": quantile_boundaries(values, self.num_buckets).tolist()}


@dataclasses.dataclass(kw_only=True)
class Bins:
    """Computes bin boundaries for every element, from the least to the greatest finite value.

    `quantile_boundaries` gives the inner boundaries.

    Attributes:
      source: a description of the measured values.
      read: a function from features to values, [N, n].
      num_bins: the approximate number of bins.
    """

    source: str
    read: Callable[[types.Tensors], np.ndarray] = dataclasses.field(repr=False)
    num_bins: int

    def __post_init__(self):
        self._sample, self._ends = None, None

    def update(self, fields: types.Tensors) -> None:
        """Add the values of a batch."""
        values = _widen_values(np.asarray(self.read(fields)))
        if self._sample is None:
            sample_size = _SAMPLE_SIZE * _MOST_ELEMENTS // max(values.shape[1], _MOST_ELEMENTS)
            self._sample, self._ends = _Sample(sample_size), [column[:0] for column in values.T]
        self._sample.add(values)
        self._ends = [
            _find_ends(np.concatenate([ends, column[np.isfinite(column)]]))
            for ends, column in zip(self._ends, values.T, strict=True)
        ]

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Compute the boundaries of every element; write no file.

        Returns:
          {"boundaries": ascending numbers for each of n elements, "least" and "greatest": the first
          and the last boundary of each element}. A constant element has a single boundary.

        Raises:
          UserError: the training split has no finite value for one of the elements.
        """
        boundaries = []
        for ends, values in zip(self._ends, self._sample.take().T, strict=True):
            _require_values(len(ends) > 0, column, self.source)
            finite = values[np.isfinite(values)]
            # If an element is mostly missing, the sample may hold none of its values.
            inner = quantile_boundaries(finite if len(finite) else ends, self.num_bins)
            boundaries.append(np.unique(np.concatenate([inner, ends])).tolist())
        lowest, highest = zip(*[(bins[0], bins[-1]) for bins in boundaries], strict=True)
        return {"boundaries": boundaries, "least": list(lowest), "greatest": list(highest)}


def _widen_values(values: np.ndarray) -> np.ndarray:
    """Convert floats to float64, and integers to int64, because float64 rounds above 2^53."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def _find_ends(values: np.ndarray) -> np.ndarray:
    """Return the least and the greatest value, or an empty array if there are no values."""
    return np.array([values.min(), values.max()]) if len(values) else values


class _Sample:
    """A uniform sample of rows in bounded memory: the rows with the smallest random keys."""

    def __init__(self, size: int):
        self._size = size
        self._random = np.random.default_rng(0)
        self._values, self._keys = np.empty(0), np.empty(0)

    def add(self, values: np.ndarray) -> None:
        """Add rows to the sample: values [N], or [N, n] with n values in each row."""
        # Without earlier rows, `values[:0]` is an empty array with the dtype of `values`.
        earlier = self._values if len(self._keys) else values[:0]
        self._values = np.concatenate([earlier, values])
        self._keys = np.concatenate([self._keys, self._random.random(len(values))])
        # Trim the sample only at twice its size, so that the average cost for each row is constant.
        if len(self._keys) > 2 * self._size:
            self._trim_values()

    def take(self) -> np.ndarray:
        """Return the sample, which has at most `size` rows."""
        self._trim_values()
        return self._values

    def _trim_values(self) -> None:
        if len(self._keys) > self._size:
            places = np.argpartition(self._keys, self._size)[: self._size]
            self._values, self._keys = self._values[places], self._keys[places]


def quantile_boundaries(values: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return ascending boundaries b of buckets b[i-1] <= x < b[i] of about equal size.

    First, each value that is frequent enough to fill a bucket gets a separate bucket. If a field is
    mostly zeros, the zeros take a single bucket, and all other buckets are left for other values.
    The number of buckets may differ from `num_buckets`: a separate bucket divides the bucket around
    it, and equal values share a bucket.

    Args:
      values: finite numbers [N], in any order.
      num_buckets: the approximate number of buckets, at least 2.
    """
    distinct, counts = np.unique(values, return_counts=True)
    is_alone = np.zeros(len(distinct), bool)
    frequent = ~is_alone
    while frequent.any():
        share = counts[~is_alone].sum() / (num_buckets - is_alone.sum())
        frequent = ~is_alone & (counts > share)
        is_alone |= frequent
    ranks = np.cumsum(np.where(is_alone, 0, counts)) - counts / 2
    # Negative bucket numbers give each frequent value a separate bucket.
    buckets = np.where(is_alone, -1 - np.arange(len(distinct)), ranks // max(share, 1))
    return distinct[1:][np.diff(buckets) != 0]


@dataclasses.dataclass(kw_only=True)
class Vocabulary:
    """Counts distinct values, and sorts them by descending frequency, then by their bytes.

    Empty values and values with a line break count as unknown, because a line of the vocabulary
    file cannot hold such values.

    Attributes:
      reads: {description: function from features to texts, [N]}; the texts of all functions are
        counted.
      min_count: the least number of times that a value of the vocabulary occurs.
      max_size: the largest number of values; the most frequent values are kept. With `max_size =
        None`, all values are kept.
      source: the descriptions in `reads`, joined to one text.
    """

    source: str = dataclasses.field(init=False)
    reads: Mapping[str, Callable[[types.Tensors], tf.Tensor]] = dataclasses.field(repr=False)
    min_count: int
    max_size: int | None

    def __post_init__(self):
        self.source = ", ".join(sorted(self.reads))
        self._counts = collections.Counter()

    def join(self, other: Vocabulary) -> Vocabulary:
        """Return a vocabulary that counts the fields of both vocabularies, common fields once.

        Call `join` before the first update, because the joined vocabulary starts without counts.

        Args:
          other: another vocabulary. The joined vocabulary takes only `reads` from the argument
            `other`; all other settings come from `self`.
        """
        return dataclasses.replace(self, reads={**self.reads, **other.reads})

    def update(self, fields: types.Tensors) -> None:
        """Count the values of a batch."""
        for read in self.reads.values():
            values, _, counts = tf.unique_with_counts(read(fields), tf.int64)
            pairs = zip(values.numpy().tolist(), counts.numpy().tolist(), strict=True)
            self._counts.update(dict(pairs))

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Write the vocabulary, with one value per line.

        The log warns of frequent values that the vocabulary lacks because they have a line break.

        Returns:
          {"file": the name of the file, "size": the number of values}.

        Raises:
          UserError: no value occurs `min_count` times.
        """
        values = self._rank_values()
        self._warn_of_breaks()
        rule = f"hold a value that occurs {self.min_count} times (min_count)"
        fix = "Lower min_count, leave the field out, or use a Hashed column."
        checks.require(len(values) > 0, f"features.{column}", rule, 0, fix)
        name = f"vocabulary_{column}.txt"
        with tf.io.gfile.GFile(os.path.join(directory, name), "wb") as file:
            file.write(b"".join(value + b"\n" for value in values))
        return {"file": name, "size": len(values)}

    def _rank_values(self) -> list[bytes]:
        """Return the values of the vocabulary, sorted by descending frequency."""
        # Sort equal counts by text, so that the order of the rows does not matter.
        pairs = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        values = (
            value
            for value, count in pairs
            # A value with a line break would take two lines of the file.
            if count >= self.min_count and value.splitlines() == [value]
        )
        return list(itertools.islice(values, self.max_size))

    def _warn_of_breaks(self) -> None:
        frequent = (value for value, count in self._counts.items() if count >= self.min_count)
        broken = [value for value in frequent if value and value.splitlines() != [value]]
        if broken:
            _log.warning(
                "Warning: %d frequent value(s) of %s have a line break, such as %r. The model does "
                "not know them, because a vocabulary has one value a line. Replace the line "
                "breaks, or use a Hashed column.",
                len(broken),
                self.source,
                min(broken).decode(errors="replace"),
            )


@dataclasses.dataclass(kw_only=True)
class VocabularyOfBlocks(Vocabulary):
    """A vocabulary that is divided into blocks by frequency, and counts the values in each block.

    Attributes:
      ends: the ranks at which blocks end, except for the last block.
    """

    ends: tuple[int, ...]

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Write the vocabulary, with one value per line.

        Returns:
          The entries of `Vocabulary.save`, and {"block_counts": the number of occurrences of the
          values in each block}.

        Raises:
          UserError: no value occurs `min_count` times, or no value is left for the last block.
        """
        entry = super().save(directory, column)
        counts = [self._counts[value] for value in self._rank_values()]
        rule = f"have more than {self.ends[-1]} categories, because its last block begins there"
        checks.require(len(counts) > self.ends[-1], f"features.{column}", rule, len(counts))
        pairs = itertools.pairwise((0, *self.ends, None))
        return {**entry, "block_counts": [sum(counts[first:last]) for first, last in pairs]}


class OfEvents:
    """Passes all list entries to an accumulator that expects one value per row.

    Args:
      inner: the accumulator that gets the entries.
      lists: the names of the fields, [B, (L)] or [B, L].
    """

    def __init__(self, inner: types.Accumulator, lists: Sequence[str]):
        self._inner, self._lists = inner, lists

    def __repr__(self) -> str:
        return repr(self._inner)

    def update(self, fields: types.Tensors) -> None:
        """Add all list entries of a batch; skip a batch in which a list has no entries."""
        entries = {name: columns.flat(fields[name]) for name in self._lists}
        if all(tf.size(values) > 0 for values in entries.values()):
            self._inner.update(entries)

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the statistics of `inner`."""
        return dict(self._inner.save(directory, column))


def _require_values(holds: bool, column: str, source: str) -> None:
    rule = "be fitted on a finite number"
    checks.require(holds, f"features.{column}", rule, "none", f"In {source}.")
