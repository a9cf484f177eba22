"""Builds the training step of any `model_fn` from its losses, with the parts of `MultiTaskModel`.

step = model_fns.build_step({"click": click_loss, "order": order_loss}, update=update.Update())
return tf.estimator.EstimatorSpec(mode, loss=step.loss, train_op=step.train_op)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks, types
from mtl.balancing import balanced
from mtl.balancing import surgery as surgery_lib
from mtl.balancing import weighting as weighting_lib
from mtl.deferred import tf, tf1
from mtl.optimization import schedules
from mtl.step import outlets, penalties, replicas, whole_batch

Observe = Callable[[types.Tensors], None]
"""A function of {task: weight}; ops that it adds to UPDATE_OPS run before the update."""

# Ops that read rows: from an iterator, or from the inputs of a loop's graph.
_READING = (
    "IteratorGetNext",
    "IteratorGetNextSync",
    "MultiDeviceIteratorGetNextFromShard",
    "OptionalGetValue",
    "Placeholder",
)
_EQUAL, _SUM = weighting_lib.Equal(), surgery_lib.Sum()


class Step(NamedTuple):
    """The loss and the train_op for an EstimatorSpec, and scalars to monitor.

    Attributes:
      loss: the sum of the weighted losses before the step, a scalar. A NaN is replaced by 0:
        Estimator would end the run at a NaN even if `Update.if_not_finite` lets the run continue.
      train_op: an op that runs UPDATE_OPS, applies the gradients, and increments the global step.
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
    """Build a training step from losses: weighting, surgery, clipping, optimizer.

    Call this function once, at the end of a training graph, because it uses the `UPDATE_OPS` and
    `REGULARIZATION_LOSSES` that exist at the time of the call. On replicas of a `tf.distribute`
    strategy, losses are means over the replica's rows, and the step averages these losses.

    Args:
      losses: {task: scalar}, without weight penalties.
      update: the part that clips and applies the gradients.
      weighting: the part that scales the losses.
      surgery: the part that combines the gradients of the tasks.
      shared: outputs [B, ...] that tasks share, for a surgery on the representation.
      samples: a function from S to S dicts of losses: the s-th dict covers every S-th row of the
        batch, from row s on. Only some balancing methods, such as `MoDo`, call `samples`.
      train_steps: the length, in steps, of schedules that have no length.
      observe: a function that observes the step, such as the result of `Audit.observe`.

    Returns:
      The loss, the train_op, and scalars to monitor.

    Raises:
      UserError: `losses` is empty, a loss is not a float32 scalar, an argument is not a part, or no
        variable has a gradient.
    """
    _check_losses(losses)
    _check_parts(update, weighting, surgery, train_steps)
    parts = (update, weighting, surgery)
    if train_steps is not None:
        parts = tuple(schedules.fill_decay_steps(part, train_steps) for part in parts)
    update, weighting, surgery = parts
    forward = whole_batch.ForwardPass(dict(losses), shared, samples)
    if replicas.count() > 1:  # The step sums losses over replicas.
        forward = forward.scale_losses(dict.fromkeys(losses, tf.constant(1 / replicas.count())))
        # Do not scale penalties of weights, because the update adds them only once.
        forward = forward._replace(penalties=penalties.take(rows=_find_rows()))
    of_network = outlets.take_scalars()
    reads_losses = balanced.read_losses(weighting, surgery)
    batch = whole_batch.WholeBatch(forward)
    weigh = functools.partial(balanced.weigh_losses, weighting)
    result = balanced.balance_losses(batch, weigh, surgery, reads_losses)
    if observe:
        with outlets.drop_summaries():  # `observe` may build the network a second time.
            observe(result.weights)
    train_op, of_update = update(result.penalised, result.variables, result.losses)
    of_network |= outlets.take_scalars()
    if result.penalty is not None:
        of_update["regularization"] = result.penalty + of_update.get("regularization", 0.0)
    monitors = {"loss": result.total, **result.monitors, **of_update, **of_network}
    return Step(balanced.hide_nan(result.total), train_op, monitors | result.describe_tasks())


def _find_rows() -> list[tf.Tensor]:
    """Return the tensors by which rows enter the graph, from an iterator or from a loop."""
    return [
        output
        for op in tf1.get_default_graph().get_operations()
        if op.type in _READING
        for output in op.outputs
        if output.dtype != tf.resource  # A resource that enters a loop is a variable, not rows.
    ]


def _check_losses(losses: types.Tensors) -> None:
    where = "build_step: losses"
    checks.is_a(where, losses, Mapping, "be {task: scalar}")
    checks.require(bool(losses), where, "hold the loss of a task", losses)
    for task, loss in losses.items():
        is_scalar = isinstance(loss, tf.Tensor) and loss.shape.rank == 0
        is_scalar = is_scalar and loss.dtype == tf.float32
        checks.require(is_scalar, f"{where}[{task!r}]", "be a float32 scalar of a graph", loss)


def _check_parts(update: Any, weighting: Any, surgery: Any, train_steps: int | None) -> None:
    checks.require_part("build_step: update", update, "update.Update", 3)
    checks.require_part("build_step: weighting", weighting, "weighting.Equal", 2)
    checks.require_part("build_step: surgery", surgery, "surgery.Combine", 3)
    if train_steps is not None:
        checks.whole("build_step: train_steps", train_steps, 1)
