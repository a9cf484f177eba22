"""Scalars for people to watch, from code that does not return them, such as networks.

monitors.add("gate/income/entropy", entropy)         # while a training step is being built
monitors.add_where_due(["mean", "deviation"], compute)   # which takes time, so not in every step
values = monitors.take()                             # {name: scalar} of the step that was built
"""

import contextlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl import ambient

tf1 = tf.compat.v1

COLLECTION = "mtl_monitors"


def add(name: str, value: tf.Tensor) -> None:
    """Have the training step that is being built show a scalar under this name."""
    tf1.add_to_collection(COLLECTION, (name, value))


def add_where_due(names: Sequence[str], compute: Callable[[], tf.Tensor]) -> None:
    """Add scalars that are computed only in steps that somebody looks at.

    Args:
      names: N, of the scalars.
      compute: gives them, float32 [N]; they are NaN in the steps that it is left out of.
    """
    tf1.add_to_collection(COLLECTION, (tuple(names), compute))


def compute_where(is_due: tf.Tensor) -> contextlib.AbstractContextManager[tf.Tensor | None]:
    """Have `take` compute what `add_where_due` added where a bool scalar says so."""
    return _IS_DUE.set(is_due)


def take() -> dict[str, tf.Tensor]:
    """Return what was added since the last call, and forget it.

    Of a batch in slices it is that of the first slice, and on replicas each has its own.
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
    """Return all that was added by `add_where_due`, by one branch: each would cost a little."""

    def compute() -> tf.Tensor:
        return tf.concat([own() for _, own in rarely], axis=0)

    count = sum(len(names) for names, _ in rarely)
    is_due = _IS_DUE.get()
    if is_due is None:
        return compute()
    return tf.cond(is_due, compute, lambda: tf.fill([count], float("nan")))


_IS_DUE: ambient.Ambient[tf.Tensor | None] = ambient.Ambient("is due", default=None)
