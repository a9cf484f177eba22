"""Handles a step with a loss or gradient that is NaN or infinite.

update.Update.if_not_finite = "fail"      # the default: stops the run with the names
update.Update.if_not_finite = "skip"      # changes no variable, and counts such steps
update.Update.if_not_finite = "zero"      # sets such entries of gradients to 0, and counts them
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

# Parts of the assertion's message; `find_step` reads the step between them.
_BEFORE, _AFTER = "Losses and gradients must be finite, got NaN or infinity at step ", " in "

POLICIES = ("fail", "skip", "zero")

# The number of names in an error. A NaN spreads, so the first names in graph order are its origin.
_LISTED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarded:
    """The gradients of a step, and the decision whether it changes the variables.

    Attributes:
      gradients: N, with bad entries set to 0 under the policy "zero".
      squares: [N], their squared norms, float64.
      moves: True if the step changes variables: a bool scalar of the graph, or Python's True.
      before: ops that have to run before any variable changes.
      monitors: scalars to watch.
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
    """Check {task: loss} and N gradients of a step; apply the policy and the loss scale.

    Args:
      policy: one of `POLICIES`.
      losses: {task: scalar}.
      gradients: N, with each row of a table at most once.
      variables: N.
      step: the global step, for errors.

    Raises:
      InvalidArgumentError: when `before` runs, under the policy "fail".
    """
    squares = gradients_lib.squared_norms(gradients)
    checked = Checked(losses, squares, variables, gradients)
    squares, moves, monitors = checked.squares, True, {}
    scale, overflows = precision.current_loss_scale(), False
    if scale:
        monitors["loss_scale"] = scale.value
        # Overflows are expected: the loss scale skips their steps under every policy.
        overflows = scale.overflows(checked.losses_are_finite, checked.is_finite)
        moves = ~overflows
    before = extensions.check_update(losses, gradients, step, overflows)
    if policy == "fail":
        with tf.control_dependencies(
            before
        ):  # If both refuse a step, the error of the extension says more.
            before.append(checked.assertion(step, overflows))
    elif policy == "skip":
        # Gradients are not finite after an overflow, so this skips the step, too.
        moves = checked.is_finite
    else:
        gradients, number = zero_gradients(gradients)
        # The earlier squares contain the entries that are 0 now.
        squares = gradients_lib.squared_norms(gradients)
        # The loss scale may skip the step: then its entries do not count as zeroed.
        number = number if moves is True else tf.where(moves, number, 0)
        monitors["zeroed_entries"] = _count_total("zeroed_entries", number)
    if moves is not True:
        monitors["skipped_steps"] = _count_total("skipped_steps", tf.cast(~moves, tf.int64))
    return Guarded(
        gradients=gradients, squares=squares, moves=moves, before=before, monitors=monitors
    )


@dataclasses.dataclass(frozen=True)
class Checked:
    """Checks whether the losses and gradients of a step are finite, by a sum and N scalars.

    Attributes:
      losses: {task: scalar}.
      squares: [N], the squared norms of the gradients; finite if all entries are finite.
      variables: N, the variables of the gradients.
      gradients: N, to check each member of a stack of tasks.
    """

    losses: types.Tensors
    squares: tf.Tensor
    variables: Sequence[tf.Variable]
    gradients: Sequence[types.Gradient] = ()

    @functools.cached_property
    def _values(self) -> tf.Tensor:
        losses = list(self.losses.values())
        # A single op casts all losses if they have the same type.
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
        # Squares of finite float32 do not overflow in float64, so one sum checks all of them.
        return tf.math.is_finite(tf.reduce_sum(self._values))

    def _are_finite(self) -> tf.Tensor:
        """Return which losses, and which variables or members of stacks, are finite, bool [N]."""
        values = tf.math.is_finite(self._values)
        stack_of = list(map(stacks.find_stack, self.variables))
        if not any(stack_of):
            return values
        losses, *parts = tf.split(values, [len(self.losses), *[1] * len(stack_of)])
        for index, stack in enumerate(stack_of):
            if stack is not None:
                finite = tf.math.is_finite(self.gradients[index])
                # One flag for each task of the stack, because its members have separate names.
                others = [axis for axis in range(finite.shape.rank) if axis != stack.axis]
                parts[index] = tf.reduce_all(finite, others)
        return tf.concat([losses, *parts], 0)

    def assertion(self, step: tf.Tensor, unless: tf.Tensor | bool = False) -> tf.Operation:
        """Return an op that fails if a loss or gradient is not finite, except if `unless` is True.

        A finite step costs one sum, because only the branch of a bad step collects names.

        Raises:
          InvalidArgumentError: when run; its message has the step and the first names.
        """
        names = [f"loss of {task}" for task in self.losses]
        members = [name for v in self.variables for name in stacks.name_members(v)]
        names += [f"gradient of {name}" for name in members]

        # Inside the branch, every step would wait for a parameter server to send it.
        step = tf.as_string(step)

        def fail() -> tf.Operation:
            bad = tf.boolean_mask(tf.constant(names), ~self._are_finite())
            return fail_at(step, bad, "them")

        return tf.cond(self.is_finite | unless, tf.no_op, fail)


def fail_at(step: tf.Tensor, bad: tf.Tensor, noun: str) -> tf.Operation:
    """Return an op that fails, with the step, a string scalar, and the first bad names.

    Args:
      step: the global step as text, a string scalar.
      bad: the names of the tensors that are not finite, string [N].
      noun: the word for the checked tensors in the message, such as "them".
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
    """Return the step in the message of a failed `Checked.assertion`; None for other messages."""
    match = re.search(rf"{_BEFORE}(\d+){_AFTER}", message)
    return int(match.group(1)) if match else None


def zero_gradients(gradients: Sequence[types.Gradient]) -> tuple[list[types.Gradient], tf.Tensor]:
    """Set bad entries of N gradients to 0; return the gradients and the number of such entries.

    Returns:
      N gradients of the same kinds, and an int64 scalar.
    """
    counts = []

    def zero(values: tf.Tensor) -> tf.Tensor:
        is_finite = tf.math.is_finite(values)
        counts.append(tf.math.count_nonzero(~is_finite, dtype=tf.int64))
        return tf.where(is_finite, values, tf.zeros_like(values))

    gradients = [gradients_lib.transform_gradient(gradient, zero) for gradient in gradients]
    return gradients, tf.add_n(counts)


def _count_total(name: str, number: tf.Tensor) -> tf.Tensor:
    """Sum an int64 scalar over all steps, in a variable of the scope."""
    total = step_state.create_variable(name, np.zeros([], np.int64))
    new = total.read_value() + number
    step_state.assign_with_update(total, new)
    return new
