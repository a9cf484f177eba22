"""Builds the training step of a `model_fn` from its losses, like `MultiTaskModel`.

step = model_fns.build_step({"click": click_loss, "order": order_loss}, update=update.Update())
return tf.estimator.EstimatorSpec(mode, loss=step.loss, train_op=step.train_op)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mtl import checks, types
from mtl.balancing import balanced
from mtl.balancing import surgery as surgery_lib
from mtl.balancing import weighting as weighting_lib
from mtl.deferred import tf
from mtl.optimization import schedules
from mtl.step import outlets, penalties, replicas, whole_batch

Observe = Callable[[types.Tensors], None]
"""Called with {task: its weight}; ops that it adds to UPDATE_OPS run before the weights move."""

_EQUAL, _SUM = weighting_lib.Equal(), surgery_lib.Sum()


class Step(NamedTuple):
    """The loss and the train_op for an EstimatorSpec, and scalars to watch.

    Attributes:
      loss: the sum of the weighted losses before the step, a scalar. NaN is replaced by 0, because
        Estimator would end the run at NaN even if `Update.if_not_finite` lets it continue.
      train_op: makes the step after UPDATE_OPS, and counts it.
      monitors: {name: scalar}: `loss`, `<task>/loss`, `weight/<task>`, `learning_rate`,
        `gradient_norm`, and scalars of weighting, surgery and update.
    """

    loss: tf.Tensor
    train_op: tf.Operation
    monitors: types.Tensors


@tf.autograph.experimental.do_not_convert
def build_step(
    losses: types.Tensors,
    *,
    update: types.Update,
    weighting: types.Weighting = _EQUAL,
    surgery: types.Surgery = _SUM,
    shared: Sequence[tf.Tensor] = (),
    samples: types.Samples | None = None,
    train_steps: int | None = None,
    observe: Observe | None = None,
) -> Step:
    """Build a step of the trainable variables: weighting, surgery, clipping, optimizer.

    Call this function once, at the end of a training graph, because it uses the `UPDATE_OPS` and
    `REGULARIZATION_LOSSES` that exist at this time. With replicas of a `tf.distribute` strategy,
    the losses of a replica are means over its rows, and all replicas have the same weight.

    Args:
      losses: {task: scalar}, without weight penalties.
      update: clips and applies the gradients.
      weighting: scales the losses.
      surgery: combines the gradients of the tasks.
      shared: tensors that the tasks share, [B, ...] each, for a surgery on the representation.
      samples: S -> the losses of S samples of the batch: every S-th row, starting at each of the
        first S rows; only methods that compare samples need it.
      train_steps: the length of schedules without a length.
      observe: watches the step, such as the result of `Audit.observe`.

    Returns:
      The loss, the op of the step, and scalars to watch.

    Raises:
      UserError: losses are empty or not scalar, or no variable has a gradient.
    """
    where = "build_step: losses"
    checks.is_a(where, losses, Mapping, "be {task: scalar}")
    checks.require(bool(losses), where, "hold the loss of a task", losses)
    for task, loss in losses.items():
        checks.require(loss.shape.rank == 0, f"{where}[{task!r}]", "be a scalar", loss.shape)
    parts = (update, weighting, surgery)
    if train_steps is not None:
        parts = tuple(schedules.fill_decay_steps(part, train_steps) for part in parts)
    update, weighting, surgery = parts
    forward = whole_batch.ForwardPass(dict(losses), shared, samples)
    if replicas.count() > 1:  # The step sums over replicas, but the loss is a mean over them.
        forward = forward.scale_losses(dict.fromkeys(losses, tf.constant(1 / replicas.count())))
        forward = forward._replace(penalties=penalties.take())
    of_network = outlets.take_scalars()
    reads_losses = balanced.read_losses(weighting, surgery)
    batch = whole_batch.WholeBatch(forward)
    result = balanced.balance_losses(batch, weighting, surgery, reads_losses)
    if observe:
        with outlets.drop_summaries():  # `observe` may build the network a second time.
            observe(result.weights)
    train_op, of_update = update(result.penalised, result.variables, result.losses)
    of_network |= outlets.take_scalars()
    if result.penalty is not None:
        of_update["regularization"] = result.penalty + of_update.get("regularization", 0.0)
    monitors = {"loss": result.total, **result.monitors, **of_update, **of_network}
    return Step(balanced.hide_nan(result.total), train_op, monitors | result.describe_tasks())
