"""Layers of Keras inside a graph of ours: their updates, their losses and their dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mtl import checks, deferred
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs

with deferred.imports():
    from mtl.compat import keras as keras_lib


def collect_updates(model: Any, inputs: Any) -> None:
    """Add the updates and penalties of a Keras model to the collections of the graph.

    The updates of a call on these inputs, as of batch normalisation, join UPDATE_OPS. The losses of
    its weights, of its activities and of `add_loss` join REGULARIZATION_LOSSES. Inputs that are new
    tensors tell one call from another: pass them through `tf.identity` if you call a model twice.

    Raises:
      UserError: a loss is not a scalar.
    """
    for update in model.get_updates_for(inputs):
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    # Losses of a call are kept, and those of weights are computed anew wherever they are asked for.
    kept = model.losses
    for loss in model.losses:
        is_of_call = any(loss is other for other in kept)
        if is_of_call and not graphs.depends_on(loss, inputs):
            continue
        rule = "be a scalar, such as a mean over rows"
        checks.require(loss.shape.rank == 0, f"loss {loss.op.name!r}", rule, loss.shape)
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, loss)


@contextlib.contextmanager
def computing(dtype: Any) -> Iterator[None]:
    """Let layers made in this context compute in `dtype`, with weights of 32 bits."""
    if dtype == tf.float32 or not keras_lib.in_use().startswith("2."):
        yield
        return
    precision = tf.keras.mixed_precision
    before = precision.global_policy()
    precision.set_global_policy(f"mixed_{tf.as_dtype(dtype).name}")
    try:
        yield
    finally:
        precision.set_global_policy(before)


def is_cast(weight: Any) -> bool:
    """Return True if layers get a weight cast to the type in which they compute."""
    return hasattr(weight, "_cast_dtype")
