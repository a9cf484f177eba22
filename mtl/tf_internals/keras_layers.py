"""Uses Keras layers inside a graph: handles their updates, losses and number format."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mtl import checks, deferred
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs

with deferred.imports():
    from mtl.compat import keras as keras_lib


def collect_updates(model: Any, inputs: Any) -> None:
    """Add the updates and penalties of a Keras model to the collections of the graph.

    Updates, for example of batch norm, are added to UPDATE_OPS. Regularisers of weights and
    activities, and losses of `add_loss`, are added to REGULARIZATION_LOSSES. If you call a model
    twice, pass its inputs through `tf.identity`, because calls are distinguished by their input
    tensors. The penalty of a weight is added once, for all calls and models that share the weight.

    Args:
      model: the Keras model.
      inputs: the inputs of a call of the model, tensors in any nesting.

    Raises:
      UserError: a loss is not a scalar.
    """
    known = tf1.get_collection_ref(_COLLECTED)
    known += [id(weight) for weight in model.weights]
    for update in model.get_updates_for(inputs):
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    for loss in _find_new_losses(model, inputs):
        rule = "be a scalar, such as a mean over rows"
        checks.require(loss.shape.rank == 0, f"loss {loss.op.name!r}", rule, loss.shape)
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, loss)


def _find_new_losses(model: Any, inputs: Any) -> list[tf.Tensor]:
    """Return the losses of weights and of a call that REGULARIZATION_LOSSES does not have."""
    ids = set(map(id, tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)))
    of_calls = [loss for layer in model._flatten_layers() for loss in layer._losses]
    new = [loss for loss in of_calls if id(loss) not in ids]
    return [loss for loss in new if graphs.depends_on(loss, inputs)] + _compute_new(model, ids)


def _compute_new(model: Any, ids: Collection[int]) -> list[tf.Tensor]:
    """Return the penalties of weights whose tensors have none of `ids`."""
    of_weights = tf1.get_collection_ref(_OF_WEIGHTS)
    # `model.losses` has new tensors for the weights at each access. So the function that computes a
    # tensor says whether another call, or another model with the same layer, has added the penalty.
    added = [compute for compute, loss in of_weights if id(loss) in ids]
    computed = [compute for layer in model._flatten_layers() for compute in layer._callable_losses]
    new = [(compute, compute()) for compute in computed if compute not in added]
    of_weights += [pair for pair in new if pair[1] is not None]
    return [loss for _, loss in new if loss is not None]


def find_own_variables(variables: Sequence[tf.Variable]) -> list[str]:
    """Return the names of variables, such as of Keras layers, that `get_variable` did not create.

    Args:
      variables: variables of the default graph. The result leaves out the weights of models for
        which `collect_updates` was called.
    """
    # Imported here, as this module is also imported without TensorFlow.
    from tensorflow.python.ops import variable_scope

    listed = variable_scope._get_default_variable_store()._vars
    collected = set(tf1.get_collection(_COLLECTED))
    others = [variable for variable in variables if id(variable) not in collected]
    return [variable.op.name for variable in others if variable.op.name not in listed]


@contextlib.contextmanager
def computing(dtype: Any) -> Iterator[None]:
    """Let new layers of Keras 2 compute in `dtype`, with float32 weights, in the context.

    Args:
      dtype: tf.float16 or tf.bfloat16; tf.float32 changes nothing. With Keras 3, nothing changes.
    """
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
    """Return True if a Keras weight is cast to the compute type of its layer."""
    return hasattr(weight, "_cast_dtype")


# TensorFlow saves only collections with string keys. These keys are tuples, so saved graphs do not
# have the collections.
_COLLECTED = ("ids of weights of Keras models",)
_OF_WEIGHTS = ("penalties of weights of Keras models",)
