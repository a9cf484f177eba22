"""Divides wall time among ops that may run in parallel.

wall = shares.divide((0, 100), calls=[(0, 90)], busy=[(5, 80)], waits=[(0, 10)], ops=ops)
sum(wall.values()) == 100

If n ops run at the same time, each op gets 1/n of the time, so no time is counted twice. Time in
which no op runs counts for the first case that applies: waiting for a batch, starting ops, other
time in a session call, time between calls.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mtl.tools.profiling import words

Interval = tuple[int, int]


class Op(NamedTuple):
    """A span of time in which a thread ran an op.

    Attributes:
      start, end: the start and the end, in picoseconds.
      name: the name of the op.
      place: the phase of the training step, forward or backward, that the op's time counts for.
      is_kernel: True if a GPU ran the op. While a kernel of a GPU runs, no time counts for ops of
        the CPU.
    """

    start: int
    end: int
    name: str
    place: words.Place
    is_kernel: bool = False


def divide(
    window: Interval,
    calls: Iterable[Interval],
    busy: Iterable[Interval],
    waits: Iterable[Interval],
    ops: Iterable[Op],
) -> dict[words.Place, float]:
    """Divide a window of time among the phases of a training step.

    Args:
      window: the start and the end of the time to divide, in picoseconds, like all times here.
      calls: the time spans of session calls.
      busy: the spans in which a thread started or ran ops.
      waits: the spans in which a step waited for its batch.
      ops: the spans in which a thread or a GPU ran an op.

    Returns:
      {`words.Place`, a phase of the step: picoseconds}; the picoseconds add up to the length of
      `window`.
    """
    window_start, window_end = window
    changes: list[tuple[int, int, tuple[int, words.Place]]] = []
    for start, end, rank, place in _rank_moments(window, calls, busy, waits, ops):
        start, end = max(start, window_start), min(end, window_end)
        if start < end:
            changes.extend([(start, 1, (rank, place)), (end, -1, (rank, place))])
    picoseconds: dict[words.Place, float] = collections.defaultdict(float)
    # For each rank of places, count the spans of ops that are running. The span `window` has rank 0
    # and always runs, so one counter is never empty.
    running: list[collections.Counter[words.Place]] = [collections.Counter() for _ in range(6)]
    before = window_start
    # Visit all starts and ends in the order of time: nothing changes between two of them.
    for time, step, (rank, place) in sorted(changes, key=lambda change: change[0]):
        if time > before:
            highest = next(counter for counter in reversed(running) if counter)
            total = sum(highest.values())
            for owner, count in highest.items():
                # Ops that run in parallel share the time equally.
                picoseconds[owner] += (time - before) * count / total
            before = time
        running[rank][place] += step
        if not running[rank][place]:
            # Remove a place without running ops from its counter, so that a counter is empty if no
            # op of its rank runs.
            del running[rank][place]
    return dict(picoseconds)


def _rank_moments(
    window: Interval,
    calls: Iterable[Interval],
    busy: Iterable[Interval],
    waits: Iterable[Interval],
    ops: Iterable[Op],
) -> Iterator[tuple[int, int, int, words.Place]]:
    """Yield (start, end, rank, phase) of spans; a moment counts for spans of the highest rank."""
    by_rank = {
        words.BETWEEN: [window],
        words.SESSION: calls,
        words.STARTING: busy,
        words.WAITING: waits,
    }
    for rank, (word, intervals) in enumerate(by_rank.items()):
        for start, end in intervals:
            yield start, end, rank, words.Place(word)
    for op in ops:
        yield op.start, op.end, 5 if op.is_kernel else 4, op.place


def cut_nested(ops: Sequence[Op]) -> list[Op]:
    """Cut the spans of a thread's ops, so that the spans do not overlap.

    If an op calls a function, the time of the ops in this function does not count for the calling
    op.

    Args:
      ops: the time spans in which one thread ran ops, in any order.

    Returns:
      The spans in which each op itself ran, without the spans of the ops that it calls.
    """
    spans: list[Op] = []
    stack: list[Op] = []
    position = 0

    def close(until: int) -> None:
        nonlocal position
        while stack and stack[-1].end <= until:
            op = stack.pop()
            if position < op.end:
                spans.append(op._replace(start=position))
                position = op.end

    # If two ops start at the same time, the longer op contains the shorter op.
    for op in sorted(ops, key=lambda op: (op.start, -op.end)):
        close(op.start)
        if stack and position < op.start:
            # Add the span of the outer op up to the start of the inner op.
            spans.append(stack[-1]._replace(start=position, end=op.start))
        stack.append(op)
        position = op.start
    close(max((op.end for op in ops), default=0))
    return [op for op in spans if op.start < op.end]


def round_shares(values: Sequence[float]) -> list[float]:
    """Return shares in percent, rounded to one decimal such that they add up to 100.

    Args:
      values: numbers that are 0 or larger.

    Returns:
      The shares, in [0, 100]; zeros if all values are 0.
    """
    total = sum(values)
    if not total:
        return [0.0] * len(values)
    # Compute in tenths of a percent, which are whole numbers after rounding.
    exact = [1000 * value / total for value in values]
    tenths = [int(value) for value in exact]
    # Round up the numbers with the largest remainders.
    order = sorted(range(len(values)), key=lambda i: tenths[i] - exact[i])
    for i in order[: 1000 - sum(tenths)]:
        tenths[i] += 1
    return [value / 10 for value in tenths]
