"""How long every op of one step ran, which TensorFlow's profiler tells of large ones alone.

timed = op_times.read(run_metadata, attribution.find)
wall = op_times.divide_starting(wall, op_times.find_small(timed, seen, steps=9), busy)
"""

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from mtl.profiling import words

_TYPE = re.compile(r" = (\w+)\(")
# What they run is told of op by op; the last one is how a step waits.
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
# TensorFlow leaves out an op that takes less than 8,000 cycles; what is longer in the step that is
# timed was interrupted.
_SMALL_SECS = 3e-6


class Timed(NamedTuple):
    """One run of an op: its name, its seconds, and where they are counted."""

    name: str
    secs: float
    place: words.Place


def read(metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]) -> list[Timed]:
    """Return all ops of a step that was traced; what tracing itself takes is left out."""
    found = []
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            kind = _TYPE.search(node.timeline_label)
            if kind is None or kind.group(1) not in _CALLING:
                secs = max(0, node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e9
                found.append(Timed(node.node_name, secs, find(node.node_name)))
    return found


def find_small(
    timed: Sequence[Timed], seen: Mapping[str, int], steps: int
) -> dict[words.Place, float]:
    """Return {place: seconds} of the ops that the profiler left out, over so many steps.

    Args:
      timed: the ops of one step.
      seen: {op: how often the profiler told of it}, over all steps.
      steps: how many the profiler saw.
    """
    counts = collections.Counter(op.name for op in timed)
    found: dict[words.Place, float] = {}
    for op in timed:
        told = min(1.0, seen.get(op.name, 0) / (steps * counts[op.name]))
        secs = (1 - told) * min(op.secs, _SMALL_SECS) * steps
        found[op.place] = found.get(op.place, 0.0) + secs
    return found


def divide_starting(
    wall: Mapping[words.Place, float], small: Mapping[words.Place, float], busy: float
) -> dict[words.Place, float]:
    """Return the wall time with that of starting ops divided among small ops and the session.

    Args:
      wall: {place: seconds}.
      small: {place: seconds} of ops that the profiler left out.
      busy: the seconds that all threads took to start ops and to run these.
    """
    found = dict(wall)
    starting = found.pop(words.Place(words.STARTING), 0.0)
    total = sum(small.values())
    share = min(1.0, total / busy) if busy > 0 else 0.0
    for place, secs in small.items():
        if secs:
            found[place] = found.get(place, 0.0) + starting * share * secs / total
    session = words.Place(words.SESSION)
    found[session] = found.get(session, 0.0) + starting * (1 - share)
    return found
