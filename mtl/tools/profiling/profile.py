"""Reads the profile of some steps from the files of TensorFlow's profiler.

found = profile.read(folder, attribution, first=100, steps=9, calls=1)
found.share(words.NETWORK)
"""

import bisect
import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl.tf_internals import xplane
from mtl.tools.profiling import memory, op_times, shares, words

CALL = "session_call"
"""What a session call is marked as. Estimator marks it too, but counts calls and not steps."""

# Names that TensorFlow's profiler gives to events and to their statistics.
_NUMBER = "id"
_BUSY = "ExecutorState::Process"
_WAIT = "IteratorGetNextOp::DoCompute"
_NEXT = "IteratorGetNext"
_OP = re.compile(r"([^:]+):([A-Za-z_]\w*)")
_KERNEL_OP = "tf_op"
_SCOPES = 5


@dataclasses.dataclass(frozen=True)
class Profile:
    """The time and memory of some steps.

    Attributes:
      first: the global step at which the profile begins.
      steps: how many steps were timed.
      calls: how many session calls made these steps.
      wall: {place: seconds} of wall time; the places add up to the time of all steps.
      op_time: {place: seconds} in ops; with parallel ops, it exceeds the wall time.
      num_ops: {place: how often an op ran}, over all steps.
      scopes: (scope of the model, seconds in ops) of the largest scopes, with their gradients.
      passes: how many backward passes go through the network in a step.
      has_gpu: True if the ops are kernels of a GPU.
      held: the memory of a step; None if it was not traced.
    """

    first: int
    steps: int
    calls: int
    wall: Mapping[words.Place, float]
    op_time: Mapping[words.Place, float]
    num_ops: Mapping[words.Place, int]
    scopes: Sequence[tuple[str, float]] = ()
    passes: int = 1
    has_gpu: bool = False
    held: memory.Held | None = None

    @property
    def total(self) -> float:
        """Wall time of all steps in seconds."""
        return sum(self.wall.values())

    def share(self, word: str) -> float:
        """Return the share of the wall time of a word, in forward and backward passes."""
        own = sum(secs for place, secs in self.wall.items() if place.word == word)
        return own / self.total if self.total else 0.0


class _Recorded(NamedTuple):
    """The records of the profiler: session calls, waits for a batch, busy threads, and ops."""

    marks: list[shares.Interval]
    waits: list[shares.Interval]
    busy: list[shares.Interval]
    ops: list[shares.Op]

    def keep_within(self, calls: Sequence[shares.Interval]) -> "_Recorded":
        """Return the records within session calls: an evaluation in between has equal op names."""
        return _Recorded(
            self.marks,
            [wait for wait in self.waits if _is_within(wait[0], calls)],
            [own for own in self.busy if _is_within(own[0], calls)],
            [op for op in self.ops if _is_within(op.start, calls)],
        )


def read(
    folder: str,
    attribution: words.Attribution,
    first: int,
    steps: int,
    calls: int,
    timed: Sequence[op_times.Timed] = (),
    held: memory.Held | None = None,
) -> Profile:
    """Return the profile of some steps.

    Args:
      folder: the output folder of TensorFlow's profiler.
      attribution: finds the words of ops.
      first: the global step at which the profile begins.
      steps: how many steps count.
      calls: how many session calls made these steps; these are the first recorded calls.
      timed: all ops of a single step. The profiler skips small ops; without `timed`, their time
        would count for the session.
      held: the memory of that step.
    """
    recorded = _read_planes(folder, attribution)
    marks = sorted(recorded.marks)
    # The time between two calls counts for the earlier one.
    end = marks[calls][0] if calls < len(marks) else marks[-1][1]
    kept = recorded.keep_within(marks[:calls])
    wall = shares.divide((marks[0][0], end), marks, kept.busy, kept.waits, kept.ops)
    # On a GPU, ops of the CPU only start kernels.
    has_gpu = any(op.is_kernel for op in kept.ops)
    ops = [op for op in kept.ops if op.is_kernel == has_gpu]
    # The traced step has times of the CPU.
    of_one_step = () if has_gpu else timed
    small = op_times.find_small(of_one_step, _count_names(ops), steps)
    # From picoseconds.
    in_secs = {place: value / 1e12 for place, value in wall.items()}
    scopes = _sum_secs(ops, lambda op: words.find_scope(op.name), start={})
    # Ops outside of the model's scopes.
    scopes.pop("", None)
    return Profile(
        first=first,
        steps=steps,
        calls=calls,
        wall=op_times.divide_starting(
            in_secs, small, _measure_intervals(kept.busy) - _measure_intervals(ops)
        ),
        op_time=_sum_secs(ops, lambda op: op.place, start=small),
        num_ops=_count_places(of_one_step, steps) if of_one_step else _count_places(ops),
        scopes=sorted(scopes.items(), key=lambda one: -one[1])[:_SCOPES],
        passes=_count_passes(timed or ops),
        has_gpu=has_gpu,
        held=held,
    )


