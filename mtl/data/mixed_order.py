"""The order of training rows in a mixture of sources.

shares = mixed_order.make_shares([3, schedules.Polynomial(...)], size=64)
rows = mixed_order.MixedOrder(streams, {"clicks": 1000, "ratings": 50}, shares, 64, False)
rows.take(np.array([7]), np.arange(64))                 # the numbers of the rows of step 7
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from mtl import checks, types
from mtl.data import order, shares
from mtl.deferred import tf, tf1

# Warn if training draws a row of one source this many times as often as a row of another.
_LARGE_FACTOR = 10
# An arbitrary number in the seed, which makes the order of alternating sources independent of other
# random draws.
_SALT = 20261130


def make_shares(rates: Sequence[float | types.Schedule], size: int) -> shares.Shares:
    """Return the shares of the sources in the batches, computed from the rates of the sources.

    Args:
      rates: a number, or a schedule over the steps, for each of S sources.
      size: the number of rows or batches that a step assigns to the sources, all at the same rates.
    """
    if not any(map(callable, rates)):
        return shares.Fixed([float(cast(float, rate)) for rate in rates])
    return shares.Scheduled(functools.partial(_evaluate_rates, rates), len(rates), size)


def _evaluate_rates(rates: Sequence[float | types.Schedule], first: int, stop: int) -> np.ndarray:
    """Return the rates at the steps from `first` up to `stop`, float64 [steps, S]."""

    @tf.autograph.experimental.do_not_convert
    def evaluate(step: tf.Tensor) -> tf.Tensor:
        values = [rate(step) if callable(rate) else rate for rate in rates]
        return tf.stack([tf.cast(value, tf.float64) for value in values])

    # Schedules are graph code, so a session evaluates schedules, for many steps at once.
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        steps = tf.range(first, stop, dtype=tf.int64)
        values = session.run(tf.vectorized_map(evaluate, steps))
    is_valid = (
        np.isfinite(values).all(axis=1) & (values >= 0).all(axis=1) & (values.sum(axis=1) > 0)
    )
    if not is_valid.all():
        step = int(np.argmin(is_valid))
        rule = f"be at least 0, and one above 0, at step {first + step}"
        checks.fail("Mixture.rates", rule, values[step].tolist())
    return values


class MixedOrder(types.RowOrder):
    """The order of training rows in a mixture.

    Args:
      streams: an endless stream of rows for each source.
      counts: {source: number of rows}.
      dealt: the shares by which rows are assigned to the sources; if sources alternate, the shares
        by which whole batches are assigned.
      batch_size: the number of rows in a batch over all workers.
      is_alternating: True if each batch has rows of a single source.
      block_size: the number of steps within which sources that alternate come in a random order.
    """

    def __init__(
        self,
        streams: Sequence[order.Epochs],
        counts: Mapping[str, int],
        dealt: shares.Shares,
        batch_size: int,
        is_alternating: bool,
        block_size: int = 1,
    ):
        self._streams, self._counts, self._shares = streams, counts, dealt
        self._batch_size, self._is_alternating = batch_size, is_alternating
        self._block_size = block_size

    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers at P positions in the batches of S steps, int64 [S * P]."""
        first, stop = int(steps[0]), int(steps[-1]) + 1
        # If sources alternate, `_shares` assigns whole batches to sources; otherwise, it assigns
        # rows.
        if self._is_alternating:
            sources, numbers = self._deal_batches(first, stop)
            sources = np.repeat(sources, len(positions))
            numbers = (numbers[:, np.newaxis] * self._batch_size + positions).ravel()
        else:
            size = self._batch_size
            places = ((steps - first)[:, np.newaxis] * size + positions).ravel()
            dealt = self._shares.deal(first * size, stop * size)
            sources, numbers = (part[places] for part in dealt)
        rows = np.zeros(len(sources), np.int64)
        for source, stream in enumerate(self._streams):
            mask = sources == source
            rows[mask] = stream.find_rows(numbers[mask])
        return rows

    def _deal_batches(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of the batch of each step, and the number of the batch in its source.

        Within each block of steps, the sources come in a random order. In a fixed order, an event
        at multiples of some step, such as a summary, might never see a source.
        """
        size = self._block_size
        start = first // size * size
        sources, numbers = self._shares.deal(start, -(-stop // size) * size)
        for place in range(0, len(sources), size):
            block = slice(place, place + size)
            draw = np.random.default_rng([_SALT, (start + place) // size])
            shuffled = draw.permutation(sources[block])
            # The batches of each source keep their order. A stable sort by source lists the new
            # places of a source's batches, and another stable sort lists their old places.
            pairs = np.argsort(shuffled, kind="stable"), np.argsort(sources[block], kind="stable")
            numbers[block][pairs[0]] = numbers[block][pairs[1]]
            sources[block] = shuffled
        asked = slice(first - start, stop - start)
        return sources[asked], numbers[asked]

    def count_epochs(self, step: int) -> dict[str, float]:
        """Return {source: number of epochs of the source before a step}."""
        size = 1 if self._is_alternating else self._batch_size
        times = self._batch_size if self._is_alternating else 1
        before = step // self._block_size * self._block_size if self._is_alternating else step
        row_counts = self._shares.count(before * size)
        if before < step:
            sources, _ = self._deal_batches(before, step)
            row_counts = row_counts + np.bincount(sources, minlength=len(row_counts))
        row_counts = row_counts * times
        return {
            name: float(rows / count)
            for (name, count), rows in zip(self._counts.items(), row_counts, strict=True)
        }

    def describe(self, steps: int) -> list[str]:
        """Describe the shares and epochs of the sources; warn if epochs differ much."""
        epochs, rows = self.count_epochs(steps), sum(self._counts.values())
        lines = [
            f"Source {name!r} of the mixture: {count:,} of {rows:,} rows ({count / rows:.1%}) give "
            f"{epochs[name] * count / (steps * self._batch_size):.1%} of the examples: "
            f"{epochs[name]:,.2f} epochs in {steps:,} steps."
            for name, count in self._counts.items()
        ]
        lines += [
            f"No batch of {steps:,} steps has a row of source {name!r}: its rate is too low."
            for name, times in epochs.items()
            if not times
        ]
        epochs_drawn = {name: times for name, times in epochs.items() if times}
        most, least = (
            pick(epochs_drawn, key=lambda name: epochs_drawn[name]) for pick in (max, min)
        )
        if epochs_drawn[most] >= _LARGE_FACTOR * epochs_drawn[least]:
            factor = epochs_drawn[most] / epochs_drawn[least]
            lines.append(
                f"Training draws a row of source {most!r} {factor:,.0f} times as often as a row of "
                f"{least!r}: the model may memorise rows of {most!r} (Mixture.rates)."
            )
        return lines


class MovedOrder(types.RowOrder):
    """The order of a mixture whose rates depend on the losses of the running training.

    Args:
      moved: the order of the rows by the rates that depend on the losses.
      first: the order of the rows if the rates of the first two intervals never changed.
      every: the number of steps in an interval, after which the rates change.
    """

    def __init__(self, moved: MixedOrder, first: MixedOrder, every: int):
        self._moved, self._first, self._every = moved, first, every

    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers at P positions in the batches of S steps, int64 [S * P]."""
        return self._moved.take(steps, positions)

    def count_epochs(self, step: int) -> dict[str, float]:
        """Return {source: the number of its epochs before a step}.

        Args:
          step: the step; the rates of all earlier steps must be decided.
        """
        return self._moved.count_epochs(step)

    def describe(self, steps: int) -> list[str]:
        """Describe the share of each source before the losses change its rate."""
        still = 2 * self._every
        lines = self._first.describe(min(steps, still))
        return [*lines, f"From step {still:,} on, the losses of the tasks move these shares."]
