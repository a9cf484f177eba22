"""Computes the gradient of each example by a separate pass, for layers that `ghost` cannot handle.

squares, products = brute_force.norms(losses_of, batch, variables, weights)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtl import types
from mtl.deferred import tf
from mtl.step import draws
from mtl.step import gradients as gradients_lib

Losses = Callable[[Any], types.Tensors]
"""A function from a batch, in any nesting, to {task: losses [B]}; it creates no variables."""


def norms(
    losses_of: Losses,
    batch: Any,
    variables: Sequence[tf.Variable],
    weights: types.Tensors,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Measure the gradient norms of examples, one example at a time.

    Args:
      losses_of: a function that builds the forward pass again for some rows of the batch, and
        returns the losses of these rows.
      batch: tensors of B rows, in any nesting of dictionaries and sequences.
      variables: N variables.
      weights: {task: scalar}, the weights of the tasks' losses in the total loss.

    Returns:
      {task: the squared norms of the gradients, [B, N]}, with the key "" for the total loss; and
      the inner products of each example's gradient of the total loss with the sum of these
      gradients over the batch, [B, N]. All numbers are float64.
    """

    def whole_of(losses: types.Tensors) -> tf.Tensor:
        return tf.add_n([weights[task] * losses[task] for task in losses])

    totals = _differentiate_sum(whole_of(losses_of(batch)), variables)  # N gradients of the batch

    # With `expand_composites`, the first tensor of a ragged field would be its flat values, which
    # have more entries than the batch has rows.
    count = tf.shape(tf.nest.flatten(batch, expand_composites=False)[0])[0]

    def of_row(row: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        with draws.draw_for_slice(row, count):  # Draw the same random numbers as in the batch.
            # A slice of one row keeps the axis of rows, which layers expect.
            losses = losses_of(tf.nest.map_structure(lambda values: values[row : row + 1], batch))
        losses = {**losses, "": whole_of(losses)}
        gradients = {task: _differentiate_sum(loss, variables) for task, loss in losses.items()}
        squares = {task: gradients_lib.squared_norms(parts) for task, parts in gradients.items()}

        def products(dtype: tf.DType) -> tf.Tensor:
            pairs = zip(gradients[""], totals, strict=True)
            casts = ([tf.cast(gradient, dtype) for gradient in pair] for pair in pairs)
            return tf.stack([tf.reduce_sum(single * total) for single, total in casts])

        return squares, gradients_lib.retry_in_float64(products)

    signature = (dict.fromkeys([*weights, ""], tf.float64), tf.float64)
    # Without a signature, `map_fn` would expect the structure and type of its input, a row number.
    return tf.map_fn(of_row, tf.range(count), fn_output_signature=signature)


def _differentiate_sum(losses: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return the gradients of the sum of losses; zeros for a variable without effect on losses."""
    zeros = tf.UnconnectedGradients.ZERO
    gradients = tf.gradients(losses, list(variables), unconnected_gradients=zeros)
    # Make the gradients of tables dense: the inner products above need the same table rows in the
    # gradient of an example and in the gradient of the batch.
    return list(map(tf.convert_to_tensor, gradients))
