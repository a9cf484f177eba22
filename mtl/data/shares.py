"""Assigns each position of an endless stream to one of several sources, by their shares.

dealer = shares.Fixed([0.75, 0.25])
dealer.deal(0, 4)              # sources [0, 0, 1, 0], and the rows of each source [0, 1, 0, 2]

Row k of a source with share p has the ideal position (k + 1/2) / p, and the rows of all sources are
sorted by ideal position. The order by ideal positions is Webster's method of apportionment, applied
row by row (Balinski and Young, "Fair Representation", 1982). In the scheduling of processes, the
order by ideal positions is called stride scheduling (Waldspurger and Weihl, "Stride Scheduling",
1995).

After n positions, the number of rows of a source with share p differs from n p by at most (S p + 1)
/ 2 for S sources. If the share of a source in a batch is not a whole number of rows, later batches
make up for the rounding. The source of a position is computed without computing earlier positions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import numpy as np

# Shares of a schedule are rounded to multiples of this number, so that sums over steps are exact.
_UNIT = 2.0**-24
# Schedules are evaluated for this number of steps at once.
_STEPS = 8192


class Shares(abc.ABC):
    """The shares of several sources in an endless sequence of training rows.

    Args:
      num_sources: S, the number of sources.
    """

    def __init__(self, num_sources: int):
        self._num_sources = num_sources

    def count(self, place: int) -> np.ndarray:
        """Return the number of rows of each source before a position of the stream.

        Args:
          place: the position, from 0.

        Returns:
          The numbers of rows of the S sources, int64 [S]; they sum to `place`.
        """
        lower_bounds = np.floor(self._sum_shares(place)).astype(np.int64) - self._num_sources - 2
        lower_bounds = np.maximum(lower_bounds, 0)
        sources, _ = self._draw(lower_bounds, place)
        return lower_bounds + np.bincount(sources, minlength=self._num_sources)

    def deal(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and the row number in the source, for positions `first` to `stop` - 1.

        The first row of a source in the stream has the number 0, and the numbers grow without end.

        Returns:
          The source of each position, and the number of its row in the source, int64 [stop - first]
          each.
        """
        return self._draw(self.count(first), stop)

    def _draw(self, counts: np.ndarray, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sources and rows up to `stop`, without the first `counts` rows of each source."""
        upper_bounds = np.ceil(self._sum_shares(stop)).astype(np.int64) + self._num_sources + 2
        lengths = np.maximum(upper_bounds - counts, 0)
        sources = np.repeat(np.arange(self._num_sources), lengths)
        starts = np.cumsum(lengths) - lengths
        numbers = np.arange(len(sources)) + np.repeat(counts - starts, lengths)
        places = self._find_due(sources, numbers)
        # If several rows have the same ideal position, the stable sort puts the first source first.
        ranks = np.argsort(places, kind="stable")[: stop - int(counts.sum())]
        return sources[ranks], numbers[ranks]

    @abc.abstractmethod
    def _sum_shares(self, place: int) -> np.ndarray:
        """Return the sum of the shares over the first `place` positions, float64 [S]."""

    @abc.abstractmethod
    def _find_due(self, sources: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return ideal positions of rows, float64 [N]; inf if a row comes much later or never."""


class Fixed(Shares):
    """Shares of sources that are constant over all positions of the stream.

    Args:
      rates: a number for each source, at least 0, with a sum above 0.
    """

    def __init__(self, rates: Sequence[float] | np.ndarray):
        super().__init__(len(rates))
        self._shares = np.asarray(rates, np.float64) / np.sum(rates)

    def _sum_shares(self, place: int) -> np.ndarray:
        return place * self._shares

    def _find_due(self, sources: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return (numbers + 0.5) / self._shares[sources]


class Scheduled(Shares):
    """Shares of sources that change from step to step.

    Args:
      evaluate: a function of `first` and `stop`, which returns the rates of the sources in the
        steps from `first` to `stop - 1`, float64 [steps, S]. All rates are at least 0, and in each
        step, at least one rate is above 0.
      num_sources: S, the number of sources.
      size: the number of positions in the stream that belong to one step.
      at_once: the number of steps in one call of `evaluate`.
    """

    def __init__(
        self,
        evaluate: Callable[[int, int], np.ndarray],
        num_sources: int,
        size: int,
        at_once: int = _STEPS,
    ):
        super().__init__(num_sources)
        self._evaluate, self._size, self._at_once = evaluate, size, at_once
        self._shares = np.zeros([0, num_sources])
        # For each step, the sum of each source's shares in all earlier steps.
        self._sums = np.zeros([1, num_sources])

    def _reach(self, step: int) -> None:
        """Evaluate the schedules of all steps before `step`."""
        parts = []
        for first in range(len(self._shares), step, self._at_once):
            rates = self._evaluate(first, first + self._at_once)
            shares = np.rint(rates / rates.sum(axis=1, keepdims=True) / _UNIT) * _UNIT
            largest = np.argmax(shares, axis=1)
            shares[np.arange(len(shares)), largest] += 1 - shares.sum(axis=1)
            parts.append(shares)
        if parts:
            self._shares = np.concatenate([self._shares, *parts])
            self._sums = np.concatenate([np.zeros([1, self._num_sources]), self._shares.cumsum(0)])

    def _sum_shares(self, place: int) -> np.ndarray:
        step, offset = divmod(place, self._size)
        # With S sources, the ideal position of a row may be up to S / 2 positions after its actual
        # position.
        self._reach(step + self._num_sources + 2)
        return self._size * self._sums[step] + offset * self._shares[step]

    def _find_due(self, sources: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        row_places = np.full(len(sources), np.inf)
        for source in range(self._num_sources):
            mask, sums = sources == source, self._sums[:, source]
            targets = (numbers[mask] + 0.5) / self._size
            # The step in which the sum of the source's shares, in batches, reaches a row's number
            # in `targets`.
            steps = np.searchsorted(sums, targets) - 1
            is_reached = steps < len(self._shares)
            steps, targets = steps[is_reached], targets[is_reached]
            places = np.full(len(is_reached), np.inf)
            fractions = (targets - sums[steps]) / self._shares[steps, source]
            places[is_reached] = self._size * (steps + fractions)
            row_places[mask] = places
        return row_places
