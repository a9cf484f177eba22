"""Scalars for people to watch, from code that cannot return them, such as networks.

monitors.add("gate/income/entropy", entropy)         # while a training step is being built
monitors.add_where_due(["mean", "deviation"], compute)   # slow scalars: only in some steps
values = monitors.take()                             # {name: scalar} of the step that was built
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from mtl import ambient
from mtl.deferred import tf, tf1

COLLECTION = "mtl_monitors"


def add(name: str, value: tf.Tensor) -> None:
    """Add a scalar to the monitors of the training step that is being built."""
    tf1.add_to_collection(COLLECTION, (name, value))


def add_where_due(names: Sequence[str], compute: Callable[[], tf.Tensor]) -> None:
    """Add scalars that a step computes only if something reads them.

    Args:
      names: of the N scalars.
      compute: returns them, float32 [N]; they are NaN in all other steps.
    """
    tf1.add_to_collection(COLLECTION, (tuple(names), compute))


def compute_where(is_due: tf.Tensor) -> contextlib.AbstractContextManager[tf.Tensor | None]:
    """Let `take` compute the scalars of `add_where_due` only if a bool scalar is true."""
    return _IS_DUE.set(is_due)


def take() -> dict[str, tf.Tensor]:
    """Return and forget all scalars that were added since the last call.

    A batch in slices returns the scalars of its first slice. Each replica has its own scalars.
    """
    collection = tf1.get_collection_ref(COLLECTION)
    found = {name: value for name, value in collection if isinstance(name, str)}
    rarely = [(names, compute) for names, compute in collection if not isinstance(names, str)]
    collection.clear()
    names = [name for own, _ in rarely for name in own]
    if names:
        found |= dict(zip(names, tf.unstack(_compute(rarely), len(names)), strict=True))
    return found


def _compute(rarely: Sequence[tuple[Sequence[str], Callable[[], tf.Tensor]]]) -> tf.Tensor:
    """Return all scalars of `add_where_due`; a single branch is cheaper than one for each."""

    def compute() -> tf.Tensor:
        return tf.concat([own() for _, own in rarely], axis=0)

    count = sum(len(names) for names, _ in rarely)
    is_due = _IS_DUE.get()
    if is_due is None:
        return compute()
    return tf.cond(is_due, compute, lambda: tf.fill([count], float("nan")))


_IS_DUE: ambient.Ambient[tf.Tensor | None] = ambient.Ambient("is due", default=None)
