"""The base classes of methods of surgery, which decide the weights of the tasks' gradients.

class Loudest(method.Method):
    def weights(self, tasks):
        return tf.one_hot(tf.argmax(tasks.norms), tf.size(tasks.norms), dtype=tf.float64)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from mtl import checks
from mtl.deferred import tf

State = Mapping[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The tasks that have a gradient in a step, and the values from which a method weighs them.

    Attributes:
      gramian: [T, T] float64, inner products of the tasks' gradients; the diagonal is above 0. If
        `Method.samples` is above 1, the entry (s, t) is the inner product of the gradient of task s
        on the first sample of the batch with the gradient of task t on the second sample. A Gramian
        between two samples is not symmetric, and its diagonal may have any sign.
      losses: [T] float64, the weighted losses of the tasks.
      seed: [2] int32, a seed for stateless random ops, which depends on the run and the step.
      state: the state of the method, {name: [T] or [T, T]}.
      names: the names of all tasks of the model, also of tasks without a gradient.
      places: [T], the indices of the T tasks in `names`.
    """

    gramian: tf.Tensor
    losses: tf.Tensor
    seed: tf.Tensor
    state: State = dataclasses.field(default_factory=dict)
    names: Sequence[str] = ()
    places: tf.Tensor | None = None

    @property
    def norms(self) -> tf.Tensor:
        """The Euclidean norms of the gradients, [T]."""
        return tf.sqrt(tf.linalg.diag_part(self.gramian))

    @property
    def cosines(self) -> tf.Tensor:
        """The cosines between the gradients, [T, T]."""
        scaled = self.gramian / self.norms[:, tf.newaxis] / self.norms
        # Rounding errors on the diagonal are removed.
        return tf.linalg.set_diag(scaled, tf.ones_like(self.norms))

    def named(self, where: str, name: str | None) -> tf.Tensor:
        """Return a mask [T], True for the task called `name`; None means the model's first task.

        Raises:
          UserError: no task of the model has this name.
        """
        if name is not None:
            checks.one_of(where, name, self.names)
        return tf.equal(
            tf.cast(self.places, tf.int32), 0 if name is None else list(self.names).index(name)
        )


class Method:
    """Decides a weight for each task's gradient, from inner products, losses and state.

    Attributes:
      tracking_rate: if below 1, running averages with this rate replace the gradients; see
        `tracking`.
      preconditions: True if the method needs inner products of gradients that
        `tracking.precondition_gradients` has divided.
      samples: if above 1, the number of samples into which the rows of a batch are divided. The
        method decides the weights from gradients on the first two samples. The weights then
        multiply gradients on the third sample or, with two samples, on the whole batch.
    """

    preconditions: ClassVar[bool] = False

    @property
    def tracking_rate(self) -> float:
        """The rate of running averages that replace the gradients; 1 for no averages."""
        return 1.0

    @property
    def samples(self) -> int:
        """The number of samples into which a batch is divided; 1 for no division."""
        return 1

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the initial state, which is {} by default.

        Args:
          num_tasks: the number of all tasks, T.

        Returns:
          {name: float64 [T] or [T, T]}; in a step, the method gets only the entries of the tasks in
          the batch.
        """
        del num_tasks
        return {}

    def weights(self, tasks: Tasks) -> tf.Tensor:
        """Return the weights of the tasks: the update is `sum_t weights[t] gradient[t]`.

        Args:
          tasks: the T tasks that have a gradient in this step; T is at least 1.

        Returns:
          float64 [T].
        """
        raise checks.UserError(f"{type(self).__name__} must define the method weights(tasks).")

    def __call__(self, tasks: Tasks) -> tuple[tf.Tensor, State]:
        """Decide the weights of the tasks' gradients in a step.

        Args:
          tasks: the T tasks that have a gradient in this step.

        Returns:
          The weights, float64 [T], and the new state of the T tasks, {name: [T] or [T, T]}.
        """
        return self.weights(tasks), {}


class CoordinateMethod:
    """Combines the gradients of the tasks separately at every coordinate."""

    def evidence(self, rows: tf.Tensor, at: tf.Tensor | None) -> tf.Tensor | None:
        """Return values [S, ...] of a part of the batch; `__call__` gets their sum as `evidence`.

        Args:
          rows: the gradients of S tasks on one part of the batch, [S, ...].
          at: the representation [B, ...] by which the gradients are taken; None for gradients by a
            variable.
        """
        del rows, at
        return None

    def __call__(self, rows: tf.Tensor, evidence: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        """Combine the gradients of the tasks at each coordinate.

        Args:
          rows: the gradients of S tasks by one variable or representation, [S, ...].
          evidence: the sum, over the parts of the batch, of the values that `evidence` returns, or
            None.
          seed: the seed of stateless random ops, int32 [2].

        Returns:
          The combined gradient, [...].
        """
        raise NotImplementedError
