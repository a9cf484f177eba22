"""Finds the peak memory of a training step, divided among the phases of the step.

usage = memory.find_peak(run_metadata, attribution.find)
usage.peak, usage.by_word                                   # bytes
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tools.profiling import words


class Tensor(NamedTuple):
    """A tensor: the name of its op, its bytes, and its shape as text."""

    op: str
    num_bytes: int
    shape: str


@dataclasses.dataclass(frozen=True)
class Held:
    """The memory that a step allocates, without variables.

    Attributes:
      allocator: the allocator of this memory, such as GPU_0_bfc.
      peak: the largest number of bytes in use at a time.
      by_word: {word: bytes in use at the peak}.
      largest: {word: its largest tensor in the whole step}.
    """

    allocator: str
    peak: int
    by_word: Mapping[str, int]
    largest: Mapping[str, Tensor]


def find_peak(
    metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]
) -> Held | None:
    """Return the memory of the allocator with the highest peak; None without data.

    Args:
      metadata: the metadata of a traced session call.
      find: a function from the name of an op to its place.
    """
    changes: dict[str, list[tuple[int, int, str]]] = collections.defaultdict(list)
    largest: dict[str, Tensor] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            word = find(node.node_name).word
            for allocator in node.memory:
                for record in allocator.allocation_records:
                    # A release has negative bytes.
                    change = (record.alloc_micros, record.alloc_bytes, word)
                    changes[allocator.allocator_name].append(change)
            for output in node.output:
                size = output.tensor_description.allocation_description.allocated_bytes
                if word not in largest or size > largest[word].num_bytes:
                    dims = [str(dim.size) for dim in output.tensor_description.shape.dim]
                    largest[word] = Tensor(node.node_name, size, f"[{', '.join(dims)}]")
    # Allocators have their peaks at different times, so the peaks cannot be added.
    usages = [_add_up(name, records, largest) for name, records in changes.items()]
    return max(usages, key=lambda held: held.peak, default=None)


def _add_up(name: str, changes: list[tuple[int, int, str]], largest: dict[str, Tensor]) -> Held:
    """Add up the allocations and releases of an allocator in time order."""
    in_use: collections.Counter[str] = collections.Counter()
    peak, at_peak, total = 0, dict[str, int](), 0
    # Times are in microseconds. In the same microsecond, releases, below 0, come first.
    for _, change, word in sorted(changes, key=lambda one: one[:2]):
        in_use[word] += change
        total += change
        if total > peak:
            peak, at_peak = total, dict(in_use)
    # Leave out words whose tensors were released before the peak.
    return Held(name, peak, {word: n for word, n in at_peak.items() if n > 0}, largest)
