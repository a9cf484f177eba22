"""Reads the time of every op in a traced step, because TensorFlow's profiler skips small ops.

timed = op_times.read(run_metadata, attribution.find)
wall = op_times.divide_starting(wall, op_times.find_small(timed, num_recorded, steps=9), busy)
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tools.profiling import words

# TensorFlow describes an op in a trace as "<name> = <type>(<inputs>)".
_TYPE = re.compile(r" = (\w+)\(")
# Types of ops that call other ops, which the trace records separately. The last type,
# IteratorGetNext, waits for the next batch. The times of calling and waiting ops are left out.
_CALLING = {
    "Case",
    "If",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
    "While",
    "IteratorGetNext",
}
# The largest time of an op that TensorFlow's profiler skips, in seconds. The profiler skips ops of
# less than 8,000 cycles. If the trace shows a longer time for an op that the profiler skips, the op
# was interrupted.
_SMALL_SECS = 3e-6


class Timed(NamedTuple):
    """One execution of an op.

    Attributes:
      name: the name of the op.
      secs: the time of the op in seconds.
      place: the phase of the training step that the op belongs to, forward or backward.
    """

    name: str
    secs: float
    place: words.Place


def read(metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]) -> list[Timed]:
    """Return the ops of a traced step, with the time of each op without the cost of tracing.

    Args:
      metadata: the metadata of a traced session call.
      find: a function from the name of an op to its phase, forward or backward.
    """
    runs = []
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            kind = _TYPE.search(node.timeline_label)
            if kind is None or kind.group(1) not in _CALLING:
                secs = max(0, node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e9
                runs.append(Timed(node.node_name, secs, find(node.node_name)))
    return runs


def find_small(
    timed: Sequence[Timed], num_recorded: Mapping[str, int], steps: int
) -> dict[words.Place, float]:
    """Estimate the time of the ops that the profiler skipped.

    Args:
      timed: all ops of a single traced step, as `read` returns them.
      num_recorded: {op: the number of its executions that the profiler recorded}, over all steps.
      steps: the number of steps that the profiler recorded.

    Returns:
      {`words.Place`, a phase of the step: the estimated seconds of ops that the profiler skipped},
      over all steps.
    """
    # An op in a loop is executed several times in a step.
    counts = collections.Counter(op.name for op in timed)
    secs_of: dict[words.Place, float] = {}
    for op in timed:
        # The profiler records only some executions of an op that takes about 8,000 cycles.
        recorded_share = min(1.0, num_recorded.get(op.name, 0) / (steps * counts[op.name]))
        secs = (1 - recorded_share) * min(op.secs, _SMALL_SECS) * steps
        secs_of[op.place] = secs_of.get(op.place, 0.0) + secs
    return secs_of


def divide_starting(
    wall: Mapping[words.Place, float], small: Mapping[words.Place, float], busy: float
) -> dict[words.Place, float]:
    """Divide the time of the phase `words.STARTING` between small ops and the phase "session".

    Args:
      wall: {`words.Place`, a phase of the step: seconds of wall time}.
      small: {`words.Place`: seconds} for ops that the profiler skipped.
      busy: the seconds in which threads started ops or ran ops that the profiler skipped, added up
        over the threads.

    Returns:
      {place: seconds}, where a place is a phase of the step, forward or backward, without the phase
      `words.STARTING`. The seconds add up to the same sum as in `wall`.
    """
    divided = dict(wall)
    starting = divided.pop(words.Place(words.STARTING), 0.0)
    total = sum(small.values())
    # `share` of the phase "starting" went into small ops; the rest was used to start ops.
    share = min(1.0, total / busy) if busy > 0 else 0.0
    for place, secs in small.items():
        if secs:
            divided[place] = divided.get(place, 0.0) + starting * share * secs / total
    session = words.Place(words.SESSION)
    divided[session] = divided.get(session, 0.0) + starting * (1 - share)
    return divided
