"""Forms of the gradients of B examples by one variable, from which norms are cheap to compute.

gradients = gradient_forms.Products(inputs, cotangents)  # g_i = sum_t inputs[i,t] cotangents[i,t]^T
gradients.squared_norms()                                 # [B]; builds no g_i
gradients.products(gradients.total())                     # [B], <g_i, sum_j g_j>

The norm of a dense layer's gradient is computed from the layer's inputs and cotangents as in
Goodfellow, "Efficient Per-Example Gradient Computations", 2015, arXiv:1510.01799. If an example
uses a weight several times, the norm is the ghost norm of Li et al., "Large Language Models Can Be
Strong Differentially Private Learners", 2021, arXiv:2110.05679.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from mtl import types
from mtl.deferred import tf


class ExampleGradients(Protocol):
    """The gradients of B examples by one variable, as a tuple of tensors."""

    def __iter__(self) -> Iterator[tf.Tensor]:
        """Yield the tensors that represent the gradients."""

    def squared_norms(self) -> tf.Tensor:
        """Compute the squared norm of each gradient, [B]."""

    def scaled(self, factors: tf.Tensor) -> ExampleGradients:
        """Multiply the gradient of each example by its factor; `factors` is [B]."""

    def total(self) -> tf.Tensor:
        """Sum the gradients over the examples."""

    def products(self, total: tf.Tensor) -> tf.Tensor:
        """Compute the inner product of each gradient with a sum that `total` has returned, [B]."""


class Plain(NamedTuple):
    """The gradients as a tensor.

    Attributes:
      gradients: the gradient of each example, [B, ...].
    """

    gradients: tf.Tensor

    def squared_norms(self) -> tf.Tensor:
        return tf.math.reduce_euclidean_norm(_flatten_rows(self.gradients), axis=1) ** 2

    def scaled(self, factors: tf.Tensor) -> Plain:
        ones = [1] * (self.gradients.shape.rank - 1)
        return Plain(self.gradients * tf.reshape(factors, [-1, *ones]))

    def total(self) -> tf.Tensor:
        return tf.reduce_sum(self.gradients, axis=0)

    def products(self, total: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(_flatten_rows(self.gradients), tf.reshape(total, [-1]))


class Products(NamedTuple):
    """Gradients by the weight [P, Q] of a dense layer or a convolution, as products of two factors.

    The gradient of example i is `sum_t x_it d_it^T`, with the input x and the cotangent d of the
    output at each place t.

    Attributes:
      inputs: the inputs or image patches x, [B, T, P], with T places in an example.
      cotangents: the gradients d of the losses with respect to the layer's outputs, [B, T, Q].
    """

    inputs: tf.Tensor
    cotangents: tf.Tensor

    def squared_norms(self) -> tf.Tensor:
        """Compute the squared norm of each gradient, `sum_st <x_is, x_it> <d_is, d_it>`, [B]."""
        # The Gram matrices are [B, T, T]: cheap if T^2 is small compared with P Q; see
        # `ghost._is_smaller_built`.
        grams = [tf.linalg.matmul(factor, factor, transpose_b=True) for factor in self]
        return tf.reduce_sum(grams[0] * grams[1], axis=[1, 2])

    def scaled(self, factors: tf.Tensor) -> Products:
        return self._replace(cotangents=self.cotangents * factors[:, tf.newaxis, tf.newaxis])

    def total(self) -> tf.Tensor:
        # One matrix product of [B T, P] and [B T, Q] sums over places and examples at once.
        inputs, cotangents = (tf.reshape(factor, [-1, factor.shape[-1]]) for factor in self)
        return tf.linalg.matmul(inputs, cotangents, transpose_a=True)

    def products(self, total: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(self.inputs, [-1, self.inputs.shape[-1]])
        along = tf.reshape(tf.linalg.matmul(flat, total), tf.shape(self.cotangents))
        return tf.reduce_sum(along * self.cotangents, axis=[1, 2])

    def built(self) -> Plain:
        """Multiply inputs and cotangents to the gradient of each example, [B, P, Q]."""
        return Plain(tf.linalg.matmul(self.inputs, self.cotangents, transpose_a=True))


class Rows(NamedTuple):
    """Gradients by an embedding table, with a cotangent for each looked-up row.

    Attributes:
      ids: the row numbers of N lookups, [N]; an example may look up a row several times.
      examples: the index of the example of each lookup, [N], in [0, batch_size).
      values: the cotangent of each lookup, [N, D].
      batch_size: B, a scalar.
    """

    ids: tf.Tensor
    examples: tf.Tensor
    values: tf.Tensor
    batch_size: tf.Tensor

    def squared_norms(self) -> tf.Tensor:
        """Compute squared norms, [B]; lookups of the same row in an example are summed first."""
        batch_size = tf.cast(self.batch_size, tf.int64)
        # `tf.unique` takes only vectors, so each pair of a row and an example is encoded as an
        # integer.
        pairs, slots = tf.unique(self.ids * batch_size + self.examples)
        sums = tf.math.unsorted_segment_sum(self.values, slots, tf.size(pairs))
        squares = tf.reduce_sum(sums**2, axis=1)
        return tf.math.unsorted_segment_sum(squares, pairs % batch_size, batch_size)

    def scaled(self, factors: tf.Tensor) -> Rows:
        return self._replace(values=self.values * tf.gather(factors, self.examples)[:, tf.newaxis])

    def total(self) -> tf.Tensor:
        """Sum the cotangents of each row, in the order of the rows' first lookups."""
        rows, slots = tf.unique(self.ids)
        return tf.math.unsorted_segment_sum(self.values, slots, tf.size(rows))

    def products(self, total: tf.Tensor) -> tf.Tensor:
        # `total` also calls `tf.unique` on the ids, so `slots` are row indices of its result.
        _, slots = tf.unique(self.ids)
        along = tf.reduce_sum(self.values * tf.gather(total, slots), axis=1)
        return tf.math.unsorted_segment_sum(along, self.examples, self.batch_size)


