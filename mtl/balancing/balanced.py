"""From the losses of a batch to one gradient for each variable: weighting, then surgery.

found = balanced.balance_losses(batch, weighting, surgery)
train_op, monitors = update(found.gradients, found.variables, found.losses)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from mtl import types
from mtl.balancing import penalised as penalised_lib
from mtl.balancing.weighting import base as weighting_base
from mtl.step import gradients as gradients_lib
from mtl.step import whole_batch
from mtl.variables import stacks

tf1 = tf.compat.v1


class Balanced(NamedTuple):
    """What a step goes by.

    Attributes:
      gradients: one for each variable, of the whole batch.
      penalised: the same, with the gradients of penalties that parts of the batch have.
      penalty: scalar, the value of these; None where there are none.
      variables: all that can be trained, with those of the weighting.
      losses: {task: scalar}, unweighted, of the whole batch.
      weights: {task: scalar}, what the weighting multiplies the task's gradient by.
      total: scalar, the sum of the weighted losses.
      scaled: the parts of the batch, their losses weighted.
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
        """Return what to watch of each task: `<task>/loss`, unweighted, and `weight/<task>`."""
        found: dict[str, tf.Tensor] = {}
        for task, loss in self.losses.items():
            found |= {f"{task}/loss": loss, f"weight/{task}": self.weights[task]}
        return found


def balance_losses(
    batch: whole_batch.WholeBatch,
    weigh: Callable[[types.Tensors, tf.Tensor], types.Tensors],
    surgery: types.Surgery,
    reads_losses: bool,
) -> Balanced:
    """Weigh the losses of a batch and combine their gradients, in the scope `balancing`.

    The sum of the weighted losses becomes one of UPDATE_OPS: it is that of the weights before the
    step, whoever fetches it.

    Args:
      batch: the parts of the batch, whose losses are plain.
      weigh: {task: scalar} and the global step -> {task: scalar}, weighted.
      surgery: combines the gradients.
      reads_losses: whether weighting or surgery decide by the values of the losses.
    """
    # Slices keep no activations: summing their losses before surgery takes a pass of its own.
    # Where no value of a loss decides, the first slice stands in for all.
    losses = batch.sum(lambda forward: forward.losses) if reads_losses else batch.first.losses
    with tf1.variable_scope("balancing"):
        step = tf1.train.get_or_create_global_step()
        weighted = weigh(losses, step)
        # A weighting may be any function of the losses, such as a logarithm or a softmax. What it
        # does to a task's gradient is to multiply it by the derivative of the weighted loss by the
        # plain one: that is the task's weight. Every pass scales its losses by it, so that no
        # gradient has to go through the weighting, which knows the whole batch alone.
        # Equal weights hand the losses on. Those of many tasks are not multiplied by 1. Those of
        # few are, or TensorFlow would add them up in another order than it always did.
        are_plain = all(weighted[task] is loss for task, loss in losses.items())
        weighs = not (are_plain and stacks.are_stacked(len(losses)))
        weights = weighting_base.derive_weights(weighted, losses)
        variables = tf1.trainable_variables()  # With those of the weighting.
        scaled = batch.scale_losses(weights if weighs else None)
        if batch.first.penalties:
            scaled = penalised_lib.watch_penalties(scaled, variables)
        gradients, monitors = surgery(weighted, variables, scaled)
    if weighs:
        # Weights are constants to surgery. What the weighting itself learns, such as log variances,
        # gets its gradient here: from the weighted losses, with the plain losses held constant.
        stop = list(losses.values())
        own = tf.gradients(list(weighted.values()), variables, stop_gradients=stop)
        gradients = list(map(gradients_lib.add_gradients, gradients, own))
    penalised, penalty = gradients, None
    if batch.first.penalties:
        penalised, penalty = penalised_lib.add_penalties(gradients, scaled)
    if not reads_losses:  # Surgery has added them up, in the same pass as the gradients.
        losses = {task: monitors[f"{task}/loss"] for task in losses}
        weighted = losses
        if weighs:
            weighted = {task: weights[task] * loss for task, loss in losses.items()}
    total = tf.add_n(list(weighted.values()))
    # UPDATE_OPS run before the weights move. Nothing else orders the reported loss and the update:
    # without this the loss might be that of variables that have moved already.
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, total)
    found = gradients, penalised, penalty, variables, losses, weights, total, scaled, monitors
    return Balanced(*found)


def read_losses(weighting: types.Weighting, surgery: types.Surgery) -> bool:
    """Tell whether weighting or surgery decide by the values of the losses."""
    return types.read_member(weighting, types.Weighting, "reads_losses") or types.read_member(
        surgery, types.Surgery, "reads_losses"
    )


def hide_nan(loss: tf.Tensor) -> tf.Tensor:
    """Return the loss that Estimator is told; a NaN, at which it would end the run, is 0.

    What becomes of such a step is for the update to say.
    """
    return tf.where(tf.math.is_nan(loss), 0.0, loss)
