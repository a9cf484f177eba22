"""Adapts the rates of a mixture to the losses: a source whose tasks learn slowly gets more rows.

mixture.Mixture.rates = @moved_rates.ByLosses()
moved_rates.ByLosses.every = 500                 # steps between two decisions
moved_rates.ByLosses.power = 1.0                 # 0 leaves the rates where they begin

The losses of one interval of steps set the rates of the interval after the next, so training never
waits for rows. The checkpoint holds all rates so far, so a resumed run gets the same batches.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

import numpy as np

from mtl import checks
from mtl.data import shares

# A checkpoint has room for the rates of this number of intervals.
MOST_INTERVALS = 1024
# `Decisions.wait` fails after this number of seconds. Usually, `wait` returns after the end of the
# previous session call, at the latest.
_PATIENCE_SECS = 300.0


@checks.dataclass
class ByLosses:
    """Sets the rate of source s to `n_s^(1/T) (L_s / L_s0)^power` after each interval of steps.

    n_s is the number of rows of source s. L_s / L_s0 is a ratio of losses: the loss of a task in an
    interval of steps divided by its loss in the first interval, averaged over the tasks of the
    source. GradNorm (Chen et al., 2018, arXiv:1711.02257) calls the ratio L_s / L_s0 the inverse
    training rate. GradNorm weighs losses by this ratio of losses, and `ByLosses` draws rows by it.
    The losses are training losses before any weighting, averaged over the labels of an interval. A
    ratio of losses is clipped to the range from 0.001 to 1000.

    In the first two intervals, the rates depend only on the numbers of rows. The losses of interval
    k set the rates of interval k + 2.

    Attributes:
      every: the number of steps in an interval, after which the rates change.
      power: the exponent of the ratio L_s / L_s0. With the exponent 0, the rates never change. With
        the exponent 1, a source with twice the ratio gets twice the rate.
      temperature: T, above 0: a source of n rows starts with the rate n^(1 / T), as in `Mixture`.
    """

    every: checks.Count = 500
    power: checks.NotNegative = 1.0
    temperature: checks.Positive = 1.0

    @functools.cached_property
    def decisions(self) -> Decisions:
        """The factors by which the losses change the rates; the input waits for these factors."""
        return Decisions()

    def make_shares(self, base: Sequence[float], size: int) -> MovedShares:
        """Return the shares of S sources, whose rates in the first two intervals are `base`.

        Args:
          base: the rate of each source in the first two intervals, above 0.
          size: the number of rows or batches that a step shares out among the sources.
        """
        return MovedShares(self.decisions, base, size, self.every)


class Decisions:
    """The factors of the rates in each interval, which training writes and the input reads."""

    def __init__(self) -> None:
        self._factors: np.ndarray | None = None
        self._changed, self._is_closed = threading.Condition(), False

    def publish(self, factors: np.ndarray) -> None:
        """Set the factors of the intervals so far, and wake the callers of `wait`.

        Args:
          factors: float64 [K, S], the factors of S sources in the first K intervals.
        """
        with self._changed:
            self._factors = factors
            self._changed.notify_all()

    def open(self) -> None:
        """Let `wait` block until factors are published, because a training has started."""
        with self._changed:
            self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True if the training that publishes factors of the rates has ended."""
        return self._is_closed

    def close(self) -> None:
        """Make waiting calls of `wait` fail, because the training has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, interval: int, count: int) -> np.ndarray:
        """Return the factors of an interval, after waiting until training has published them.

        For the first two intervals, all factors are 1, and there is no wait.

        Args:
          interval: the number of the interval, from 0.
          count: S, the number of sources.

        Returns:
          The factors by which the losses change the rates of the S sources, float64 [S].

        Raises:
          UserError: no training runs in this process, or the training has ended.
        """
        if interval < 2:
            return np.ones(count)
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self._is_closed or self._count() > interval, _PATIENCE_SECS
            )
            if not is_there or self._count() <= interval:
                rule = "be read by the training that decides them"
                where = f"the rates of interval {interval} of ByLosses"
                checks.fail(where, rule, f"{self._count()} decided intervals")
            return self._factors[interval]  # type: ignore[index]

    def _count(self) -> int:
        return 0 if self._factors is None else len(self._factors)


class MovedShares(shares.Scheduled):
    """Shares whose rates depend on the losses of the running training.

    Args:
      decisions: the factors by which the rates change, for which this object waits.
      base: the rates of the S sources in the first two intervals.
      size: the number of rows or batches that a step shares out among the sources.
      every: the number of steps in an interval, after which the rates change.
    """

    def __init__(self, decisions: Decisions, base: Sequence[float], size: int, every: int):
        self._decisions, self._base, self._every = decisions, np.asarray(base, np.float64), every
        super().__init__(self._find_rates, len(base), size, at_once=every)

    def _find_rates(self, first: int, stop: int) -> np.ndarray:
        """Return the rates for the steps of one interval, float64 [steps, S]."""
        factors = self._decisions.wait(first // self._every, len(self._base))
        return np.tile(self._base * factors, [stop - first, 1])
