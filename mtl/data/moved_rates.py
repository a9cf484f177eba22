"""Rates of a mixture that follow the losses: a source whose tasks learn slowly gets more rows.

mixture.Mixture.rates = @moved_rates.ByLosses()
moved_rates.ByLosses.every = 500                 # steps between two decisions
moved_rates.ByLosses.power = 1.0                 # 0 leaves the rates where they begin

A step decides nothing itself. The losses of an interval of steps move the rates of the interval
after the next one, so training never waits for its rows. The checkpoint holds all decisions, and a
run that goes on deals the same batches.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

import numpy as np

from mtl import checks
from mtl.data import shares

# Decisions that a checkpoint has room for.
MOST_INTERVALS = 1024
# Training only waits for the end of the session call before.
_PATIENCE_SECS = 300.0


@checks.dataclass
class ByLosses:
    """Rates `n_s^(1/T) (L_s / L_s0)^power`, decided anew every few steps.

    n_s is the number of rows of source s, L_s / L_s0 the mean over its tasks of the loss in an
    interval of steps, divided by the loss in the first interval. GradNorm calls this ratio the
    inverse training rate, and weighs losses by it (Z. Chen et al., 2018, arXiv:1711.02257); here it
    moves how often rows of a source are drawn. Losses are training losses before any weighting, as
    means over the labels of the interval. A ratio stays within a thousandth and a thousand.

    Rates of the first two intervals come from the numbers of rows. The losses of interval k decide
    the rates of interval k + 2.

    Attributes:
      every: the steps of an interval.
      power: 0 leaves the rates where they begin. With 1, twice the ratio L_s / L_s0 gives twice the
        rate.
      temperature: T, above 0, as in `Mixture`.
    """

    every: checks.Count = 500
    power: checks.NotNegative = 1.0
    temperature: checks.Positive = 1.0

    @functools.cached_property
    def decisions(self) -> Decisions:
        """The decisions of the run, which the input waits for."""
        return Decisions()

    def make_shares(self, base: Sequence[float], size: int) -> MovedShares:
        """Return the shares of S sources that begin with the rates `base`.

        Args:
          base: a number above 0 for each source.
          size: the number of places of a step that are dealt at its rates.
        """
        return MovedShares(self.decisions, base, size, self.every)


class Decisions:
    """The factors of the rates, by interval: written by the training, read by the input."""

    def __init__(self) -> None:
        self._factors: np.ndarray | None = None
        self._changed, self._is_closed = threading.Condition(), False

    def publish(self, factors: np.ndarray) -> None:
        """Replace all decisions.

        Args:
          factors: float64 [K, S], the factors of S sources in the first K intervals.
        """
        with self._changed:
            self._factors = factors
            self._changed.notify_all()

    def open(self) -> None:
        """Let the input wait for decisions, as a training begins to make them."""
        with self._changed:
            self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True if nobody makes decisions any more."""
        return self._is_closed

    def close(self) -> None:
        """End the waiting of the input, which then fails."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, interval: int, count: int) -> np.ndarray:
        """Return the factors of `count` sources in an interval, float64 [S]; wait until they exist.

        The first two intervals have the factor 1.

        Raises:
          UserError: nobody decides, as no training runs in this process, or it has ended.
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
    """Shares whose rates are decided while training runs.

    Args:
      decisions: the factors of the rates.
      base: the rates of the S sources before any decision.
      size: the number of places of a step.
      every: the steps of an interval.
    """

    def __init__(self, decisions: Decisions, base: Sequence[float], size: int, every: int):
        self._decisions, self._base, self._every = decisions, np.asarray(base, np.float64), every
        super().__init__(self._find_rates, len(base), size, at_once=every)

    def _find_rates(self, first: int, stop: int) -> np.ndarray:
        """Return the rates of the steps of one interval, float64 [steps, S]."""
        factors = self._decisions.wait(first // self._every, len(self._base))
        return np.tile(self._base * factors, [stop - first, 1])
