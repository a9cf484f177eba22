"""Handles training steps in which a loss or a gradient is NaN or infinite.

update.Update.if_not_finite = "fail"      # the default: ends the run, with the names in an error
update.Update.if_not_finite = "skip"      # changes no variable in the step, and counts the steps
update.Update.if_not_finite = "zero"      # sets entries that are not finite to 0, and counts them
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from mtl import types
from mtl.deferred import tf
from mtl.layers import precision
from mtl.step import extensions, step_state
from mtl.step import gradients as gradients_lib
from mtl.variables import stacks

# The message of the assertion has the step between these two texts, where `find_step` reads it.
_BEFORE, _AFTER = "Losses and gradients must be finite, got NaN or infinity at step ", " in "

POLICIES = ("fail", "skip", "zero")

# The largest number of names in an error. A NaN spreads, so the first names in the order of the
# graph are nearest to its origin.
_LISTED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarded:
    """The checked gradients of a step, and whether the step changes the variables.

    Attributes:
      gradients: N gradients; under the policy "zero", entries that are not finite are set to 0.
      squares: the squared norms of the gradients, float64 [N].
      moves: True if the step changes the variables: a bool scalar of the graph, or Python's True.
      before: ops that must run before any variable changes.
      monitors: {name: scalar to monitor}.
    """

    gradients: Sequence[types.Gradient]
    squares: tf.Tensor
    moves: tf.Tensor | bool
    before: Sequence[tf.Operation]
    monitors: dict[str, tf.Tensor]


def guard_update(
    policy: str,
    losses: types.Tensors,
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    step: tf.Tensor,
) -> Guarded:
    """Check that losses and gradients of a step are finite; apply the policy and the loss scale.

    Args:
      policy: one of `POLICIES`.
      losses: {task: scalar}.
      gradients: N gradients, in which each row of a table occurs at most once.
      variables: the N variables of the gradients.
      step: the global step, for the error message.

    Returns:
      The gradients to apply, and whether the step may change variables. `monitors` has `loss_scale`
      in float16, `zeroed_entries` under the policy "zero", and `skipped_steps` under the policy
      "skip" or in float16.

    Raises:
      InvalidArgumentError: when the ops `before` run, if a loss or gradient is not finite and the
        policy is "fail".
    """
    squares = gradients_lib.squared_norms(gradients)
    checked = Checked(losses, squares, variables, gradients)
    squares, moves, monitors = checked.squares, True, {}
    scale, overflows = precision.current_loss_scale(), False
    if scale:
        monitors["loss_scale"] = scale.value
        # With a loss scale, gradients sometimes overflow. Steps with an overflow are skipped under
        # every policy.
        overflows = scale.overflows(checked.losses_are_finite, checked.is_finite)
        moves = ~overflows
    before = extensions.check_update(losses, gradients, step, overflows)
    if policy == "fail":
        # If an extension also rejects the step, its error must come first, because it says more.
        with tf.control_dependencies(before):
            before.append(checked.assertion(step, overflows))
    elif policy == "skip":
        # After an overflow of the loss scale, gradients are not finite, so `checked.is_finite` is
        # False, too.
        moves = checked.is_finite
    else:
        gradients, number = zero_gradients(gradients)
        # The squared norms are computed again, because some entries of the gradients are now 0.
        squares = gradients_lib.squared_norms(gradients)
        # If the loss scale skips the step, its entries do not count as zeroed.
        number = number if moves is True else tf.where(moves, number, 0)
        monitors["zeroed_entries"] = _count_total("zeroed_entries", number)
    if moves is not True:
        monitors["skipped_steps"] = _count_total("skipped_steps", tf.cast(~moves, tf.int64))
    return Guarded(
        gradients=gradients, squares=squares, moves=moves, before=before, monitors=monitors
    )


@dataclasses.dataclass(frozen=True)
class Checked:
    """Checks whether the losses and gradients of a step are finite.

    Attributes:
      losses: {task: scalar}.
      squares: the squared norms of the gradients, float64 [N]; finite if all entries are finite.
      variables: the N variables of the gradients.
      gradients: the N gradients; if one variable stacks the variables of several tasks, its
        gradient shows which tasks an error must name.
    """

    losses: types.Tensors
    squares: tf.Tensor
    variables: Sequence[tf.Variable]
    gradients: Sequence[types.Gradient] = ()

    @functools.cached_property
    def _values(self) -> tf.Tensor:
        losses = list(self.losses.values())
        # If all losses have the same type, a single op casts them.
        has_one_type = len({loss.dtype for loss in losses}) == 1
        batches = [losses] if has_one_type else [[loss] for loss in losses]
        values = [tf.cast(tf.stack(batch), tf.float64) for batch in batches]
        return tf.concat([*values, self.squares], 0)

    @property
    def losses_are_finite(self) -> tf.Tensor:
        """True if the losses of all tasks are finite, a bool scalar."""
        return tf.reduce_all(tf.math.is_finite(self._values[: len(self.losses)]))

    @functools.cached_property
    def is_finite(self) -> tf.Tensor:
        """True if all losses and gradients are finite, a bool scalar."""
        # Squares of finite float32 numbers do not overflow in float64, so one sum checks all
        # values.
        return tf.math.is_finite(tf.reduce_sum(self._values))

    def _are_finite(self) -> tf.Tensor:
        """Return a flag for each loss and each variable (or member of a stack), True if finite."""
        values = tf.math.is_finite(self._values)
        stack_of = list(map(stacks.find_stack, self.variables))
        if not any(stack_of):
            return values
        losses, *parts = tf.split(values, [len(self.losses), *[1] * len(stack_of)])
        for index, stack in enumerate(stack_of):
            if stack is not None:
                finite = tf.math.is_finite(self.gradients[index])
                # Each task of the stack has a flag, because the error names single tasks.
                others = [axis for axis in range(finite.shape.rank) if axis != stack.axis]
                parts[index] = tf.reduce_all(finite, others)
        return tf.concat([losses, *parts], 0)

    def assertion(self, step: tf.Tensor, unless: tf.Tensor | bool = False) -> tf.Operation:
        """Build an op that fails if a loss or gradient is not finite.

        A step without a failure computes only one sum: the names for the message of the error are
        collected in a branch of `tf.cond`.

        Args:
          step: the global step, an integer scalar.
          unless: a bool scalar; if it is True, the op does not fail.

        Returns:
          The op.

        Raises:
          InvalidArgumentError: when the op runs; the message has the step and the names of the
            first losses or gradients that are not finite.
        """
        names = [f"loss of {task}" for task in self.losses]
        members = [name for v in self.variables for name in stacks.name_members(v)]
        names += [f"gradient of {name}" for name in members]

        # The global step for the error message is read outside of `tf.cond`. If a branch of
        # `tf.cond` read the global step, every training step would wait until a parameter server
        # has sent it.
        step = tf.as_string(step)

        def fail() -> tf.Operation:
            bad = tf.boolean_mask(tf.constant(names), ~self._are_finite())
            return fail_at(step, bad, "them")

        return tf.cond(self.is_finite | unless, tf.no_op, fail)


def fail_at(step: tf.Tensor, bad: tf.Tensor, noun: str) -> tf.Operation:
    """Build an op that fails, with the global step and the names of bad tensors in its message.

    Args:
      step: the global step as text, a string scalar.
      bad: the names of tensors that are not finite, string [N].
      noun: the word for the checked tensors in the message, such as "them".

    Returns:
      The op, which fails with an InvalidArgumentError.
    """
    message = [
        _BEFORE,
        step,
        _AFTER,
        tf.as_string(tf.size(bad)),
        f" of {noun}: ",
        tf.strings.reduce_join(bad[:_LISTED], separator=", "),
        ". Lower the learning rate, clip the gradient, or look for such values in the data.",
    ]
    return tf.debugging.Assert(False, [tf.strings.join(message)])


def find_step(message: str) -> int | None:
    """Read the global step from the message of an error.

    Args:
      message: the text of the error.

    Returns:
      The step at which an op of `fail_at` failed; None for other errors.
    """
    match = re.search(rf"{_BEFORE}(\d+){_AFTER}", message)
    return int(match.group(1)) if match else None


def zero_gradients(gradients: Sequence[types.Gradient]) -> tuple[list[types.Gradient], tf.Tensor]:
    """Set entries that are NaN or infinite to 0, and count them.

    Returns:
      The N gradients, dense or sparse as before, and the number of entries that were set to 0, an
      int64 scalar.
    """
    counts = []

    def zero(values: tf.Tensor) -> tf.Tensor:
        is_finite = tf.math.is_finite(values)
        counts.append(tf.math.count_nonzero(~is_finite, dtype=tf.int64))
        return tf.where(is_finite, values, tf.zeros_like(values))

    gradients = [gradients_lib.transform_gradient(gradient, zero) for gradient in gradients]
    return gradients, tf.add_n(counts)


def _count_total(name: str, number: tf.Tensor) -> tf.Tensor:
    """Sum an int64 scalar over all steps, in a variable of the open variable scope."""
    total = step_state.create_variable(name, np.zeros([], np.int64))
    new = total.read_value() + number
    step_state.assign_with_update(total, new)
    return new
