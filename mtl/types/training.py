"""Weighting, surgery and update turn the losses of the tasks into new weights."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mtl.deferred import tf
from mtl.types import values


class Weighting(Protocol):
    """Scales the loss of each task; its state lives in `balancing`, and UPDATE_OPS update it.

    If neither the weighting nor the surgery reads losses, the slices of a batch pass through the
    network only once, and losses of the first slice stand in for the whole batch.
    """

    @property
    def reads_losses(self) -> bool:
        """True if the weights depend on the values of the losses."""
        return True

    @abc.abstractmethod
    def __call__(self, losses: values.Tensors, step: tf.Tensor) -> values.Tensors:
        """Weigh the losses of the tasks.

        The derivative of an output by the task's loss is the weight of the task; its derivative by
        the losses of other tasks must be 0.

        Args:
          losses: {task: scalar}, of the whole batch; exactly 0 for a task without a label in it.
          step: the global step, an int64 scalar.

        Returns:
          {task: scalar}, in the same order.
        """


Samples: TypeAlias = Callable[[int], Sequence[values.Tensors]]
"""S -> the losses {task: scalar} of S samples of the rows; each row is in one sample."""


class ForwardPass(Protocol):
    """The forward pass of a slice of the batch on one replica."""

    @property
    def losses(self) -> values.Tensors:
        """{task: scalar}, weighted; their sum over passes is the loss of the batch."""

    @property
    def shared(self) -> Sequence[tf.Tensor]:
        """The outputs that tasks share, `Towers.shared`."""

    @property
    def samples(self) -> Samples | None:
        """A function S -> losses of S samples; sample i holds every S-th row from row i on."""

    @property
    def unweighted(self) -> values.Tensors | None:
        """The losses before the tasks were weighted; None if no weighting was applied."""


class Batch(Protocol):
    """The forward passes that make up the batch of a step; `mtl.step.whole_batch` builds it."""

    @property
    def first(self) -> ForwardPass:
        """The first pass on this replica; the whole batch if it is the only pass."""

    def sum(
        self, function: Callable[[ForwardPass], values.Nested], update: bool = False
    ) -> values.Nested:
        """Sum the results of a function over all passes of all replicas.

        Args:
          function: a `ForwardPass` -> tensors, IndexedSlices and None, in any nesting.
          update: True runs the UPDATE_OPS of the slices; set it in exactly one sum of a step.

        Returns:
          The sums, in the same nesting.
        """


class Surgery(Protocol):
    """Combines the gradients of several losses into one update direction.

    If it does not read losses (see `Weighting`), it returns the unweighted `<task>/loss` of the
    batch as monitors.
    """

    @property
    def reads_losses(self) -> bool:
        """True if the direction depends on the values of the losses."""
        return True

    @property
    def adds_losses(self) -> bool:
        """True if the direction is the gradient of the sum of the losses."""
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
          variables: N trainable variables.
          batch: the forward passes of the batch; None if the losses come from a single pass.

        Returns:
          N gradients, summed over all passes of the batch: sparse for looked-up variables, None for
          variables that no loss depends on. And monitors, {name: scalar}, for people to watch.
        """


class Update(Protocol):
    """Turns gradients into a training step: schedule, clip, apply, after UPDATE_OPS."""

    @property
    def average(self) -> object | None:
        """The part that averages the weights for evaluation and export; None for no averages.

        The average lies beside each variable, as `mtl.variables.averaging` saves it.
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
          gradients: N gradients; None for variables that do not move.
          variables: N variables.
          losses: {task: scalar}, which an update may check for NaN and infinity.

        Returns:
          The op that moves the variables and counts the step, and {name: scalar} to watch.
        """


class Clipping(Protocol):
    """Bounds the gradient between balancing and the optimizer."""

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[values.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[values.Connected]:
        """Bound gradients.

        Args:
          gradients: N gradients; sparse ones have each row once.
          variables: N variables.
          norm: the global norm of all gradients, a scalar.

        Returns:
          N gradients.
        """


class Optimizer(Protocol):
    """Makes the optimizer that moves variables by their gradients."""

    @property
    @abc.abstractmethod
    def learning_rate(self) -> float | Schedule:
        """A number above 0, or a schedule over the steps."""

    @abc.abstractmethod
    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer of the graph, with the learning rate of this step, a scalar."""


class Schedule(Protocol):
    """A value that changes over the steps."""

    @abc.abstractmethod
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the value at a step, int64 scalar -> float32 scalar."""
