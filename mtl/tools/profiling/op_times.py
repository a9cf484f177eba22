"""Reads the time of every op of a step, because TensorFlow's profiler skips small ops.

timed = op_times.read(run_metadata, attribution.find)
wall = op_times.divide_starting(wall, op_times.find_small(timed, seen, steps=9), busy)
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tools.profiling import words

# Labels look like "<name> = <type>(<inputs>)".
_TYPE = re.compile(r" = (\w+)\(")
# Ops of these types are left out: the ops that they call are recorded separately, and in the last a
# step waits for its batch.
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
# TensorFlow's profiler skips ops of less than 8,000 cycles. If the traced step needs more time for
# a skipped op, the op was interrupted: count at most this many seconds.
_SMALL_SECS = 3e-6


class Timed(NamedTuple):
    """A run of an op: its name, its time in seconds, and the place that the time counts for."""

    name: str
    secs: float
    place: words.Place


def read(metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]) -> list[Timed]:
    """Return all ops of a traced step, without the time that tracing takes.

    Args:
      metadata: the metadata of a traced session call.
      find: a function from the name of an op to its place.
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
    timed: Sequence[Timed], seen: Mapping[str, int], steps: int
) -> dict[words.Place, float]:
    """Estimate the time of the ops that the profiler skipped.

    Args:
      timed: all ops of a single step.
      seen: {op: how often the profiler recorded it}, over all steps.
      steps: the number of steps that the profiler recorded.

    Returns:
      {place: seconds} over all steps.
    """
    # An op in a loop runs several times per step.
    counts = collections.Counter(op.name for op in timed)
    secs_of: dict[words.Place, float] = {}
    for op in timed:
        # If an op takes about 8,000 cycles, only some of its runs are recorded.
        recorded_share = min(1.0, seen.get(op.name, 0) / (steps * counts[op.name]))
        secs = (1 - recorded_share) * min(op.secs, _SMALL_SECS) * steps
        secs_of[op.place] = secs_of.get(op.place, 0.0) + secs
    return secs_of


def divide_starting(
    wall: Mapping[words.Place, float], small: Mapping[words.Place, float], busy: float
) -> dict[words.Place, float]:
    """Divide the wall time of starting ops among small ops and the session.

    Args:
      wall: {place: seconds}.
      small: {place: seconds} of ops that the profiler skipped.
      busy: the seconds in which threads started ops or ran skipped ops, summed over threads.

    Returns:
      {place: seconds}, which add up to the same wall time, without the place for starting ops.
    """
    divided = dict(wall)
    starting = divided.pop(words.Place(words.STARTING), 0.0)
    total = sum(small.values())
    # The remaining share of this time was used to start ops.
    share = min(1.0, total / busy) if busy > 0 else 0.0
    for place, secs in small.items():
        if secs:
            divided[place] = divided.get(place, 0.0) + starting * share * secs / total
    session = words.Place(words.SESSION)
    divided[session] = divided.get(session, 0.0) + starting * (1 - share)
    return divided
