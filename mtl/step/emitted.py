"""Losses that parts of a network compute of what they do, such as how far codes are from vectors.

emitted_losses = {"commitment": 0.25}                      # of the part: {name: weight}
emitted.add("commitment", lambda: compute_losses(hidden))  # where it is built: losses of rows, [B]

They become auxiliary losses of the run. Neither evaluation nor a second pass of a step has them
computed.
"""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from mtl import ambient


def add(name: str, compute: Callable[[], tf.Tensor]) -> None:
    """Add the losses of rows, [B] of float32, to those of this name; 0 for rows that have none."""
    found = _FOUND.get()
    if found is not None:
        losses = compute()
        found[name] = found[name] + losses if name in found else losses


@contextlib.contextmanager
def collect() -> Iterator[dict[str, tf.Tensor]]:
    """Have losses computed within it; yield them by name."""
    found: dict[str, tf.Tensor] = {}
    with _FOUND.set(found):
        yield found


_FOUND: ambient.Ambient[dict[str, tf.Tensor] | None] = ambient.Ambient("emitted", default=None)
