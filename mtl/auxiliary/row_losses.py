"""Computes the auxiliary losses of the rows in a forward pass, and the weights of the rows.

losses = row_losses.compute(model.auxiliary_losses, activations)    # {name: RowLosses}
weights = row_losses.sum_weights(model.auxiliary_losses, labels, heads)
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.variables import freezing


class RowLosses(NamedTuple):
    """An auxiliary loss: the losses and the weights of the rows.

    Attributes:
      losses: [B], or [B, P] for a loss with P terms.
      weights: the weights of the rows in the mean of each term, in the shape of `losses`.
    """

    losses: tf.Tensor
    weights: tf.Tensor

    def average(self, first: int = 0, count: int = 1) -> tf.Tensor:
        """Compute the weighted mean loss of every `count`-th row, from row `first` on.

        Args:
          first: the index of the first row whose loss the mean includes.
          count: the mean includes every `count`-th row; 1 for all rows.

        Returns:
          A scalar or [P]; 0 if the weights sum to 0.
        """
        losses, weights = self.losses[first::count], self.weights[first::count]
        total = tf.reduce_sum(weights, 0)
        return tf.math.divide_no_nan(tf.reduce_sum(weights * losses, 0), total)


def compute(
    parts: Sequence[types.AuxiliaryLoss],
    activations: types.Activations,
    show: Callable[[types.AuxiliaryLoss], types.Activations] | None = None,
) -> dict[str, RowLosses]:
    """Compute auxiliary losses, each in the scope `auxiliary/<name>`.

    Args:
      parts: the auxiliary losses.
      activations: the network's outputs for the rows.
      show: a function from an auxiliary loss to the activations that the loss reads; None lets all
        losses read `activations`.

    Returns:
      {name of the loss: losses and weights of the rows, [B] or [B, P] each}.

    Raises:
      UserError: a loss is not a tensor, or its shape or type differs from those of the weights.
    """
    losses_by_name = {}
    for part in parts:
        trainable = types.read_member(part, types.AuxiliaryLoss, "trainable")
        with tf1.variable_scope(f"auxiliary/{part.name}"), freezing.hold_part(trainable):
            losses = part(show(part) if show else activations)
        rows = activations.labels or activations.features  # The data may have no labels.
        weights = _weigh_rows(part, rows, activations.heads)
        where, dtype = f"auxiliary loss {part.name!r}", weights.dtype
        rule = f"return the losses of rows, {dtype.name} {weights.shape}"
        checks.is_a(where, losses, tf.Tensor, rule)
        fits = losses.shape.rank == weights.shape.rank and losses.dtype == dtype
        fits = fits and losses.shape.is_compatible_with(weights.shape)
        checks.require(fits, where, rule, losses)
        losses_by_name[part.name] = RowLosses(losses, weights)
    return losses_by_name


def sum_weights(
    parts: Sequence[types.AuxiliaryLoss], labels: types.Tensors, heads: Mapping[str, types.Head]
) -> dict[str, tf.Tensor]:
    """Sum the weights of the rows for each auxiliary loss.

    Args:
      parts: the auxiliary losses.
      labels: {label: [B, ...]}.
      heads: {task: head}.

    Returns:
      {name of the loss: a scalar, or [P] for a loss with P terms}.
    """
    return {part.name: tf.reduce_sum(_weigh_rows(part, labels, heads), 0) for part in parts}


def compute_coefficient(part: types.AuxiliaryLoss, step: tf.Tensor) -> tf.Tensor | float:
    """Compute the weight of an auxiliary loss in this step.

    Args:
      part: the auxiliary loss, whose weight is a number or a schedule.
      step: the global step, an integer scalar.

    Returns:
      The weight: the number itself, or the scalar that the schedule returns.
    """
    weight = types.read_member(part, types.AuxiliaryLoss, "weight")
    if not callable(weight):
        return weight
    where = f"the schedule {type(weight).__name__} of {part.name!r}"
    value = weight(step)
    checks.is_a(where, value, (tf.Tensor, tf.Variable, numbers.Real), "return a scalar")
    return value


def compute_of_labels(head: types.Head, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
    """Compute the loss of every row in one task.

    The mean of the rows' losses, weighted by `WeighingHead.row_weights`, is the loss of the head.

    Args:
      head: the head, an `ExampleHead`.
      logits: [B, C].
      labels: {label: [B, ...]}.

    Returns:
      The losses, [B].
    """
    example_head = cast(types.ExampleHead, head)  # Callers check for an ExampleHead.
    examples = example_head.examples(logits, labels)
    losses = example_head.losses(examples.logits, examples.targets)
    if losses.shape.rank == 1:
        return losses
    # If a row has several examples, such as pixels, losses and weights are [B, K].
    total = tf.reduce_sum(examples.weights * losses, 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(examples.weights, 1))


def _weigh_rows(
    part: types.AuxiliaryLoss, labels: types.Tensors, heads: Mapping[str, types.Head]
) -> tf.Tensor:
    return types.read_member(part, types.AuxiliaryLoss, "row_weights")(labels, heads)
