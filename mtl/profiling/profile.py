"""The profile of some steps, read from what TensorFlow's profiler wrote.

found = profile.read(folder, attribution, first=100, steps=9, calls=1)
found.share(words.NETWORK)
"""

import bisect
import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtl.compat import xplane
from mtl.profiling import memory, op_times, shares, words

CALL = "session_call"
"""What a session call is marked as. Estimator marks it too, but counts calls and not steps."""

_NUMBER = "id"
_BUSY = "ExecutorState::Process"
_WAIT = "IteratorGetNextOp::DoCompute"
_NEXT = "IteratorGetNext"
_OP = re.compile(r"([^:]+):([A-Za-z_]\w*)")
_KERNEL_OP = "tf_op"
_SCOPES = 5


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where the time of some steps went.

    Attributes:
      first: the global step at which it begins.
      steps: how many were timed.
      calls: session calls that made them.
      wall: {place: seconds} of all steps; they add up to what the steps took.
      op_time: {place: seconds} in ops; of ops that ran at once it is more than the wall time.
      num_ops: {place: how often an op ran}, over all steps.
      scopes: (scope of the model, seconds in ops) of the largest, with gradients.
      passes: how many passes back go through the network in a step.
      has_gpu: whether kernels of a GPU are what is told.
      held: the memory of one step; None where it was not looked at.
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
        """Seconds of all steps."""
        return sum(self.wall.values())

    def share(self, word: str) -> float:
        """Return the share of the wall time that a word takes, forward and back."""
        own = sum(secs for place, secs in self.wall.items() if place.word == word)
        return own / self.total if self.total else 0.0


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
      folder: what TensorFlow's profiler wrote.
      attribution: the words of ops.
      first: the global step at which it begins.
      steps: how many steps count.
      calls: in how many session calls they were made, the first ones that are told of.
      timed: all ops of one step. The profiler leaves out small ops, whose time would be the
        session's.
      held: the memory of that step.
    """
    marks: list[shares.Interval] = []
    waits: list[shares.Interval] = []
    busy: list[shares.Interval] = []
    ops: list[shares.Op] = []
    for plane in xplane.read(folder):
        for _, events in plane.lines:
            if plane.name.startswith("/device:GPU"):
                ops += _read_kernels(events, attribution)
                continue
            marks += [(e.start, e.end) for e in events if e.name == CALL]
            waits += [(e.start, e.end) for e in events if e.name == _WAIT]
            events = _keep_steps(events)
            busy += [(e.start, e.end) for e in events if e.name == _BUSY]
            ops += shares.cut_nested(_read_ops(events, attribution))
    marks.sort()
    # What comes between two calls belongs to the one before.
    end = marks[calls][0] if calls < len(marks) else marks[-1][1]
    window = (marks[0][0], end)
    # Between two calls an evaluation may run ops of the same names.
    ops = [op for op in ops if _is_within(op.start, marks[:calls])]
    waits = [wait for wait in waits if _is_within(wait[0], marks[:calls])]
    busy = [own for own in busy if _is_within(own[0], marks[:calls])]
    wall = shares.divide(window, marks, busy, waits, ops)
    has_gpu = any(op.is_kernel for op in ops)
    ops = [op for op in ops if op.is_kernel == has_gpu]
    seen = collections.Counter(op.name for op in {op.start: op for op in ops}.values())
    small = op_times.find_small(() if has_gpu else timed, seen, steps)
    wall = {place: value / 1e12 for place, value in wall.items()}
    counts = collections.Counter(op.place for op in ops)
    if timed and not has_gpu:
        counts = collections.Counter({p: steps * n for p, n in _count(timed).items()})
    op_time: dict[words.Place, float] = collections.defaultdict(float, small)
    scopes: dict[str, float] = collections.defaultdict(float)
    for op in ops:
        secs = (op.end - op.start) / 1e12
        op_time[op.place] += secs
        scopes[words.find_scope(op.name)] += secs
    scopes.pop("", None)
    return Profile(
        first=first,
        steps=steps,
        calls=calls,
        wall=op_times.divide_starting(wall, small, _measure(busy) - _measure(ops)),
        op_time=dict(op_time),
        num_ops=counts,
        scopes=sorted(scopes.items(), key=lambda one: -one[1])[:_SCOPES],
        passes=_count_passes(timed or ops),
        has_gpu=has_gpu,
        held=held,
    )


def _keep_steps(events: Sequence[xplane.Event]) -> list[xplane.Event]:
    """Return what a thread did of the steps: the input runs ops as well, beside them.

    TensorFlow numbers what it runs for a dataset below 0. What began before the profile is not told
    of, but the ops in it are: so an op counts that lies in what was begun for a step.
    """
    runs = [event for event in events if event.name == _BUSY]
    of_steps = [(e.start, e.end) for e in runs if int(e.stats.get(_NUMBER, -1)) >= 0]
    whole: list[shares.Interval] = []
    for start, end in sorted(of_steps):
        if not whole or start > whole[-1][1]:
            whole.append((start, end))
        elif end > whole[-1][1]:
            whole[-1] = (whole[-1][0], end)
    return [event for event in events if _is_within(event.start, whole)]


def _is_within(time: int, calls: Sequence[shares.Interval]) -> bool:
    """Return whether a time lies in one of the calls, which are in their order."""
    at = bisect.bisect_right(calls, (time, float("inf"))) - 1
    return at >= 0 and time < calls[at][1]


def _read_ops(events: Sequence[xplane.Event], attribution: words.Attribution) -> list[shares.Op]:
    ops = []
    for event in events:
        found = _OP.fullmatch(event.name)
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


def _measure(intervals: Iterable[Sequence[Any]]) -> float:
    """Return the seconds of intervals, or of ops, which begin with their start and end."""
    return sum(one[1] - one[0] for one in intervals) / 1e12


def _count(timed: Sequence[op_times.Timed]) -> collections.Counter[words.Place]:
    return collections.Counter(op.place for op in timed)


def _count_passes(ops: Sequence[shares.Op] | Sequence[op_times.Timed]) -> int:
    """Return how many gradients go through the network: one, or one for each task."""
    back = words.Place(words.NETWORK, is_backward=True)
    return max(1, len({words.find_pass(op.name) for op in ops if op.place == back} - {None}))
