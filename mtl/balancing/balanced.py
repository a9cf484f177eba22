"""From the losses of a batch to one gradient for each variable: weighting, then surgery.

result = balanced.balance_losses(batch, weigh, surgery, reads_losses)
train_op, monitors = update(result.gradients, result.variables, result.losses)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mtl import types
from mtl.balancing import penalised as penalised_lib
from mtl.balancing.weighting import base as weighting_base
from mtl.deferred import tf, tf1
from mtl.step import gradients as gradients_lib
from mtl.step import whole_batch


class Balanced(NamedTuple):
    """The balanced gradients of a step, and the values that a step reports.

    Attributes:
      gradients: one for each variable, of the whole batch.
      penalised: these gradients plus the gradients of penalties on parts of the batch.
      penalty: scalar, the value of these penalties; None if there are none.
      variables: all trainable variables, including variables of the weighting.
      losses: {task: scalar}, unweighted, of the whole batch.
      weights: {task: scalar}, the factor of the weighting for each task's gradient.
      total: scalar, the sum of the weighted losses.
      scaled: the parts of the batch, with weighted losses.
      monitors: scalars of the surgery.
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
        """Return monitors of each task: `<task>/loss`, unweighted, and `weight/<task>`."""
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
    """Weigh the losses of a batch and combine their gradients, in the scope `balancing`.

    The sum of the weighted losses joins UPDATE_OPS: its value then always comes from the weights
    before the step.

    Args:
      batch: the parts of the batch, with unweighted losses.
      weigh: a function from {task: loss} and the global step to {task: weighted loss}, scalars.
      surgery: combines the gradients.
      reads_losses: True if weighting or surgery decide by the values of the losses.
    """
    # Slices keep no activations, so summing their losses before surgery takes another pass. If no
    # decision reads a loss, the first slice stands in for all slices.
    losses = batch.sum(lambda forward: forward.losses) if reads_losses else batch.first.losses
    with tf1.variable_scope("balancing"):
        step = tf1.train.get_or_create_global_step()
        weighted = weigh(losses, step)
        # A weighting may be any function of the losses, such as a logarithm or a softmax. It
        # multiplies a task's gradient by the derivative of the weighted loss by the plain loss: the
        # weight of the task. Every pass scales its losses by the weights, so gradients need not go
        # through the weighting, which needs the whole batch. `Equal` returns the losses themselves,
        # so that the graph has no factors of 1.
        weighs = any(weighted[task] is not loss for task, loss in losses.items())
        weights = weighting_base.derive_weights(weighted, losses)
        variables = tf1.trainable_variables()  # Including variables of the weighting.
        scaled = batch.scale_losses(weights if weighs else None)
        if batch.first.penalties:
            scaled = penalised_lib.watch_penalties(scaled, variables)
        gradients, monitors = surgery(weighted, variables, scaled)
    if weighs:
        # Surgery treats weights as constants. The weighting's own variables, such as log variances,
        # get their gradients here: from the weighted losses, with the plain losses held constant.
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
    # UPDATE_OPS run before the weights move. Otherwise nothing orders the reported loss and the
    # update, and the loss might come from variables that have already moved.
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, total)
    moves = gradients, penalised_gradients, penalty, variables
    return Balanced(*moves, losses, weights, total, scaled, monitors)


def read_losses(weighting: types.Weighting, surgery: types.Surgery) -> bool:
    """Return True if weighting or surgery decide by the values of the losses."""
    return types.read_member(weighting, types.Weighting, "reads_losses") or types.read_member(
        surgery, types.Surgery, "reads_losses"
    )


def hide_nan(loss: tf.Tensor) -> tf.Tensor:
    """Return the loss for Estimator, with 0 instead of NaN: Estimator would end the run at NaN.

    `Update.if_not_finite` decides about such a step.
    """
    return tf.where(tf.math.is_nan(loss), 0.0, loss)
