"""Arithmetic on gradients that keeps the gradients of embedding tables sparse.

gradient = gradients.merge_rows(gradient)       # each row at most once
squares = gradients.squared_norms([gradient])   # cost: the rows of the batch, not the table
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtl import types
from mtl.deferred import tf


def merge_rows(gradient: types.Gradient) -> types.Gradient:
    """Sum the entries of a sparse gradient for the same row.

    Norms need merged rows: two entries of 3 and 4 for the same row have the norm 7, not 5.

    Args:
      gradient: dense, sparse or None.

    Returns:
      A sparse gradient in which each row occurs once, in the order of first occurrence; any other
      gradient is returned unchanged.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # `tf.convert_to_tensor` would build a dense gradient, which takes the memory of the whole
    # table.
    rows, slots = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, slots, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def transform_gradient(
    gradient: types.Gradient, function: Callable[[tf.Tensor], tf.Tensor]
) -> types.Gradient:
    """Apply a function to the entries of a gradient.

    Args:
      gradient: dense, sparse or None.
      function: an elementwise function. The function must map 0 to 0, because a sparse gradient
        leaves out rows of zeros.

    Returns:
      The changed gradient: dense, sparse or None, like `gradient`.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)


def add_gradients(gradient: types.Gradient, other: types.Gradient) -> types.Gradient:
    """Add two gradients of a variable.

    Args:
      gradient: dense, sparse or None.
      other: dense, sparse or None.

    Returns:
      The sum of the gradients: dense if one of them is dense, else sparse; None if both are None.
    """
    if gradient is None or other is None:
        return other if gradient is None else gradient
    sparse = [part for part in (gradient, other) if isinstance(part, tf.IndexedSlices)]
    if not sparse:
        return gradient + other
    if len(sparse) == 2:
        values = tf.concat([part.values for part in sparse], 0)
        indices = tf.concat([part.indices for part in sparse], 0)
        return merge_rows(tf.IndexedSlices(values, indices, gradient.dense_shape))
    dense = other if sparse[0] is gradient else gradient
    return tf.tensor_scatter_nd_add(dense, sparse[0].indices[:, tf.newaxis], sparse[0].values)


def list_values(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
    """Return the values of each gradient as a tensor.

    Args:
      gradients: N gradients, dense or sparse; none may be None.

    Returns:
      N tensors: dense gradients, and the values of sparse gradients, [number of rows, ...].
    """
    return [part.values if isinstance(part, tf.IndexedSlices) else part for part in gradients]


def squared_norms(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """Compute squared Euclidean norms of gradients.

    Norms of finite gradients are finite. Sums of squares in float32 overflow at norms of 1.8e19;
    after such an overflow, the step computes the sums again in float64.

    Args:
      gradients: N gradients; sparse ones must have merged rows.

    Returns:
      float64 [N].
    """

    def sum_squares(dtype: tf.DType) -> tf.Tensor:
        # `l2_loss` is half of the sum of squares, in one op that does not store the squares.
        halves = [tf.nn.l2_loss(tf.cast(part, dtype)) for part in list_values(gradients)]
        return 2 * tf.cast(tf.stack(halves), tf.float64)

    return retry_in_float64(sum_squares)


def retry_in_float64(squares: Callable[[tf.DType], tf.Tensor]) -> tf.Tensor:
    """Compute sums of squares in float32; only if they are not finite, compute them in float64.

    Args:
      squares: a function that gets `tf.float32` or `tf.float64`, and computes the sums of squares
        in this type.

    Returns:
      The sums of squares as float64, in the shape in which `squares` returns them.
    """
    quick = tf.cast(squares(tf.float32), tf.float64)
    is_finite = tf.math.is_finite(tf.reduce_sum(quick))
    return tf.cond(is_finite, lambda: quick, lambda: squares(tf.float64))


def norm_from_squares(squares: tf.Tensor) -> tf.Tensor:
    """Compute the norm of a vector from the squared norms of its parts.

    Args:
      squares: the squared norms of the parts, float64 in any shape.

    Returns:
      float32 scalar. A finite norm above the largest float32 is set to the largest float32.
    """
    return take_roots(tf.reduce_sum(squares))


def take_roots(squares: tf.Tensor) -> tf.Tensor:
    """Take square roots.

    Args:
      squares: the numbers under the roots, at least 0, float64 in any shape.

    Returns:
      float32 in the same shape. Finite roots above the largest float32 are set to the largest
      float32.
    """
    roots = tf.sqrt(squares)
    capped_roots = tf.where(tf.math.is_finite(roots), tf.minimum(roots, tf.float32.max), roots)
    return tf.cast(capped_roots, tf.float32)