def _read_planes(folder: str, attribution: words.Attribution) -> _Recorded:
    found = _Recorded([], [], [], [])
    for plane in xplane.read(folder):
        for _, events in plane.lines:
            if plane.name.startswith("/device:GPU"):
                found.ops.extend(_read_kernels(events, attribution))
                continue
            found.marks.extend(_list_intervals(events, CALL))
            found.waits.extend(_list_intervals(events, _WAIT))
            of_steps = _keep_steps(events)
            found.busy.extend(_list_intervals(of_steps, _BUSY))
            # Each line is a thread: only within one thread do ops nest.
            found.ops.extend(shares.cut_nested(_read_ops(of_steps, attribution)))
    return found


def _list_intervals(events: Iterable[xplane.Event], name: str) -> list[shares.Interval]:
    return [(event.start, event.end) for event in events if event.name == name]


def _keep_steps(events: Sequence[xplane.Event]) -> list[xplane.Event]:
    """Return the events of a thread that belong to steps, without ops of the input pipeline.

    TensorFlow gives functions of a dataset ids below 0. The profile lacks functions that began
    earlier, but has their ops. So an op counts only if it lies within an event of a step.
    """
    runs = [event for event in events if event.name == _BUSY]
    of_steps = [(e.start, e.end) for e in runs if int(e.stats.get(_NUMBER, -1)) >= 0]
    # Overlapping intervals would break the binary search of `_is_within`.
    whole = _join_intervals(of_steps)
    return [event for event in events if _is_within(event.start, whole)]


def _join_intervals(intervals: Iterable[shares.Interval]) -> list[shares.Interval]:
    """Return the intervals in order, and join overlapping ones."""
    whole: list[shares.Interval] = []
    for start, end in sorted(intervals):
        if not whole or start > whole[-1][1]:
            whole.append((start, end))
        elif end > whole[-1][1]:
            whole[-1] = (whole[-1][0], end)
    return whole


def _is_within(time: int, calls: Sequence[shares.Interval]) -> bool:
    """Return whether a time lies within a call; `calls` are sorted."""
    # The last interval that starts at this time or before.
    at = bisect.bisect_right(calls, (time, float("inf"))) - 1
    return at >= 0 and time < calls[at][1]


def _read_ops(events: Sequence[xplane.Event], attribution: words.Attribution) -> list[shares.Op]:
    ops = []
    for event in events:
        found = _OP.fullmatch(event.name)
        # Waiting for a batch is counted by itself.
        if found and found.group(2) != _NEXT:
            name = found.group(1)
            ops.append(shares.Op(event.start, event.end, name, attribution.find(name)))
    return ops


def _read_kernels(
    events: Sequence[xplane.Event], attribution: words.Attribution
) -> list[shares.Op]:
    ops = []
    for event in events:
        found = _OP.fullmatch(str(event.stats.get(_KERNEL_OP, "")))
        if found:
            place = attribution.find(found.group(1))
            ops.append(shares.Op(event.start, event.end, found.group(1), place, is_kernel=True))
    return ops


def _measure_intervals(intervals: Iterable[Sequence[Any]]) -> float:
    """Return the total seconds of intervals or ops: tuples of start, end, and maybe more."""
    return sum(one[1] - one[0] for one in intervals) / 1e12


def _count_names(ops: Sequence[shares.Op]) -> collections.Counter[str]:
    """Return {op: how often it ran}; an op that others cut into stretches counts once."""
    return collections.Counter(op.name for op in {op.start: op for op in ops}.values())


def _count_places(
    ops: Sequence[shares.Op] | Sequence[op_times.Timed], times: int = 1
) -> dict[words.Place, int]:
    """Return {place: number of ops}, multiplied by `times`."""
    counts = collections.Counter(op.place for op in ops)
    return {place: times * count for place, count in counts.items()}


def _sum_secs(
    ops: Sequence[shares.Op], key: Callable[[shares.Op], Any], start: Mapping[Any, float]
) -> dict[Any, float]:
    """Return {key: seconds in its ops}, added to the seconds in `start`."""
    found = collections.defaultdict(float, start)
    for op in ops:
        found[key(op)] += (op.end - op.start) / 1e12
    return dict(found)


def _count_passes(ops: Sequence[shares.Op] | Sequence[op_times.Timed]) -> int:
    """Return how many backward passes go through the network: one, or one for each task."""
    back = words.Place(words.NETWORK, is_backward=True)
    return max(1, len({words.find_pass(op.name) for op in ops if op.place == back} - {None}))
