"""Layers of many equal tasks, whose variables are stacks (see `mtl.variables.stacks`).

hidden = stacked.dense(inputs, 32, "hidden_0", scopes, seeds)        # [B, D] for all -> [B, T, 32]
logits = stacked.dense(hidden, 1, "logits", scopes, seeds)           # [B, T, 32] -> [B, T, 1]
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl.variables import stacks

tf1 = tf.compat.v1


def dense(
    inputs: tf.Tensor,
    units: int,
    name: str,
    scopes: Sequence[str],
    seeds: Sequence[stacks.Seed],
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply a dense layer of each scope: [B, D] for all or [B, T, D] -> [B, T, units].

    Args:
      inputs: of float32.
      units: of each layer.
      name: of the layer in its scope.
      scopes: T, within the variable scope that is open.
      seeds: T, of the kernels' first values.
      bias_initializer: of all biases; zeros by default.
    """
    count, size = len(scopes), inputs.shape[-1]
    is_shared = inputs.shape.rank == 2
    # All kernels side by side are one product; what reads inputs of its own is a batch of them.
    axis, shape = (1, [size, count, units]) if is_shared else (0, [count, size, units])
    start = stacks.start_uniform(seeds, axis)
    kernel = stacks.create(scopes, f"{name}/kernel", shape, axis, start)
    zeros = bias_initializer or tf1.zeros_initializer()
    bias = stacks.create(scopes, f"{name}/bias", [count, units], 0, zeros)
    if is_shared:
        flat = tf.linalg.matmul(inputs, tf.reshape(kernel, [size, count * units]))
        products = tf.reshape(flat, [-1, count, units])
    else:
        products = tf.linalg.matmul(tf.transpose(inputs, [1, 0, 2]), kernel)
        products = tf.transpose(products, [1, 0, 2])
    return products + bias


def stack_parts(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Stack T parts, T of [B, ...] -> [B, T, ...]; of what was unstacked, return what it was.

    What walks over a graph, as an export does for each signature, has T inputs less to look at.
    """
    source = parts[0].op
    is_unstacked = source.type == "Unpack" and source.get_attr("axis") == 1
    if is_unstacked and [part.name for part in parts] == [own.name for own in source.outputs]:
        return source.inputs[0]
    return tf.stack(parts, axis=1)
