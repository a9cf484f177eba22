"""Arithmetic on gradients that keeps the rows of looked-up tables sparse.

gradient = gradients.merge_rows(gradient)       # each row at most once
squares = gradients.squared_norms([gradient])   # cost: the rows of the batch, not the table
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl import types


def merge_rows(gradient: types.Gradient) -> types.Gradient:
    """Sums the slices that belong to one row; the identity on dense gradients and None.

    Without it norms are wrong: slices of 3 and 4 for one row have the norm 7, not 5.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, slots = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, slots, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def transform(
    gradient: types.Gradient, function: Callable[[tf.Tensor], tf.Tensor]
) -> types.Gradient:
    """Applies an elementwise function that maps 0 to 0."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)


def add(gradient: types.Gradient, other: types.Gradient) -> types.Gradient:
    """The sum; sparse if both are sparse."""
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


def values(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
    """The gradients, of looked-up tables the rows."""
    return [part.values if isinstance(part, tf.IndexedSlices) else part for part in gradients]


def squared_norms(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """The squared Euclidean norms [N] of N gradients, float32; rows must be merged."""
    return 2 * tf.stack([tf.nn.l2_loss(tf.cast(value, tf.float32)) for value in values(gradients)])
