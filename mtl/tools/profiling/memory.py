"""Finds the tensors of a step at its peak of memory, by the phases of a step.

held = memory.find_peak(run_metadata, attribution.find)
held.peak, held.by_word                                     # bytes
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tools.profiling import words


class Tensor(NamedTuple):
    """One tensor: the op that made it, its bytes, and its shape as text."""

    op: str
    num_bytes: int
    shape: str


@dataclasses.dataclass(frozen=True)
class Held:
    """The memory that one step allocates, without variables.

    Attributes:
      allocator: the allocator of this memory, such as GPU_0_bfc.
      peak: the most bytes that were held at once.
      by_word: {word: bytes} at the peak.
      largest: {word: its largest tensor of the whole step}.
    """

    allocator: str
    peak: int
    by_word: Mapping[str, int]
    largest: Mapping[str, Tensor]


def find_peak(
    metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]
) -> Held | None:
    """Return the memory at the peak, of the allocator with the highest peak; None without data.

    Args:
      metadata: of a session call that was traced.
      find: returns the place of an op by its name.
    """
    changes: dict[str, list[tuple[int, int, str]]] = collections.defaultdict(list)
    largest: dict[str, Tensor] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            word = find(node.node_name).word
            for used in node.memory:
                for record in used.allocation_records:
                    # A release has negative bytes.
                    change = (record.alloc_micros, record.alloc_bytes, word)
                    changes[used.allocator_name].append(change)
            for output in node.output:
                size = output.tensor_description.allocation_description.allocated_bytes
                if word not in largest or size > largest[word].num_bytes:
                    dims = [str(dim.size) for dim in output.tensor_description.shape.dim]
                    largest[word] = Tensor(node.node_name, size, f"[{', '.join(dims)}]")
    # Each device has allocators, whose peaks come at different moments: they cannot be added.
    found = [_add_up(name, own, largest) for name, own in changes.items()]
    return max(found, key=lambda held: held.peak, default=None)


def _add_up(name: str, changes: list[tuple[int, int, str]], largest: dict[str, Tensor]) -> Held:
    """Add up the allocations and releases of an allocator in time order."""
    held: collections.Counter[str] = collections.Counter()
    peak, at_peak, total = 0, dict[str, int](), 0
    # Within a microsecond, releases come before allocations.
    for _, change, word in sorted(changes, key=lambda one: one[:2]):
        held[word] += change
        total += change
        if total > peak:
            peak, at_peak = total, dict(held)
    # A word whose tensors were released before the peak has no entry.
    return Held(name, peak, {word: n for word, n in at_peak.items() if n > 0}, largest)
