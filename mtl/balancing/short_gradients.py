"""Gradients of dense layers made short: fewer rows, and the same inner products.

blocks = short_gradients.shorten_gradients([gradient of task 0, gradient of task 2])
if blocks is not None:
    leaves = [task_gradients.Leaf((0, 2), rows) for rows in blocks]

A gradient that is a sum over slices or replicas is not a product of this kind. It is built in full.
The type of its op shows that, so no code asks about slices or replicas.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

_BLOCKS, _ROWS = 4, 64
"""Into how many blocks a root is cut at most, and how many rows each has at least.

Nothing is multiplied below the diagonal, but many small products take longer than one.
"""


def shorten_gradients(
    gradients: Sequence[tf.Tensor], products_elsewhere: int = 0
) -> list[tf.Tensor] | None:
    """Shorten S gradients `X' D[s]` [I, H] of a weight: N blocks of [S, rows, H], B rows in all.

    X [B, I] goes into the layer, and D[s] [B, H] is the cotangent of what comes out. With a root R
    [B, B] of the products of the inputs, `X X' = R' R`, the inner product of two gradients is that
    of `R D[s]` and `R D[t]`: they have as many rows as the batch, and no gradient is built.

    A root, and not X X' itself, keeps gradients apart that nearly depend on each other: what
    rounding does to `R D[s]` is no more than what it does to the gradient.

    Args:
      gradients: of one weight, one for each task.
      products_elsewhere: how many products of the size of one gradient are made in another place,
        if none is built here.

    Returns:
      None where a gradient is no such product, as where several ops read the weight, where sizes
      are not known, and where the gradients themselves cost less.
    """
    found = _find_factors(gradients)
    if found is None:
        return None
    inputs, cotangents = found
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
    """Return the inputs [B, I] and the cotangents [B, H] of each gradient, [I, H] or [H, I]."""
    ops = [gradient.op for gradient in gradients]
    if not all(map(_is_product, ops)):
        return None
    sides = [[op.inputs[place] for op in ops] for place in (0, 1)]
    for inputs, cotangents in (sides, sides[::-1]):
        if len({tensor.name for tensor in inputs}) == 1:
            return inputs[0], cotangents
    return None


def _is_product(op: tf.Operation) -> bool:
    """Return whether an op multiplies two matrices, of which the first is transposed."""
    # In 16 bits a gradient is rounded once it is built, and decides as it was rounded.
    if op.type != "MatMul" or op.get_attr("T") != tf.float32:
        return False
    return op.get_attr("transpose_a") and not op.get_attr("transpose_b")


def _find_root(inputs: tf.Tensor) -> tf.Tensor:
    """Return L [B, B], lower triangular, with `X X' = L L'`; in float64 until it is found."""
    size, inputs = inputs.shape[0], tf.cast(inputs, tf.float64)
    products = tf.linalg.matmul(inputs, inputs, transpose_b=True)
    squares = tf.linalg.diag_part(products)
    # Rows may depend on each other, or be zero. Rounding then leaves pivots below 0, unless each
    # square is larger by more than that, and less than rounding in float32 changes.
    larger = squares * (1 + 32 * math.sqrt(size) * 2.0**-52) + 1e-300
    lower = tf.linalg.cholesky(tf.linalg.set_diag(products, larger))
    return tf.cast(lower, tf.float32)


def _find_step(size: int) -> int:
    """Return the number of rows of a block."""
    return max(_ROWS, math.ceil(size / _BLOCKS))


def _multiply_block(lower: tf.Tensor, cotangents: tf.Tensor, start: int, step: int) -> tf.Tensor:
    """Return some rows of `L' D`; the examples before them have no part there."""
    columns = lower[start:, start : start + step]
    return tf.linalg.matmul(columns, cotangents[start:], transpose_a=True)


def _is_cheaper(
    size: int, width: int, height: int, num_tasks: int, products_elsewhere: int
) -> bool:
    """Return whether short gradients cost fewer multiplications; one of float64 counts as two."""
    share = (1 + 1 / math.ceil(size / _find_step(size))) / 2
    built = num_tasks * height * width * (size + 2 * num_tasks)
    short = num_tasks * height * size * (share * size + 2 * num_tasks)
    root = size * size * (2 * width + size)
    return short + root + products_elsewhere * size * width * height < built
