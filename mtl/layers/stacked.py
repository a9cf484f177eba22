"""Layers for many equal tasks, with stacked variables (see `mtl.variables.stacks`).

hidden = stacked.dense(inputs, 32, "hidden_0", scopes, seeds)        # [B, D] for all -> [B, T, 32]
logits = stacked.dense(hidden, 1, "logits", scopes, seeds)           # [B, T, 32] -> [B, T, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtl.deferred import tf, tf1
from mtl.variables import stacks


def dense(
    inputs: tf.Tensor,
    units: int,
    name: str,
    scopes: Sequence[str],
    seeds: Sequence[stacks.Seed],
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply T dense layers, one for each scope.

    Args:
      inputs: float32, [B, D] for all scopes, or [B, T, D].
      units: the units of each layer.
      name: the name of the layer in each scope.
      scopes: T scopes, within the current variable scope.
      seeds: T seeds for the initial values of kernels.
      bias_initializer: the initializer of all biases; zeros by default.

    Returns:
      The outputs of the T layers, [B, T, units].
    """
    count, size = len(scopes), inputs.shape[-1]
    is_shared = inputs.shape.rank == 2
    # Use a single product with all kernels for shared inputs, and a batched product otherwise.
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
    """Stack tensors, or return the tensor from which they were unstacked.

    Using the tensor from which the parts were unstacked saves an op with T inputs, which an export
    would process for each signature.

    Args:
      parts: T tensors of the same shape, [B, ...].

    Returns:
      The stacked parts, [B, T, ...].
    """
    source = parts[0].op
    is_unstacked = source.type == "Unpack" and source.get_attr("axis") == 1
    if is_unstacked and [part.name for part in parts] == [output.name for output in source.outputs]:
        return source.inputs[0]
    return tf.stack(parts, axis=1)
