"""Computes moments, quantiles and frequent values of numbers, block by block.

numbers = numbers.Numbers()
numbers.add(np.array([1.5, 2.0, np.nan, np.inf]))
numbers.mean, numbers.deviation, numbers.find_quantiles([0.5])
"""

import math
from collections.abc import Sequence

import numpy as np

from mtl.tools.statistics import hashing

# The number of added numbers that are collected before they are sorted together.
_WAITING = 1 << 15
# The number of numbers in a full level of the sketch.
_LEVEL = 1 << 14
MOST_VALUES = 1 << 16
"""The largest number of distinct numbers for which quantiles and counts are exact."""


class Moments:
    """Computes the mean and the standard deviation in a numerically stable way.

    Instead of the numbers, their differences from a base number are summed, so that large numbers,
    such as times, do not lose digits. Blocks are merged as in Chan et al., Algorithms for computing
    the sample variance, https://doi.org/10.1080/00031305.1983.10483115.
    """

    def __init__(self) -> None:
        self._base: int | float | None = None
        self._count, self._offset, self._squares = 0, 0.0, 0.0

    def add(self, numbers: np.ndarray) -> None:
        """Add numbers.

        Args:
          numbers: finite numbers, int64 or float64 [N], N > 0.
        """
        # Use differences from the minimum, because the squares of large numbers, such as times or
        # ids, would lose digits.
        start = numbers.min()
        if numbers.dtype.kind == "f":
            least: int | float = float(start)
            differences = numbers - start
        else:
            least = int(start)
            # As unsigned integers, the differences do not overflow.
            differences = (numbers.view(np.uint64) - start.view(np.uint64)).astype(np.float64)
        if self._base is None:
            self._base = least
        mean = float(differences.mean())
        differences -= mean
        np.square(differences, out=differences)  # `np.dot` would start threads.
        squares = float(differences.sum())
        offset = float(least - self._base) + mean
        total = self._count + len(numbers)
        difference = offset - self._offset
        self._squares += squares + difference**2 * self._count * len(numbers) / total
        self._offset += difference * len(numbers) / total
        self._count = total

    @property
    def mean(self) -> float:
        """The mean; NaN without numbers."""
        return float(self._base + self._offset) if self._base is not None else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of the population, with the divisor N; NaN without numbers."""
        return math.sqrt(self._squares / self._count) if self._count else math.nan


class Numbers:
    """The distribution of finite numbers, and the counts of zeros, infinite numbers and NaN.

    Up to `most` distinct numbers are counted exactly in a table. If there are more distinct numbers
    than `most`, quantiles come from a sketch, in which a number of level l stands for 2**l numbers.
    If a level is full, half of its numbers move to the next level (Karnin, Lang and Liberty,
    Optimal quantile approximation in streams, arXiv:1603.05346).

    Args:
      most: the largest number of distinct numbers in the table.

    Attributes:
      count: the number of finite numbers.
      zeros: the number of zeros.
      infinite: the number of infinite numbers.
      nans: the number of NaN.
      least: the least finite number, which is exact; NaN without a finite number.
      greatest: the greatest finite number, which is exact; NaN without a finite number.
      is_whole: True if all finite numbers are whole.
      moments: mean and standard deviation of the finite numbers.
      lost: the largest error of the count of a frequent number. Counts of frequent numbers are
        never too high, but may be too low.
    """

    def __init__(self, most: int = MOST_VALUES):
        self.count = self.zeros = self.infinite = self.nans = self.lost = 0
        self.least: int | float = math.nan
        self.greatest: int | float = math.nan
        self.is_whole = True
        self.moments = Moments()
        self._most, self._waiting, self._num_waiting = most, list[np.ndarray](), 0
        self._values, self._counts = np.zeros([0], np.int64), np.zeros([0], np.int64)
        self._levels: list[np.ndarray] | None = None
        self._moves: list[int] = []
        self._distinct = hashing.Distinct()

    def add(self, numbers: np.ndarray) -> None:
        """Add numbers.

        Args:
          numbers: int64 or float64 [N]; NaN and infinite numbers are only counted.
        """
        if numbers.dtype.kind == "f":
            numbers = self._drop_infinite(numbers)
        if not len(numbers):
            return
        self.count += len(numbers)
        self.zeros += len(numbers) - np.count_nonzero(numbers)
        least, greatest = numbers.min().item(), numbers.max().item()
        self.least = least if self.least != self.least else min(self.least, least)
        self.greatest = greatest if self.greatest != self.greatest else max(self.greatest, greatest)
        if self.is_whole and numbers.dtype.kind == "f":
            self.is_whole = bool((numbers == np.floor(numbers)).all())
        self.moments.add(numbers)
        self._waiting.append(numbers)
        self._num_waiting += len(numbers)
        if self._num_waiting >= _WAITING:
            self._flush_waiting()

    def _drop_infinite(self, numbers: np.ndarray) -> np.ndarray:
        is_finite = np.isfinite(numbers)
        if is_finite.all():
            return numbers
        nans = int(np.isnan(numbers).sum())
        self.nans += nans
        self.infinite += len(numbers) - int(is_finite.sum()) - nans
        return numbers[is_finite]

    def _flush_waiting(self) -> None:
        """Move waiting numbers into the table or the sketch."""
        if not self._waiting:
            return
        values = np.concatenate(self._waiting)
        self._waiting, self._num_waiting = [], 0
        values.sort()
        values, counts = _count_sorted(values, np.ones(len(values), np.int64))
        if self._levels is not None:
            self._add_to_sketch(values, counts)
            self._distinct.add(hashing.hash_numbers(values))
            # Numbers that occur once in a block are counted only in the quantile sketch, because
            # they would soon fill the table of counts again.
            is_repeated = counts > 1
            self.lost += 0 if is_repeated.all() else 1
            values, counts = values[is_repeated], counts[is_repeated]
        self._merge_values(values, counts)
        if len(self._values) > self._most:
            self._cut()

    def _merge_values(self, values: np.ndarray, counts: np.ndarray) -> None:
        values = np.concatenate([self._values, values])
        order = np.argsort(values, kind="stable")
        counts = np.concatenate([self._counts, counts])[order]
        self._values, self._counts = _count_sorted(values[order], counts)

    def _cut(self) -> None:
        """Drop the rarer half of the table; before the first drop, copy the table into a sketch."""
        if self._levels is None:
            self._levels = []
            self._add_to_sketch(self._values, self._counts)
            self._distinct.add(hashing.hash_numbers(self._values))
        order = np.argsort(-self._counts, kind="stable")
        self.lost += int(self._counts[order[self._most // 2]])
        places = np.sort(order[: self._most // 2])
        self._values, self._counts = self._values[places], self._counts[places]

    def _add_to_sketch(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Add distinct numbers with their counts to the sketch.

        A number in level l of the sketch stands for 2^l equal numbers. The count of a number is a
        sum of powers of two, and the number is added to the level of each of these powers.
        """
        assert self._levels is not None
        for level in range(int(counts.max()).bit_length()):
            level_values = values[(counts >> level) & 1 == 1]
            if len(level_values):
                self._add_to_level(level, level_values)

    def _add_to_level(self, level: int, values: np.ndarray) -> None:
        levels = self._levels
        assert levels is not None
        while len(levels) <= level:
            levels.append(np.zeros([0], values.dtype))
            self._moves.append(0)
        levels[level] = np.concatenate([levels[level], values])
        if len(levels[level]) < _LEVEL:
            return
        full = np.sort(levels[level])
        # If a level holds an odd number of values, the largest value stays in the level.
        even = len(full) // 2 * 2
        # Move numbers at even and at odd places in turns, so that errors cancel out.
        upper = full[self._moves[level] % 2 : even : 2]
        self._moves[level] += 1
        levels[level] = full[even:]
        self._add_to_level(level + 1, upper)

    @property
    def mean(self) -> float:
        """The mean of the finite numbers; NaN without a finite number."""
        return self.moments.mean

    @property
    def deviation(self) -> float:
        """The standard deviation of the finite numbers; NaN without a finite number."""
        return self.moments.deviation

    @property
    def is_exact(self) -> bool:
        """True if the table has all distinct numbers, so that their counts are exact."""
        self._flush_waiting()
        return self._levels is None

    @property
    def rank_error(self) -> float:
        """The largest error of a quantile, as a share of the numbers; 0 if quantiles are exact."""
        # `is_exact` first adds all waiting numbers to the sketch, so that `self._moves` is
        # complete.
        if self.is_exact:
            return 0.0
        # Each move to a higher level shifts ranks by at most one number of the level, alternately
        # upwards and downwards.
        errors = [(moves + 1) // 2 << level for level, moves in enumerate(self._moves)]
        return sum(errors) / self.count

    def count_distinct(self) -> int:
        """Return the number of distinct finite numbers; an estimate if `is_exact` is False."""
        return len(self._values) if self.is_exact else self._distinct.count()

    def list_frequent(self, most: int) -> list[tuple[int | float, int]]:
        """Return the most frequent numbers with their counts; smaller numbers first in ties.

        Args:
          most: the largest number of numbers to return.
        """
        self._flush_waiting()
        order = np.argsort(-self._counts, kind="stable")[:most]
        return [(self._values[i].item(), int(self._counts[i])) for i in order]

    def weigh(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the distribution of the finite numbers.

        Returns:
          Sorted numbers [N], and the weight of each number, int64 [N]: how many numbers of the
          column it represents. If `is_exact` is True, the weight of a number is its count.
        """
        if self.is_exact:
            return self._values, self._counts
        assert self._levels is not None
        values = np.concatenate(self._levels)
        weights = np.repeat(
            [1 << i for i in range(len(self._levels))], list(map(len, self._levels))
        )
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def find_quantiles(self, shares: Sequence[float]) -> list[int | float]:
        """Return quantiles of the finite numbers; NaN without numbers.

        The quantile of a share is the least number x for which at least this share of all numbers
        is at most x.

        Args:
          shares: the shares in [0, 1] whose quantiles are returned; the quantile of 0.5 is the
            median.
        """
        values, weights = self.weigh()
        if not len(values):
            return [math.nan] * len(shares)
        totals = np.cumsum(weights)
        # The last factor corrects rounding: 0.07 * 100 is 7.000000000000001, whose ceiling is 8.
        ranks = np.ceil(np.asarray(shares) * totals[-1] * (1 - 1e-12))
        places = np.searchsorted(totals, np.clip(ranks, 1, totals[-1]))
        # The sketch may have dropped the least and the greatest number, so use the attributes
        # `least` and `greatest`.
        ends = {0.0: self.least, 1.0: self.greatest}
        return [ends.get(s, values[p].item()) for s, p in zip(shares, places, strict=True)]


def _count_sorted(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct numbers among sorted numbers, and the sum of counts for each number."""
    if not len(values):
        return values, counts
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return values[starts], np.add.reduceat(counts, starts)
