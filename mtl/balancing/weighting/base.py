"""Functions for weightings: losses as a vector, present tasks, and weighted losses.

values = base.require_nonnegative("FAMO", losses)       # [T] float64; an error at runtime below 0
present = base.are_present(values)                    # [T] bool; without a label, the loss is 0
return base.scale_losses(weights, losses)                # {task: weight * loss}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl import checks, types
from mtl.deferred import tf

# A task with a smaller loss counts as absent, so that the inverse of the loss cannot overflow.
_LEAST = 1e-30
# Larger weights are set to this value, because the largest float32 is 3.4e38.
_GREATEST_WEIGHT = 1e30


class Weighting(types.Weighting):
    """The base class of the weightings in this package."""

    @property
    def is_entrywise(self) -> bool:
        return type(self).__module__.startswith(f"{__package__}.")


def stack_losses(losses: types.Tensors) -> tf.Tensor:
    """Stack the losses to a vector that gradients treat as a constant.

    Args:
      losses: {task: scalar}.

    Returns:
      The losses as a vector, float64 [T], in the order of the tasks.
    """
    return tf.stop_gradient(tf.cast(tf.stack(list(losses.values())), tf.float64))


def require_nonnegative(where: str, losses: types.Tensors) -> tf.Tensor:
    """Stack losses, which must be at least 0, to a vector that gradients treat as a constant.

    Args:
      where: the class name of the weighting, for the error message.
      losses: {task: scalar}.

    Returns:
      float64 [T].

    Raises:
      InvalidArgumentError: when the graph runs, if a loss is below 0, which has no logarithm.
    """
    values = stack_losses(losses)

    below = values < 0

    def fail() -> tf.Operation:
        tasks = tf.boolean_mask(tf.constant(list(losses)), below)
        amounts = tf.as_string(tf.boolean_mask(values, below), shortest=True)
        message = [
            f"weighting.{where} must get losses of at least 0, got ",
            tf.strings.reduce_join(amounts + " for " + tasks, separator=", "),
            ". Losses of any sign suit Equal, Fixed, Scheduled and RandomLossWeighting.",
        ]
        return tf.debugging.Assert(False, [tf.strings.join(message)])

    # With `tf.cond`, the ops that build the error message run only in steps with a negative loss.
    with tf.control_dependencies([tf.cond(tf.reduce_any(below), fail, tf.no_op)]):
        return tf.identity(values)


def are_present(values: tf.Tensor) -> tf.Tensor:
    """Find the losses of tasks that are in the batch; the loss of a task without labels is 0.

    Args:
      values: losses in any shape, such as [T].

    Returns:
      bool in the same shape: True for losses that are finite, with an absolute value of at least
      1e-30.
    """
    return (tf.abs(values) >= _LEAST) & tf.math.is_finite(values)


def scale_losses(weights: tf.Tensor, losses: types.Tensors) -> types.Tensors:
    """Multiply the losses by weights, which gradients treat as constants.

    Args:
      weights: the weights of the losses, float64 [T], in the order of the losses. Weights above
        1e30 are set to 1e30.
      losses: {task: scalar}.

    Returns:
      {task: scalar}.
    """
    weights = tf.stop_gradient(tf.minimum(weights, _GREATEST_WEIGHT))
    return {
        task: tf.cast(weights[t], loss.dtype) * loss
        for t, (task, loss) in enumerate(losses.items())
    }


def take_logarithms(losses: types.Tensors) -> types.Tensors:
    """Take logarithms of the losses.

    Args:
      losses: {task: scalar}, at least 0; see `require_nonnegative`.

    Returns:
      {task: log(loss)}, scalars; constant 0 for absent tasks.
    """
    return {
        task: tf.math.log(tf.where(are_present(loss), loss, 1.0)) for task, loss in losses.items()
    }


def softmax(logits: tf.Tensor, among: tf.Tensor) -> tf.Tensor:
    """Compute the softmax of logits over some of the tasks.

    Args:
      logits: float64 [T].
      among: bool [T], True for the tasks over which the softmax is taken.

    Returns:
      float64 [T] with sum 1; 0 for tasks that are False in `among`, and 0 for all tasks if `among`
      is False everywhere.
    """
    # Tasks outside of `among` get the lowest finite number, not -inf: if all logits were -inf, the
    # difference from their maximum would be NaN.
    logits = tf.where(among, logits, logits.dtype.min)
    shares = tf.where(among, tf.exp(logits - tf.reduce_max(logits)), 0.0)
    return tf.math.divide_no_nan(shares, tf.reduce_sum(shares))


def of_tasks(where: str, setting: Mapping[str, Any], losses: types.Tensors) -> list[Any]:
    """Return the values of a setting {task: value} in the order of the losses.

    Args:
      where: the name of the setting, for the error message.
      setting: the value of the setting, {task: value} for every task.
      losses: {task: scalar}, whose keys give the order of the returned values.

    Raises:
      UserError: the tasks of the setting are not the tasks of the model.
    """
    for task in setting:
        checks.one_of(where, task, losses)
    missing = sorted(set(losses) - set(setting))
    checks.require(not missing, where, "name every task", missing, "Add them.")
    return [setting[task] for task in losses]


def derive_weights(weighted: types.Tensors, losses: types.Tensors) -> dict[str, tf.Tensor]:
    """Compute the weights of the tasks from the result of a weighting.

    Args:
      weighted: {task: scalar}, the result of a weighting.
      losses: {task: scalar}, the losses before the weighting.

    Returns:
      {task: derivative of the weighted loss by the loss}, scalars.

    Raises:
      UserError: a weighted loss is not a tensor that depends on its loss.
    """
    ones = {dtype: tf.ones([], dtype) for dtype in {loss.dtype for loss in losses.values()}}
    weights = {}
    for task, loss in losses.items():
        value = weighted[task]
        weight = ones[loss.dtype] if value is loss else None
        if weight is None and isinstance(value, tf.Tensor):
            weight = tf.gradients(value, loss)[0]
        where, rule = f"the weighted loss {task!r}", "be a tensor that depends on the loss"
        fix = "Multiply the loss by 0.0 to ignore it."
        checks.require(weight is not None, where, rule, value, fix)
        weights[task] = weight
    return weights
