"""Layers of several copies of a network, with separate variables for each copy.

hidden = copies.dense(inputs, 64, "hidden_0", scopes, training)    # [B, D] for all, or N of [B, D]
hidden = copies.dense(hidden, 32, "hidden_1", scopes, training)    # N of [B, 32]

Variables have the same names as in separate layers, so each copy can be frozen, restored and
penalised separately. Copies with the same inputs use a single matrix product with all kernels,
concatenated in every step. Copies with different inputs of equal width use a single batched product
in training on GPUs, where launching many ops is slow. On CPUs, separate products are up to a third
faster, as the outputs of a copy remain in the cache for the next layer of this copy. Served graphs
compute a separate product for each copy, so the graphs do not depend on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mtl.deferred import tf, tf1
from mtl.layers import functions
from mtl.step import layer_hooks

Inputs: TypeAlias = "tf.Tensor | Sequence[tf.Tensor]"
"""Inputs of N copies: [B, D] for all copies, or N of [B, D]."""


def dense(
    inputs: Inputs,
    units: int,
    name: str,
    scopes: Sequence[str],
    training: bool,
    use_bias: bool = True,
) -> list[tf.Tensor]:
    """Apply N dense layers, one in each scope.

    Args:
      inputs: [B, D] for all scopes, or N of [B, D].
      units: the number of outputs for each row.
      name: the name of the layer in each scope.
      scopes: N variable scopes, relative to the current scope.
      training: True in a training step.
      use_bias: False leaves out the biases.

    Returns:
      The outputs of the N layers, [B, units] each.
    """
    if not _are_at_once(inputs, scopes, training):
        return for_each(
            lambda tensor: functions.dense(tensor, units, name, use_bias=use_bias), inputs, scopes
        )
    # Create separate variables for each copy, so that checkpoints are as with separate layers.
    first = inputs if isinstance(inputs, tf.Tensor) else inputs[0]
    kernels, biases = [], []
    for scope in scopes:
        with tf1.variable_scope(scope), tf1.variable_scope(name):
            kernels.append(tf1.get_variable("kernel", [first.shape[-1], units], first.dtype))
            if use_bias:
                zeros = tf1.zeros_initializer()
                biases.append(tf1.get_variable("bias", [units], first.dtype, zeros))
    if isinstance(inputs, tf.Tensor):
        # Shared inputs: use a single matrix product with the concatenation of all kernels.
        outputs = tf.linalg.matmul(inputs, tf.concat(kernels, axis=1))
        outputs = outputs + tf.concat(biases, axis=0) if use_bias else outputs
        return tf.split(outputs, len(scopes), axis=1)
    # Different inputs: use one batched product.
    outputs = tf.linalg.matmul(tf.stack(inputs), tf.stack(kernels))
    outputs = outputs + tf.stack(biases)[:, tf.newaxis] if use_bias else outputs
    return tf.unstack(outputs, len(scopes))


def _are_at_once(inputs: Inputs, scopes: Sequence[str], training: bool) -> bool:
    """Return True if a single product computes the layers of all copies."""
    # Quantisation and other hooks on inputs need a separate layer for each copy.
    if len(scopes) == 1 or layer_hooks.need_inputs():
        return False
    return isinstance(inputs, tf.Tensor) or (training and _can_batch(inputs))


def _can_batch(inputs: Sequence[tf.Tensor]) -> bool:
    """Return True if one batched product can compute all copies, and there is a GPU."""
    is_one_width = len({tensor.shape[-1] for tensor in inputs}) == 1
    return is_one_width and bool(tf.config.list_physical_devices("GPU"))


def for_each(
    build: Callable[[tf.Tensor], tf.Tensor], inputs: Inputs, scopes: Sequence[str]
) -> list[tf.Tensor]:
    """Call a function in each of N scopes.

    Args:
      build: the function, which maps a tensor [B, D] to an output.
      inputs: [B, D] for all scopes, or N of [B, D].
      scopes: N variable scopes, relative to the current scope.

    Returns:
      The results of the N calls.
    """
    inputs_of_copies = [inputs] * len(scopes) if isinstance(inputs, tf.Tensor) else inputs
    outputs = []
    for scope, copy_inputs in zip(scopes, inputs_of_copies, strict=True):
        with tf1.variable_scope(scope):
            outputs.append(build(copy_inputs))
    return outputs
