"""Protocols of the parts that turn losses into an update, such as weighting and optimizer."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from mtl.deferred import tf
from mtl.types import values


def _forget_claims(part: type, defaults: Mapping[str, bool]) -> None:
    """Set claims about `__call__` to their defaults if another class defines `__call__`.

    A class that derives from a weighting whose `reads_losses` is False may read losses: its
    `__call__` may be its own, or come from a mixin.
    """
    for name, value in defaults.items():
        members = next(vars(cls) for cls in part.__mro__ if {"__call__", name} & vars(cls).keys())
        if name not in members:
            setattr(part, name, value)


class Weighting(Protocol):
    """Scales the loss of each task; variables for state are in the scope `balancing`.

    If neither the weighting nor the surgery reads losses, each slice of a batch passes through the
    network only once, and the argument `losses` has the losses of the first slice, not of the whole
    batch.
    """

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        _forget_claims(cls, {"reads_losses": True})

    @property
    def reads_losses(self) -> bool:
        """True if the weights of the tasks depend on the values of the losses."""
        return True

    @abc.abstractmethod
    def __call__(self, losses: values.Tensors, step: tf.Tensor) -> values.Tensors:
        """Weigh the losses of the tasks.

        The weight of a task is the derivative of its scaled loss with respect to its loss. The
        derivative of a scaled loss with respect to the loss of any other task must be 0.

        Args:
          losses: {task: scalar}, of the whole batch; exactly 0 for a task without labels in the
            batch.
          step: the global step, an int64 scalar.

        Returns:
          {task: scalar}, the scaled losses in the order of `losses`.
        """


Samples: TypeAlias = Callable[[int], Sequence[values.Tensors]]
"""A function that splits rows into S samples: S -> {task: scalar loss} for each sample."""


class ForwardPass(Protocol):
    """The forward pass of a slice of the batch on one replica."""

    @property
    def losses(self) -> values.Tensors:
        """{task: scalar}, the weighted losses of this pass; passes add up to the batch's losses."""

    @property
    def shared(self) -> Sequence[tf.Tensor]:
        """The outputs of the layers that tasks share; see `Towers.shared`."""

    @property
    def samples(self) -> Samples | None:
        """A function that splits rows into S samples; sample i holds every S-th row from row i."""

    @property
    def unweighted(self) -> values.Tensors | None:
        """The losses before the weighting of tasks; None without a weighting."""


class Batch(Protocol):
    """The forward passes of all slices of a step's batch; see `mtl.step.whole_batch`."""

    @property
    def first(self) -> ForwardPass:
        """The first forward pass on this replica; the only pass if nothing divides the batch."""

    def sum(
        self, function: Callable[[ForwardPass], values.Nested], update: bool = False
    ) -> values.Nested:
        """Sum the results of a function over all passes of all replicas.

        Args:
          function: maps a `ForwardPass` to tensors, IndexedSlices and None, in any nesting.
          update: True runs the UPDATE_OPS of the slices; exactly one call in a step must pass True.

        Returns:
          The sums, nested like the results of `function`.
        """


class Surgery(Protocol):
    """Combines the gradients of several losses into one update direction.

    A surgery that does not read losses (see `Weighting`) returns the unweighted `<task>/loss` of
    the whole batch as monitors.
    """

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        _forget_claims(cls, {"reads_losses": True, "adds_losses": False})

    @property
    def reads_losses(self) -> bool:
        """True if the update direction depends on the values of the losses."""
        return True

    @property
    def adds_losses(self) -> bool:
        """True if the update direction is the gradient of the sum of the losses."""
        return False

    @abc.abstractmethod
    def __call__(
        self,
        losses: values.Tensors,
        variables: Sequence[tf.Variable],
        batch: Batch | None = None,
    ) -> tuple[list[values.Gradient], dict[str, tf.Tensor]]:
        """Combine the gradients of the tasks.

        Args:
          losses: {task: scalar}, weighted, of the whole batch.
          variables: the N trainable variables of the gradients.
          batch: the forward passes of the batch; None if the losses come from a single pass.

        Returns:
          N gradients, summed over all passes of the batch: sparse for looked-up variables, None for
          variables that no loss depends on. The second entry of the returned pair has scalars to
          monitor in TensorBoard, {name: scalar}.
        """


class Update(Protocol):
    """Clips gradients and applies them to the variables, after UPDATE_OPS."""

    @property
    def average(self) -> object | None:
        """The part that averages the weights for evaluation and export; None without averages.

        `mtl.variables.averaging` saves the average of each variable beside the variable.
        """
        return None

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
        variables: Sequence[tf.Variable],
        losses: values.Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build the update of a training step.

        Args:
          gradients: N gradients; None for variables that do not change.
          variables: the N variables of the gradients.
          losses: {task: scalar}, which an update may check for NaN and infinity.

        Returns:
          The op that updates the variables and increments the global step, and {name: scalar} for
          TensorBoard.
        """


class Clipping(Protocol):
    """Clips the balanced gradients before the optimizer applies them."""

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[values.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[values.Connected]:
        """Clip gradients.

        Args:
          gradients: N gradients; a sparse gradient holds each row once.
          variables: the N variables of the gradients.
          norm: the global norm of all gradients, a scalar.

        Returns:
          The N clipped gradients.
        """


class Optimizer(Protocol):
    """Builds the TensorFlow optimizer that applies gradients to variables."""

    @property
    @abc.abstractmethod
    def learning_rate(self) -> float | Schedule:
        """The learning rate: a number above 0, or a schedule."""

    @abc.abstractmethod
    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return an optimizer with the learning rate of the current step, a scalar tensor."""


class Schedule(Protocol):
    """A value, such as a learning rate, that depends on the global step."""

    @abc.abstractmethod
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the value at a step, int64 scalar -> float32 scalar."""
