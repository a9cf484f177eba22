"""Reads the time of every op of a step: TensorFlow's profiler only records large ops.

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

# A label reads "<name> = <type>(<inputs>)".
_TYPE = re.compile(r" = (\w+)\(")
# The ops that these call are recorded themselves; in the last one, a step waits.
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
# TensorFlow's profiler skips ops below 8,000 cycles. A skipped op that takes longer in the traced
# step was interrupted.
_SMALL_SECS = 3e-6


class Timed(NamedTuple):
    """One run of an op: its name, its seconds, and the place that they count for."""

    name: str
    secs: float
    place: words.Place


def read(metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]) -> list[Timed]:
    """Return all ops of a traced step, without the time of tracing itself.

    Args:
      metadata: of a session call that was traced.
      find: returns the place of an op by its name.
    """
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
    """Return {place: seconds} of the ops that the profiler skipped, over `steps` steps.

    Args:
      timed: the ops of a single step.
      seen: {op: how often the profiler recorded it}, over all steps.
      steps: how many steps the profiler recorded.
    """
    # Within one step an op in a loop runs several times.
    counts = collections.Counter(op.name for op in timed)
    found: dict[words.Place, float] = {}
    for op in timed:
        # An op near the limit is recorded in some steps only: the rest of its runs is missing.
        told = min(1.0, seen.get(op.name, 0) / (steps * counts[op.name]))
        secs = (1 - told) * min(op.secs, _SMALL_SECS) * steps
        found[op.place] = found.get(op.place, 0.0) + secs
    return found


def divide_starting(
    wall: Mapping[words.Place, float], small: Mapping[words.Place, float], busy: float
) -> dict[words.Place, float]:
    """Divide the wall time of starting ops among small ops and the session.

    Args:
      wall: {place: seconds}.
      small: {place: seconds} of ops that the profiler skipped.
      busy: the seconds in which threads started ops or ran skipped ops, summed over threads.
    """
    found = dict(wall)
    starting = found.pop(words.Place(words.STARTING), 0.0)
    total = sum(small.values())
    # The rest of this time, beside skipped ops, went into starting ops.
    share = min(1.0, total / busy) if busy > 0 else 0.0
    for place, secs in small.items():
        if secs:
            found[place] = found.get(place, 0.0) + starting * share * secs / total
    session = words.Place(words.SESSION)
    found[session] = found.get(session, 0.0) + starting * (1 - share)
    return found
