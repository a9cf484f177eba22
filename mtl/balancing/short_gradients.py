"""Replaces gradients of dense layers by smaller matrices with the same inner products.

blocks = short_gradients.shorten_gradients([gradient of task 0, gradient of task 2])
if blocks is not None:
    leaves = [task_gradients.Leaf((0, 2), rows) for rows in blocks]

A gradient that is a sum over micro-batches or replicas is not a single matrix product. For a
gradient that does not come from a single `MatMul` op, `shorten_gradients` returns None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtl.deferred import tf

_BLOCKS, _ROWS = 4, 64
"""The largest number of blocks of the matrix root R of `X X'`, and the least rows of a block.

R is triangular, so blocks save multiplications by zeros. But many small matrix products take longer
than a single product.
"""


def shorten_gradients(
    gradients: Sequence[tf.Tensor], products_elsewhere: int = 0
) -> list[tf.Tensor] | None:
    """Replace the S tasks' gradients [I, H] of a weight matrix by matrices with only B rows.

    The gradient of task s is `X' D[s]`. X [B, I] is the input of the layer, and D[s] [B, H] the
    gradient of task s by the layer's output. Let R [B, B] be a matrix root of the inner products of
    the input rows, `X X' = R' R`. For the matrix root R, the inner product of the gradients of
    tasks s and t equals the inner product of the matrices `R D[s]` and `R D[t]`. The matrices `R
    D[s]` have only as many rows as the batch, and replace the gradients `X' D[s]`, which need not
    be built.

    Rounding errors of inner products of the matrices `R D[s]` are as small as with the gradients
    themselves, even if the gradients of tasks are nearly linearly dependent. With inner products
    computed from `X X'`, without the matrix root R, rounding errors would be larger.

    Args:
      gradients: the gradients of S tasks by a single weight matrix.
      products_elsewhere: the number of further matrix products, each as costly as one gradient,
        that the caller needs later if the gradients are not built.

    Returns:
      The matrices `R D[s]` of all tasks, as a list of blocks [S, rows, H] with B rows in all. None
      if a gradient is not a single matrix product, for example because several ops read the weight;
      if a size is unknown; or if the gradients themselves cost less.
    """
    factors = _find_factors(gradients)
    if factors is None:
        return None
    inputs, cotangents = factors
    size, width = inputs.shape.with_rank(2)
    height = cotangents[0].shape.with_rank(2)[1]
    if None in (size, width, height):
        return None
    if not _is_cheaper(size, width, height, len(gradients), products_elsewhere):
        return None
    lower = _find_root(inputs)
    step = _find_step(size)
    return [
        tf.stack([_multiply_block(lower, of_task, start, step) for of_task in cotangents])
        for start in range(0, size, step)
    ]


def _find_factors(gradients: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]] | None:
    """Return a layer's input X [B, I], and each task's gradient D [B, H] by the layer's output."""
    ops = [gradient.op for gradient in gradients]
    if not all(map(_is_product, ops)):
        return None
    sides = [[op.inputs[place] for op in ops] for place in (0, 1)]
    for inputs, cotangents in (sides, sides[::-1]):
        if len({tensor.name for tensor in inputs}) == 1:
            return inputs[0], cotangents
    return None


def _is_product(op: tf.Operation) -> bool:
    """Return True if an op multiplies two matrices, of which only the first is transposed."""
    # Gradients in 16 bits are rounded. Their inner products would change without this rounding, so
    # they are not replaced by shorter matrices.
    if op.type != "MatMul" or op.get_attr("T") != tf.float32:
        return False
    return op.get_attr("transpose_a") and not op.get_attr("transpose_b")


def _find_root(inputs: tf.Tensor) -> tf.Tensor:
    """Return a lower triangular L [B, B] with `X X' = L L'`, computed in float64."""
    size, inputs = inputs.shape[0], tf.cast(inputs, tf.float64)
    products = tf.linalg.matmul(inputs, inputs, transpose_b=True)
    squares = tf.linalg.diag_part(products)
    # If rows are dependent or zero, rounding could make a pivot of the decomposition negative. To
    # prevent a negative pivot, each diagonal entry of `X X'` is increased, by more than rounding
    # errors in float64 and by less than rounding errors in float32.
    larger = squares * (1 + 32 * math.sqrt(size) * 2.0**-52) + 1e-300
    lower = tf.linalg.cholesky(tf.linalg.set_diag(products, larger))
    return tf.cast(lower, tf.float32)


def _find_step(size: int) -> int:
    """Return the number of rows of each block."""
    return max(_ROWS, math.ceil(size / _BLOCKS))


def _multiply_block(lower: tf.Tensor, cotangents: tf.Tensor, start: int, step: int) -> tf.Tensor:
    """Return a block of rows of `L' D`, without the rows of D that L multiplies by 0."""
    columns = lower[start:, start : start + step]
    return tf.linalg.matmul(columns, cotangents[start:], transpose_a=True)


def _is_cheaper(
    size: int, width: int, height: int, num_tasks: int, products_elsewhere: int
) -> bool:
    """Return True if the matrices `R D[s]` cost less; multiplications in float64 count twice."""
    share = (1 + 1 / math.ceil(size / _find_step(size))) / 2
    build_cost = num_tasks * height * width * (size + 2 * num_tasks)
    short_cost = num_tasks * height * size * (share * size + 2 * num_tasks)
    root_cost = size * size * (2 * width + size)
    return short_cost + root_cost + products_elsewhere * size * width * height < build_cost
