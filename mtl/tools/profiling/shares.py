"""Divides wall time among ops that may run in parallel.

wall = shares.divide((0, 100), calls=[(0, 90)], busy=[(5, 80)], waits=[(0, 10)], ops=ops)
sum(wall.values()) == 100

If n ops run at a moment, each gets 1/n of it: time is never counted twice. Without an op, a moment
counts for the first that fits: waiting for a batch, starting ops, the session, time between calls.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mtl.tools.profiling import words

Interval = tuple[int, int]


class Op(NamedTuple):
    """A stretch of time in which a thread ran an op.

    Attributes:
      start, end: in picoseconds.
      name: the name of the op.
      place: the place that its time counts for.
      is_kernel: True if a GPU ran it: then ops of the CPU at the same time do not count.
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
    """Return {place: picoseconds}, which add up to the length of the window.

    Args:
      window: start and end of the whole time, in picoseconds as all times here.
      calls: the session calls.
      busy: stretches in which a thread started or ran ops.
      waits: stretches in which a step waited for its batch.
      ops: stretches in which a thread or a GPU ran an op.
    """
    first, last = window
    changes: list[tuple[int, int, tuple[int, words.Place]]] = []
    for start, end, rank, place in _rank_moments(window, calls, busy, waits, ops):
        start, end = max(start, first), min(end, last)
        if start < end:
            changes.extend([(start, 1, (rank, place)), (end, -1, (rank, place))])
    found: dict[words.Place, float] = collections.defaultdict(float)
    # One counter for each rank. The window has rank 0, so some rank is never empty.
    running: list[collections.Counter[words.Place]] = [collections.Counter() for _ in range(6)]
    before = first
    # A sweep over all starts and ends: between two of them, nothing changes.
    for time, step, (rank, place) in sorted(changes, key=lambda change: change[0]):
        if time > before:
            highest = next(own for own in reversed(running) if own)
            total = sum(highest.values())
            for who, count in highest.items():
                # n parallel ops share the moment.
                found[who] += (time - before) * count / total
            before = time
        running[rank][place] += step
        if not running[rank][place]:
            # A counter of zeros would count as running.
            del running[rank][place]
    return dict(found)


def _rank_moments(
    window: Interval,
    calls: Iterable[Interval],
    busy: Iterable[Interval],
    waits: Iterable[Interval],
    ops: Iterable[Op],
) -> Iterator[tuple[int, int, int, words.Place]]:
    """Yield (start, end, rank, place); a moment counts for the highest rank in it."""
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
    """Return the ops of a thread without the stretches in which they ran another op.

    Otherwise, an op that calls a function would count in addition to the ops within it.
    """
    cut: list[Op] = []
    stack: list[Op] = []
    at = 0

    def close(until: int) -> None:
        nonlocal at
        while stack and stack[-1].end <= until:
            op = stack.pop()
            if at < op.end:
                cut.append(op._replace(start=at))
                at = op.end

    # If two ops start together, the longer one is the outer.
    for op in sorted(ops, key=lambda op: (op.start, -op.end)):
        close(op.start)
        if stack and at < op.start:
            # The stretch of the outer op before the inner one starts.
            cut.append(stack[-1]._replace(start=at, end=op.start))
        stack.append(op)
        at = op.start
    close(max((op.end for op in ops), default=0))
    return [op for op in cut if op.start < op.end]


def round_shares(values: Sequence[float]) -> list[float]:
    """Return the shares in percent, rounded to one decimal such that they add up to 100."""
    total = sum(values)
    if not total:
        return [0.0] * len(values)
    # In tenths of a percent.
    exact = [1000 * value / total for value in values]
    whole = [int(value) for value in exact]
    # The largest remainders are rounded up first.
    order = sorted(range(len(values)), key=lambda i: whole[i] - exact[i])
    for i in order[: 1000 - sum(whole)]:
        whole[i] += 1
    return [value / 10 for value in whole]
