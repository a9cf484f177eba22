"""Deprecated since 0.3.0: call `outlets.add_scalar` and `outlets.add_scalars_where_due` instead."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from mtl.deferred import tf
from mtl.step import outlets

_log = logging.getLogger(__name__)


def add(name: str, value: tf.Tensor) -> None:
    """Add a scalar to the monitors of the training step that is being built."""
    _warn("add", "add_scalar")
    outlets.add_scalar(name, value)


def add_where_due(names: Sequence[str], compute: Callable[[], tf.Tensor]) -> None:
    """Add N scalars that a step computes only if they are written."""
    _warn("add_where_due", "add_scalars_where_due")
    outlets.add_scalars_where_due(names, compute)


@functools.cache
def _warn(old: str, new: str) -> None:
    """Log which function replaces a deprecated function, once in a process."""
    _log.warning("mtl.step.monitors.%s is deprecated: call mtl.step.outlets.%s", old, new)
