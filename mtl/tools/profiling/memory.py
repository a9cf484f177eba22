"""Finds the peak memory of a training step, and divides it among the phases of the step.

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
    """A tensor of a step.

    Attributes:
      op: the name of the op that computes the tensor.
      num_bytes: the size in bytes.
      shape: the shape as text, such as "[64, 32]".
    """

    op: str
    num_bytes: int
    shape: str


@dataclasses.dataclass(frozen=True)
class Held:
    """The memory that a training step allocates, without the variables.

    Attributes:
      allocator: the name of the allocator, such as GPU_0_bfc.
      peak: the largest number of bytes in use at the same time.
      by_word: {phase of the step: the bytes that its tensors use at the time of the peak}.
      largest: {phase of the step: the largest tensor that its ops compute}.
    """

    allocator: str
    peak: int
    by_word: Mapping[str, int]
    largest: Mapping[str, Tensor]


def find_peak(
    metadata: tf.compat.v1.RunMetadata, find: Callable[[str], words.Place]
) -> Held | None:
    """Return the memory of the allocator with the highest peak; None if no memory was recorded.

    Args:
      metadata: the metadata of a traced session call.
      find: a function from the name of an op to its phase, forward or backward.
    """
    changes: dict[str, list[tuple[int, int, str]]] = collections.defaultdict(list)
    largest: dict[str, Tensor] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            word = find(node.node_name).word
            for allocator in node.memory:
                for record in allocator.allocation_records:
                    # Releases of memory are recorded with negative bytes.
                    change = (record.alloc_micros, record.alloc_bytes, word)
                    changes[allocator.allocator_name].append(change)
            for output in node.output:
                size = output.tensor_description.allocation_description.allocated_bytes
                if word not in largest or size > largest[word].num_bytes:
                    dims = [str(dim.size) for dim in output.tensor_description.shape.dim]
                    largest[word] = Tensor(node.node_name, size, f"[{', '.join(dims)}]")
    # Do not add the peaks of allocators, because the peaks occur at different times.
    usages = [_add_up(name, records, largest) for name, records in changes.items()]
    return max(usages, key=lambda held: held.peak, default=None)


def _add_up(name: str, changes: list[tuple[int, int, str]], largest: dict[str, Tensor]) -> Held:
    """Add up the allocations and releases of an allocator in the order of their times."""
    in_use: collections.Counter[str] = collections.Counter()
    peak, at_peak, total = 0, dict[str, int](), 0
    # Times are in microseconds. Within a microsecond, releases come first:
    # their bytes are negative.
    for _, change, word in sorted(changes, key=lambda change: change[:2]):
        in_use[word] += change
        total += change
        if total > peak:
            peak, at_peak = total, dict(in_use)
    # Leave out phases whose tensors were all released before the peak.
    return Held(name, peak, {word: n for word, n in at_peak.items() if n > 0}, largest)
