"""Reads a profile of some training steps from the files of TensorFlow's profiler.

result = profile.read(folder, attribution, first=100, steps=9, calls=1)
result.share(words.NETWORK)
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
"""The name of the trace event of a session call; Estimator's event counts calls, not steps."""

# Names that TensorFlow's profiler gives to events and to their properties.
_NUMBER = "id"
_BUSY = "ExecutorState::Process"
_WAIT = "IteratorGetNextOp::DoCompute"
_NEXT = "IteratorGetNext"
_OP = re.compile(r"([^:]+):([A-Za-z_]\w*)")
_KERNEL_OP = "tf_op"
_SCOPES = 5


@dataclasses.dataclass(frozen=True)
class Profile:
    """The time and the memory of some training steps.

    Attributes:
      first: the global step at which the profile begins.
      steps: the number of steps whose time was measured.
      calls: the number of session calls that ran the measured steps.
      wall: {place, a phase of the step, forward or backward: seconds of wall time}; the seconds add
        up to the time of all steps.
      op_time: {place: seconds in ops}; if ops run in parallel, these seconds exceed the wall time.
      num_ops: {place: the number of executed ops}, over all steps.
      scopes: [(scope of the model, seconds in its ops and their gradients)] for the scopes that
        take the most time.
      passes: the number of backward passes through the network in a step.
      has_gpu: True if the ops are kernels of a GPU.
      held: the memory of a step; None if the memory was not traced.
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
        """The wall time of all steps in seconds."""
        return sum(self.wall.values())

    def share(self, word: str) -> float:
        """Return the share of a phase in the wall time, forward and backward together.

        Args:
          word: a phase, one of `words.ALL`.

        Returns:
          The share of the wall time, in [0, 1].
        """
        secs_of_word = sum(secs for place, secs in self.wall.items() if place.word == word)
        return secs_of_word / self.total if self.total else 0.0


class _Recorded(NamedTuple):
    """The time spans in the profiler's files: session calls, waits, busy threads, and ops."""

    marks: list[shares.Interval]
    waits: list[shares.Interval]
    busy: list[shares.Interval]
    ops: list[shares.Op]

    def keep_within(self, calls: Sequence[shares.Interval]) -> "_Recorded":
        """Return the spans within session calls, which leaves out evaluations between the calls."""
        return _Recorded(
            self.marks,
            [wait for wait in self.waits if _is_within(wait[0], calls)],
            [span for span in self.busy if _is_within(span[0], calls)],
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
    """Read the profile of some training steps.

    Args:
      folder: the output folder of TensorFlow's profiler.
      attribution: the object that finds the phases of ops.
      first: the global step at which the profile begins.
      steps: the number of steps whose time is measured.
      calls: the number of session calls that ran the measured steps; later calls in the profiler's
        files are ignored.
      timed: all ops of one traced step, which include the small ops that the profiler skips. If
        `timed` is empty, the time of small ops counts as time of the session.
      held: the memory of the traced step; None if it was not traced.
    """
    recorded = _read_planes(folder, attribution)
    marks = sorted(recorded.marks)
    # The time between two calls belongs to the earlier call.
    end = marks[calls][0] if calls < len(marks) else marks[-1][1]
    spans = recorded.keep_within(marks[:calls])
    wall = shares.divide((marks[0][0], end), marks, spans.busy, spans.waits, spans.ops)
    # If there are kernels of a GPU, ops of the CPU only start these kernels.
    has_gpu = any(op.is_kernel for op in spans.ops)
    ops = [op for op in spans.ops if op.is_kernel == has_gpu]
    # A trace holds times of the CPU only, so it does not help on a GPU.
    of_one_step = () if has_gpu else timed
    small = op_times.find_small(of_one_step, _count_names(ops), steps)
    # Convert picoseconds to seconds.
    in_secs = {place: value / 1e12 for place, value in wall.items()}
    scopes = _sum_secs(ops, lambda op: words.find_scope(op.name), start={})
    # Drop the time of ops outside of the model's scopes.
    scopes.pop("", None)
    return Profile(
        first=first,
        steps=steps,
        calls=calls,
        wall=op_times.divide_starting(
            in_secs, small, _measure_intervals(spans.busy) - _measure_intervals(ops)
        ),
        op_time=_sum_secs(ops, lambda op: op.place, start=small),
        num_ops=_count_places(of_one_step, steps) if of_one_step else _count_places(ops),
        scopes=sorted(scopes.items(), key=lambda scope: -scope[1])[:_SCOPES],
        passes=_count_passes(timed or ops),
        has_gpu=has_gpu,
        held=held,
    )


def _read_planes(folder: str, attribution: words.Attribution) -> _Recorded:
    spans = _Recorded([], [], [], [])
    for plane in xplane.read(folder):
        for _, events in plane.lines:
            if plane.name.startswith("/device:GPU"):
                spans.ops.extend(_read_kernels(events, attribution))
                continue
            spans.marks.extend(_list_intervals(events, CALL))
            spans.waits.extend(_list_intervals(events, _WAIT))
            of_steps = _keep_steps(events)
            spans.busy.extend(_list_intervals(of_steps, _BUSY))
            # Each line of a plane is a thread. An op can contain another op only within a thread.
            spans.ops.extend(shares.cut_nested(_read_ops(of_steps, attribution)))
    return spans


def _list_intervals(events: Iterable[xplane.Event], name: str) -> list[shares.Interval]:
    return [(event.start, event.end) for event in events if event.name == name]


def _keep_steps(events: Sequence[xplane.Event]) -> list[xplane.Event]:
    """Return the events of a thread that belong to steps, not to the input pipeline.

    The profiler gives the functions of a dataset negative ids. If a function began before the
    profile, the profiler records the ops of the function, but not the function itself. An op
    therefore belongs to a step only if it lies within an event of this step.
    """
    runs = [event for event in events if event.name == _BUSY]
    of_steps = [(e.start, e.end) for e in runs if int(e.stats.get(_NUMBER, -1)) >= 0]
    # `_is_within` uses a binary search, which needs intervals that do not overlap.
    intervals = _join_intervals(of_steps)
    return [event for event in events if _is_within(event.start, intervals)]


def _join_intervals(intervals: Iterable[shares.Interval]) -> list[shares.Interval]:
    """Sort intervals, and join intervals that overlap."""
    joined: list[shares.Interval] = []
    for start, end in sorted(intervals):
        if not joined or start > joined[-1][1]:
            joined.append((start, end))
        elif end > joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
    return joined


def _is_within(time: int, calls: Sequence[shares.Interval]) -> bool:
    """Return whether a time lies within one of the spans, which are sorted by time."""
    # Find the last call that starts at or before `time`.
    at = bisect.bisect_right(calls, (time, float("inf"))) - 1
    return at >= 0 and time < calls[at][1]


def _read_ops(events: Sequence[xplane.Event], attribution: words.Attribution) -> list[shares.Op]:
    ops = []
    for event in events:
        match = _OP.fullmatch(event.name)
        # The time of waiting for a batch is counted separately.
        if match and match.group(2) != _NEXT:
            name = match.group(1)
            ops.append(shares.Op(event.start, event.end, name, attribution.find(name)))
    return ops


def _read_kernels(
    events: Sequence[xplane.Event], attribution: words.Attribution
) -> list[shares.Op]:
    ops = []
    for event in events:
        match = _OP.fullmatch(str(event.stats.get(_KERNEL_OP, "")))
        if match:
            place = attribution.find(match.group(1))
            ops.append(shares.Op(event.start, event.end, match.group(1), place, is_kernel=True))
    return ops


def _measure_intervals(intervals: Iterable[Sequence[Any]]) -> float:
    """Return the total seconds of intervals or ops, whose first two items are start and end."""
    return sum(interval[1] - interval[0] for interval in intervals) / 1e12


def _count_names(ops: Sequence[shares.Op]) -> collections.Counter[str]:
    """Return {op: the number of its executions}; several spans of one execution count once."""
    return collections.Counter(op.name for op in {op.start: op for op in ops}.values())


def _count_places(
    ops: Sequence[shares.Op] | Sequence[op_times.Timed], times: int = 1
) -> dict[words.Place, int]:
    """Return {phase of the step, forward or backward: the number of its ops, times `times`}."""
    counts = collections.Counter(op.place for op in ops)
    return {place: times * count for place, count in counts.items()}


def _sum_secs(
    ops: Sequence[shares.Op], key: Callable[[shares.Op], Any], start: Mapping[Any, float]
) -> dict[Any, float]:
    """Return {key: seconds}: the seconds in `start` plus the seconds of all ops with this key."""
    sums = collections.defaultdict(float, start)
    for op in ops:
        sums[key(op)] += (op.end - op.start) / 1e12
    return dict(sums)


def _count_passes(ops: Sequence[shares.Op] | Sequence[op_times.Timed]) -> int:
    """Return the number of backward passes through the network: one, or one for each task."""
    back = words.Place(words.NETWORK, is_backward=True)
    return max(1, len({words.find_pass(op.name) for op in ops if op.place == back} - {None}))
