"""Layers of several copies of a network at once: one batched product in place of a loop.

hidden = copies.dense(inputs, 64, "hidden_0", scopes)    # [B, D] or [N, B, D] -> [N, B, 64]
hidden = copies.batch_norm(hidden, "hidden_0_norm", scopes, training)

Each copy has variables of its own, under the names of a layer that is built alone: they are frozen,
restored and penalised one by one. Their values are stacked in every step, which costs a copy of the
weights and saves an op of every kind for each further copy.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl.layers import functions, quantization

tf1 = tf.compat.v1


def dense(
    inputs: tf.Tensor, units: int, name: str, scopes: Sequence[str], use_bias: bool = True
) -> tf.Tensor:
    """Apply a dense layer for each scope: [B, D] that all share, or [N, B, D] -> [N, B, units]."""
    if quantization.is_active():  # Patterns of activations choose by the scope of a single layer.
        return for_each(
            lambda own: functions.dense(own, units, name, use_bias=use_bias), inputs, scopes
        )
    kernels, biases = [], []
    for scope in scopes:
        with tf1.variable_scope(scope), tf1.variable_scope(name):
            shape = [inputs.shape[-1], units]
            kernels.append(tf1.get_variable("kernel", shape, inputs.dtype))
            if use_bias:
                zeros = tf1.zeros_initializer()
                biases.append(tf1.get_variable("bias", [units], inputs.dtype, zeros))
    given = inputs if inputs.shape.rank == 3 else inputs[tf.newaxis]
    outputs = tf.linalg.matmul(given, tf.stack(kernels))
    return outputs + tf.stack(biases)[:, tf.newaxis] if use_bias else outputs


def batch_norm(inputs: tf.Tensor, name: str, scopes: Sequence[str], training: bool) -> tf.Tensor:
    """Normalise each copy by the moments of its own rows: [N, B, H] -> [N, B, H]."""
    return for_each(lambda own: functions.batch_norm(own, name, training), inputs, scopes)


def layer_norm(inputs: tf.Tensor, name: str, scopes: Sequence[str]) -> tf.Tensor:
    """Normalise each example of each copy over its last axis: [N, B, H] -> [N, B, H]."""
    return for_each(lambda own: functions.layer_norm(own, name), inputs, scopes)


def for_each(
    build: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor, scopes: Sequence[str]
) -> tf.Tensor:
    """Build in each scope from its own inputs: [B, D] that all share, or [N, B, D] -> [N, ...]."""
    given = tf.unstack(inputs) if inputs.shape.rank == 3 else [inputs] * len(scopes)
    outputs = []
    for scope, own in zip(scopes, given, strict=True):
        with tf1.variable_scope(scope):
            outputs.append(build(own))
    return tf.stack(outputs)
