"""Layers of several copies of a network, with separate variables for each copy.

hidden = copies.dense(inputs, 64, "hidden_0", scopes, training)    # [B, D] for all, or N of [B, D]
hidden = copies.dense(hidden, 32, "hidden_1", scopes, training)    # N of [B, 32]

Variables have the same names as in layers that are built one by one, so they are frozen, restored
and penalised one by one. Copies that read the same inputs become one product with all kernels side
by side, which copies the weights in every step. Copies with different inputs of equal width become
one batched product when they train on GPUs, because launching each op takes time. On CPUs each copy
computes a separate product: its next layer finds the values in the cache, which was measured up to
a third faster. Served graphs also have separate products, so they do not depend on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mtl.deferred import tf, tf1
from mtl.layers import functions
from mtl.step import layer_hooks

Inputs: TypeAlias = "tf.Tensor | Sequence[tf.Tensor]"
"""[B, D] that all copies share, or N of [B, D]."""


def dense(
    inputs: Inputs,
    units: int,
    name: str,
    scopes: Sequence[str],
    training: bool,
    use_bias: bool = True,
) -> list[tf.Tensor]:
    """Apply a dense layer for each scope.

    Args:
      inputs: [B, D] for all scopes, or N of [B, D].
      units: the number of outputs for each row.
      name: the name of the layer in each scope.
      scopes: N variable scopes, relative to the open one.
      training: True in a training step.
      use_bias: False leaves out the biases.

    Returns:
      N of [B, units].
    """
    if not _are_at_once(inputs, scopes, training):
        return for_each(
            lambda tensor: functions.dense(tensor, units, name, use_bias=use_bias), inputs, scopes
        )
    # Create the variables of layers that are built one by one, so that checkpoints fit both.
    first = inputs if isinstance(inputs, tf.Tensor) else inputs[0]
    kernels, biases = [], []
    for scope in scopes:
        with tf1.variable_scope(scope), tf1.variable_scope(name):
            kernels.append(tf1.get_variable("kernel", [first.shape[-1], units], first.dtype))
            if use_bias:
                zeros = tf1.zeros_initializer()
                biases.append(tf1.get_variable("bias", [units], first.dtype, zeros))
    if isinstance(inputs, tf.Tensor):
        # Shared inputs: use a single product with all kernels side by side.
        outputs = tf.linalg.matmul(inputs, tf.concat(kernels, axis=1))
        outputs = outputs + tf.concat(biases, axis=0) if use_bias else outputs
        return tf.split(outputs, len(scopes), axis=1)
    # Different inputs: use one batched product.
    outputs = tf.linalg.matmul(tf.stack(inputs), tf.stack(kernels))
    outputs = outputs + tf.stack(biases)[:, tf.newaxis] if use_bias else outputs
    return tf.unstack(outputs, len(scopes))


def _are_at_once(inputs: Inputs, scopes: Sequence[str], training: bool) -> bool:
    """Return True if the layers of all copies become one product."""
    # Quantisation and hooks on inputs need each layer in a separate scope.
    if len(scopes) == 1 or layer_hooks.need_inputs():
        return False
    return isinstance(inputs, tf.Tensor) or (training and _can_batch(inputs))


def _can_batch(inputs: Sequence[tf.Tensor]) -> bool:
    """Return True if one batched product is possible, and a GPU makes it worthwhile."""
    is_one_width = len({tensor.shape[-1] for tensor in inputs}) == 1
    return is_one_width and bool(tf.config.list_physical_devices("GPU"))


def for_each(
    build: Callable[[tf.Tensor], tf.Tensor], inputs: Inputs, scopes: Sequence[str]
) -> list[tf.Tensor]:
    """Call a function in each of N scopes.

    Args:
      build: turns a tensor [B, D] into an output.
      inputs: [B, D] for all scopes, or N of [B, D].
      scopes: N variable scopes, relative to the open one.

    Returns:
      N outputs.
    """
    inputs_of_copies = [inputs] * len(scopes) if isinstance(inputs, tf.Tensor) else inputs
    outputs = []
    for scope, copy_inputs in zip(scopes, inputs_of_copies, strict=True):
        with tf1.variable_scope(scope):
            outputs.append(build(copy_inputs))
    return outputs
