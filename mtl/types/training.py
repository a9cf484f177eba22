"""From the losses of the tasks to new weights: weighting, surgery, update."""

import abc
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from mtl.types import values


class Weighting(Protocol):
    """Losses decide: scales each task's loss; state lives in `balancing`, updated by UPDATE_OPS.

    Where neither it nor the surgery reads losses, a batch in slices passes through the network
    once: losses of the first slice stand in for the batch's.
    """

    @property
    def reads_losses(self) -> bool:
        """Whether the values of the losses decide."""
        return True

    @abc.abstractmethod
    def __call__(self, losses: values.Tensors, step: tf.Tensor) -> values.Tensors:
        """Weigh the losses, {task: scalar} -> {task: scalar}.

        The derivative of each by its own loss is the weight of the task; no gradient goes from one
        task's value to another's loss. A loss of 0 may be that of a batch without a label.
        """


Samples: TypeAlias = Callable[[int], Sequence[values.Tensors]]
"""S -> the losses {task: scalar} of S samples of the rows, which have no row in common."""


class ForwardPass(Protocol):
    """What went through the network at once: a slice of the batch on one replica."""

    @property
    def losses(self) -> values.Tensors:
        """{task: scalar}, weighted; they add up over passes to those of the batch."""

    @property
    def shared(self) -> Sequence[tf.Tensor]:
        """`Towers.shared`, the outputs that tasks share."""

    @property
    def samples(self) -> Samples | None:
        """S -> the losses of every S-th row, from the first to the S-th on."""

    @property
    def unweighted(self) -> values.Tensors | None:
        """The losses before the tasks were weighted; None if they were not."""


class Batch(Protocol):
    """The forward passes that make up the batch of a step; `mtl.step.whole_batch` builds it."""

    @property
    def first(self) -> ForwardPass:
        """The first pass on this replica; the whole batch where there is no other."""

    def sum(
        self, function: Callable[[ForwardPass], values.Nested], update: bool = False
    ) -> values.Nested:
        """Return the sum of what `function` gives for each `ForwardPass`, of all replicas.

        `function` returns tensors, IndexedSlices and None, in any nesting. In exactly one pass of a
        step, `update` has the UPDATE_OPS of the slices run.
        """


class Surgery(Protocol):
    """Gradients decide: one update direction from several losses.

    One that does not read losses (see `Weighting`) returns `<task>/loss` of the batch, unweighted.
    """

    @property
    def reads_losses(self) -> bool:
        """Whether the values of the losses decide."""
        return True

    @abc.abstractmethod
    def __call__(
        self,
        losses: values.Tensors,
        variables: Sequence[tf.Variable],
        batch: Batch | None = None,
    ) -> tuple[list[values.Gradient], dict[str, tf.Tensor]]:
        """Combine gradients: {task: scalar}, N variables, batch -> N gradients, monitors.

        A gradient is sparse where a variable was looked up. Gradients are those of the whole batch,
        the sum over its passes; the monitors are scalars for people to watch.
        """


class Update(Protocol):
    """From gradients to a training step: schedule, clip, apply, after UPDATE_OPS."""

    @property
    def average(self) -> object | None:
        """What keeps an average of the weights, which evaluation and export use; None if nothing.

        Such an average lies beside each variable, as `mtl.variables.averaging` saves it.
        """
        return None

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
        variables: Sequence[tf.Variable],
        losses: values.Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build a step: N gradients, N variables, {task: loss} -> its op, scalars to watch."""


class Clipping(Protocol):
    """Bounds the gradient between balancing and the optimizer."""

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[values.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[values.Connected]:
        """Bound N gradients (rows merged) of N variables with this global norm -> N gradients."""


class Optimizer(Protocol):
    """How a gradient moves a variable."""

    @property
    @abc.abstractmethod
    def learning_rate(self) -> "float | Schedule":
        """A number above 0, or how it changes over the steps."""

    @abc.abstractmethod
    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer of the graph, at the learning rate of this step, a scalar."""


class Schedule(Protocol):
    """A value that changes over the steps."""

    @abc.abstractmethod
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the value at a step, int64 scalar -> float32 scalar."""
