"""Turns the losses of a batch into one gradient for each variable: weighting, then surgery.

result = balanced.balance_losses(batch, weigh, surgery, reads_losses)
train_op, monitors = update(result.gradients, result.variables, result.losses)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mtl import checks, types
from mtl.balancing import penalised as penalised_lib
from mtl.balancing.weighting import base as weighting_base
from mtl.deferred import tf, tf1
from mtl.step import gradients as gradients_lib
from mtl.step import whole_batch

_log = logging.getLogger(__name__)


class Balanced(NamedTuple):
    """The balanced gradients of a training step, its losses, and scalars to monitor.

    Attributes:
      gradients: the gradient of each variable, over the whole batch.
      penalised: `gradients` plus the gradients of penalties that depend on the batch's rows.
      penalty: scalar, the value of the penalties that depend on the batch's rows; None if there are
        no penalties.
      variables: all trainable variables of the graph, including variables of the weighting.
      losses: {task: scalar}, the unweighted losses of the whole batch.
      weights: {task: scalar}, the factor by which the weighting scales each task's gradient.
      total: scalar, the sum of the weighted losses.
      scaled: the batch, divided into parts, with the losses multiplied by `weights`.
      monitors: scalars of the surgery, {name: scalar}.
    """

    gradients: Sequence[types.Gradient]
    penalised: Sequence[types.Gradient]
    penalty: tf.Tensor | None
    variables: Sequence[tf.Variable]
    losses: types.Tensors
    weights: types.Tensors
    total: tf.Tensor
    scaled: whole_batch.WholeBatch
    monitors: types.Tensors

    def describe_tasks(self) -> dict[str, tf.Tensor]:
        """Return scalars of each task: `<task>/loss`, the unweighted loss, and `weight/<task>`."""
        monitors: dict[str, tf.Tensor] = {}
        for task, loss in self.losses.items():
            monitors |= {f"{task}/loss": loss, f"weight/{task}": self.weights[task]}
        return monitors


def balance_losses(
    batch: whole_batch.WholeBatch,
    weigh: Callable[[types.Tensors, tf.Tensor], types.Tensors],
    surgery: types.Surgery,
    reads_losses: bool,
) -> Balanced:
    """Weigh the losses of a batch and combine the tasks' gradients, in variable scope `balancing`.

    The sum of the weighted losses is added to UPDATE_OPS, so that the sum is computed before the
    update changes the network's weights.

    Args:
      batch: the batch, divided into parts, with unweighted losses.
      weigh: a function from {task: loss} and the global step to {task: weighted loss}, scalars.
      surgery: the part that combines the gradients of all tasks into one gradient.
      reads_losses: True if weighting or surgery depend on the values of the losses.
    """
    # The activations of a slice do not stay in memory, so summing the losses of all slices takes
    # another forward pass. If neither weighting nor surgery reads values of losses, `weigh` gets
    # only the losses of the first slice.
    losses = batch.sum(lambda forward: forward.losses) if reads_losses else batch.first.losses
    with tf1.variable_scope("balancing"):
        step = tf1.train.get_or_create_global_step()
        weighted = weigh(losses, step)
        # A weighting may be any function of the losses of the whole batch, such as a logarithm or a
        # softmax. The weight of a task is the derivative of its weighted loss by its unweighted
        # loss. Each forward pass over a part of the batch multiplies the losses of tasks by the
        # weights of tasks, so gradients need not go through the weighting. `Equal` returns the
        # losses unchanged, so that the graph has no factors of 1.
        weighs = any(weighted[task] is not loss for task, loss in losses.items())
        weights = weighting_base.derive_weights(weighted, losses)
        variables = tf1.trainable_variables()  # The list includes variables of the weighting.
        scaled = batch.scale_losses(weights if weighs else None)
        if batch.first.penalties:
            scaled = penalised_lib.watch_penalties(scaled, variables)
        gradients, monitors = surgery(weighted, variables, scaled)
    if weighs:
        # Surgery treats the weights of losses as constants. Variables of the weighting, such as log
        # variances, get their gradients here: from the weighted losses, with the unweighted losses
        # held constant.
        stop = list(losses.values())
        weighting_gradients = tf.gradients(list(weighted.values()), variables, stop_gradients=stop)
        gradients = list(map(gradients_lib.add_gradients, gradients, weighting_gradients))
    penalised_gradients, penalty = gradients, None
    if batch.first.penalties:
        penalised_gradients, penalty = penalised_lib.add_penalties(gradients, scaled)
    if not reads_losses:  # Surgery has summed the losses in the same pass as the gradients.
        losses = {task: monitors[f"{task}/loss"] for task in losses}
        weighted = losses
        if weighs:
            weighted = {task: weights[task] * loss for task, loss in losses.items()}
    total = tf.add_n(list(weighted.values()))
    # UPDATE_OPS run before the update. If `total` were not in UPDATE_OPS, the reported loss might
    # be computed from variables that the update has already changed.
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, total)
    moves = gradients, penalised_gradients, penalty, variables
    return Balanced(*moves, losses, weights, total, scaled, monitors)


def weigh_losses(
    weighting: types.Weighting, losses: types.Tensors, step: tf.Tensor
) -> types.Tensors:
    """Weigh losses, and check the result of the weighting.

    Args:
      weighting: the part that scales the losses.
      losses: {task: scalar}.
      step: the global step, an int64 scalar.

    Returns:
      {task: weighted loss, a scalar}.

    Raises:
      UserError: the weighting does not return a map, or the map has no loss for a task, or a loss
        of the map is not a scalar.
    """
    weighted = weighting(losses, step)
    where = f"the weighting {type(weighting).__name__}"
    checks.is_a(where, weighted, Mapping, "return {task: weighted loss}")
    rule = f"return a loss for each of {', '.join(losses)}"
    checks.require(losses.keys() <= weighted.keys(), where, rule, list(weighted))
    if not type(weighting).__module__.startswith("mtl."):
        _check_own(weighted, losses)
    return weighted


def _check_own(weighted: types.Tensors, losses: types.Tensors) -> None:
    """Check that weighted losses are scalars; warn if one depends on the loss of another task."""
    for task, loss in losses.items():
        where, value = f"the weighted loss {task!r}", weighted[task]
        is_scalar = isinstance(value, tf.Tensor) and value.shape.is_compatible_with([])
        checks.require(is_scalar, where, "be a scalar tensor", value)
        others = {name: other for name, other in losses.items() if other is not loss}
        gradients = tf.gradients(value, list(others.values())) if others else []
        pairs = zip(others, gradients, strict=True)
        names = [name for name, gradient in pairs if gradient is not None]
        if names:
            fix = "wrap them in tf.stop_gradient, as the step takes them for constants"
            _log.warning("The weighted loss %r depends on the losses of %s: %s.", task, names, fix)


def read_losses(weighting: types.Weighting, surgery: types.Surgery) -> bool:
    """Return True if weighting or surgery depend on the values of the losses."""
    return types.read_member(weighting, types.Weighting, "reads_losses") or types.read_member(
        surgery, types.Surgery, "reads_losses"
    )


def hide_nan(loss: tf.Tensor) -> tf.Tensor:
    """Replace a NaN loss by 0, because Estimator would end the run at a NaN.

    The setting `Update.if_not_finite` decides how training reacts to a NaN.
    """
    return tf.where(tf.math.is_nan(loss), 0.0, loss)
