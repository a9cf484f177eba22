"""Refuses settings that need more memory than there is, before memory is allocated.

memory.require_memory("Pipeline.batch_size", 10**9, 72e9, "A batch of it takes")
memory.require_variables(tf1.global_variables())

The estimates of memory are lower bounds. The estimates are compared with the memory limit of the
process, not with the free memory, so a run is refused only if it could never work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from mtl import checks
from mtl.deferred import tf
from mtl.variables import stacks

STRING = 24
"""The number of bytes of a text in a tensor of TensorFlow; long texts need more."""

SLOT = 24
"""The number of bytes that TensorFlow allocates in advance for each record of a shuffle buffer."""

_GROUPS = "/sys/fs/cgroup"


def find_limit() -> float:
    """Return the bytes of memory and swap that this process may use; infinity outside Linux."""
    values = dict(line.split(":") for line in _read("/proc/meminfo").splitlines())
    if "MemTotal" not in values:
        return math.inf
    # The unit kB in /proc/meminfo means 1024 bytes.
    total, swap = (1024 * int(values[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    return min(total, *_limits_of_groups(), math.inf) + swap


def _limits_of_groups() -> Iterator[float]:
    """Yield the memory limits of the process's control groups (cgroups v1 and v2), in bytes."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, file = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        # In a container, the path of the group may be a path on the host, although the mounted root
        # folder is the group of the container. So `_read` ignores a path that does not exist.
        names = [name for name in group.split("/") if name]
        # The limits of all parent groups apply, too.
        for depth in range(len(names) + 1):
            limit = _read(os.path.join(_GROUPS, folder, *names[:depth], file)).strip()
            if limit.isdigit():  # "max" means that there is no limit.
                yield float(limit)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def require_memory(where: str, value: Any, size: float, what: str) -> None:
    """Fail if the value of a setting needs more memory than this process may use.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting, for the error.
      size: the smallest number of bytes that the value needs.
      what: the start of a sentence that continues with "at least 72 GB", such as "A batch takes".

    Raises:
      UserError: the memory limit is below `size`.
    """
    most = find_limit()
    needed_text, limit = _format_gigabytes(size), _format_gigabytes(most)
    fix = f"{what} at least {needed_text}, and this process may use {limit}."
    checks.require(size <= most, where, "fit into memory", value, fix)


def require_variables(variables: Sequence[tf.Variable]) -> None:
    """Fail if the variables of a graph need more memory than this process may use.

    If there is a GPU, its memory holds the variables, so nothing is checked.

    Args:
      variables: the variables of the graph.

    Raises:
      UserError: the values of the variables exceed the memory limit; the text names the largest
        variable.
    """
    if not variables or tf.config.list_physical_devices("GPU"):
        return
    largest, size = max(variables, key=measure_variable), sum(map(measure_variable, variables))
    name, *others = stacks.list_members(largest)
    count = sum(len(stacks.list_members(variable)) for variable in variables)
    what = f"It is the largest of {count} variables, which take"
    where = f"variable {name!r}" + (f" with {len(others)} like it" if others else "")
    require_memory(where, tuple(largest.shape), size, what)


def measure_variable(variable: tf.Variable) -> int:
    """Return the size of a variable's values in bytes; 0 if the shape is unknown."""
    return (variable.shape.num_elements() or 0) * variable.dtype.size


def _format_gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.3g} GB"