def cast_gradients(part: ExampleGradients, dtype: tf.DType) -> ExampleGradients:
    """Cast all float tensors of gradients to a dtype."""
    return type(part)(
        *(tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor for tensor in part)
    )


def join_gradients(parts: Sequence[ExampleGradients]) -> ExampleGradients:
    """Add up the gradients of several uses of a variable.

    Args:
      parts: the gradients of the same B examples for each use of the variable; all parts have the
        same form, such as `Products`.

    Returns:
      The summed gradients, in the form of `parts`. `Products` and `Rows` are joined without
      building any gradient.
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Products):
        # If an example uses a weight several times, the factors of all uses are concatenated along
        # the axis T.
        return Products(*(tf.concat(tensors, axis=1) for tensors in zip(*parts, strict=True)))
    if isinstance(parts[0], Rows):
        columns = list(zip(*parts, strict=True))[:3]
        ids, examples, values = (tf.concat(tensors, axis=0) for tensors in columns)
        return Rows(ids, examples, values, parts[0].batch_size)
    plain = typing.cast(Sequence[Plain], parts)  # Neither Products nor Rows.
    return Plain(tf.add_n([part.gradients for part in plain]))


def weighted_sum(parts: Sequence[tuple[tf.Tensor, Plain]]) -> Plain:
    """Compute a weighted sum of gradients by the same variable.

    Args:
      parts: pairs (weight, gradients) for the same B examples; a weight is a scalar.

    Returns:
      The weighted sum for each example, [B, N], where N is the number of entries of the variable.
    """
    return Plain(tf.add_n([weight * _flatten_rows(part.gradients) for weight, part in parts]))


def to_gradient(part: ExampleGradients, variable: tf.Variable) -> types.Gradient:
    """Sum the gradients over the examples, as the gradient of a variable.

    Args:
      part: the gradient of each of B examples with respect to the variable.
      variable: the variable, or an embedding table if the form is `Rows`.

    Returns:
      A dense gradient in the shape of the variable; if `part` has the form `Rows`, a sparse
      gradient (IndexedSlices) in which each row occurs once.
    """
    if not isinstance(part, Rows):
        return tf.reshape(part.total(), variable.shape)
    # `total` also calls `tf.unique` on the ids, so rows and sums have the same order.
    rows, _ = tf.unique(part.ids)
    return tf.IndexedSlices(part.total(), rows, tf.constant(variable.shape.as_list(), tf.int64))


def _flatten_rows(gradients: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(gradients)
    size = gradients.shape[1:].num_elements()
    return tf.reshape(gradients, [shape[0], -1 if size is None else size])
