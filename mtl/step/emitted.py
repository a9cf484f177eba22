"""Losses that parts of a network emit, such as the distance between codes and vectors.

emitted_losses = {"commitment": 0.25}                      # in the part: {name: weight}
emitted.add("commitment", lambda: compute_losses(hidden))  # in its call: losses of rows, [B]

A run adds them as auxiliary losses. Evaluations, and further passes of a step, do not compute them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mtl import ambient
from mtl.deferred import tf


def add(name: str, compute: Callable[[], tf.Tensor]) -> None:
    """Add losses of rows, [B] float32, under a name; 0 for rows without a loss."""
    found = _FOUND.get()
    if found is not None:
        losses = compute()
        found[name] = found[name] + losses if name in found else losses


@contextlib.contextmanager
def collect() -> Iterator[dict[str, tf.Tensor]]:
    """Compute the losses that `add` gets within the context; yield them by name."""
    found: dict[str, tf.Tensor] = {}
    with _FOUND.set(found):
        yield found


_FOUND: ambient.Ambient[dict[str, tf.Tensor] | None] = ambient.Ambient("emitted", default=None)
