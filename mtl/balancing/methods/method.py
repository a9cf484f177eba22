"""The base of methods of surgery: a method gets the tasks of a step and returns their weights.

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
    """The tasks of a step that have a gradient; `Combine` leaves out the others.

    Attributes:
      gramian: [T, T] float64, inner products of their gradients; the diagonal is above 0. If a
        method takes `samples` of the batch, these are products of the first with the second
        sample: the matrix is then not symmetric, and its diagonal may have any sign.
      losses: [T] float64.
      seed: [2] int32, of this step and run, for stateless draws.
      state: the state of the method for these tasks.
      names: the names of all tasks of the model.
      places: [T], the indices of these tasks in `names`.
    """

    gramian: tf.Tensor
    losses: tf.Tensor
    seed: tf.Tensor
    state: State = dataclasses.field(default_factory=dict)
    names: Sequence[str] = ()
    places: tf.Tensor | None = None

    @property
    def norms(self) -> tf.Tensor:
        """[T] Euclidean norms of the gradients."""
        return tf.sqrt(tf.linalg.diag_part(self.gramian))

    @property
    def cosines(self) -> tf.Tensor:
        """[T, T] inner products of the unit gradients, independent of their scale."""
        scaled = self.gramian / self.norms[:, tf.newaxis] / self.norms
        # The quotients on the diagonal are 1 only up to rounding.
        return tf.linalg.set_diag(scaled, tf.ones_like(self.norms))

    def named(self, where: str, name: str | None) -> tf.Tensor:
        """Return a mask of the task with this name, [T] bool; None means the model's first task.

        Raises:
          UserError: no task of the model has this name.
        """
        if name is not None:
            checks.one_of(where, name, self.names)
        return tf.equal(
            tf.cast(self.places, tf.int32), 0 if name is None else list(self.names).index(name)
        )


class Method:
    """Decides weights for all coordinates from inner products, losses and a little state.

    Attributes:
      tracking_rate: below 1, running averages replace the gradients; see `tracking`.
      preconditions: True takes inner products after `tracking.precondition_gradients`.
      samples: above 1, the number of parts of the batch, which have no common rows. The gradients
        of the first two parts decide. The third part moves the variables; without a third part,
        the whole batch does.
    """

    preconditions: ClassVar[bool] = False

    @property
    def tracking_rate(self) -> float:
        """The rate of running averages that replace the gradients; 1 keeps the gradients."""
        return 1.0

    @property
    def samples(self) -> int:
        """The number of parts that the batch is cut into; 1 for the whole batch."""
        return 1

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the state before the first decision, {} by default.

        Args:
          num_tasks: the number of all tasks, T.

        Returns:
          {name: float64 [T] or [T, T]}; a decision gets the entries of the tasks that take part.
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
        raise NotImplementedError

    def __call__(self, tasks: Tasks) -> tuple[tf.Tensor, State]:
        """Decide the weights of a step.

        Args:
          tasks: the T tasks that have a gradient in this step.

        Returns:
          The weights, float64 [T], and the new state of these tasks, {name: [T] or [T, T]}.
        """
        return self.weights(tasks), {}


class CoordinateMethod:
    """Decides for every coordinate of the gradient; needs the gradients themselves."""

    def evidence(self, rows: tf.Tensor, at: tf.Tensor | None) -> tf.Tensor | None:
        """Return evidence for a choice from the whole batch: [S, ...], summed over its parts.

        Args:
          rows: gradients [S, ...] of the tasks.
          at: the representation [...] of the gradients, with the batch as its first axis; None for
            gradients by a variable.
        """
        del rows, at
        return None

    def __call__(self, rows: tf.Tensor, evidence: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        """Combine the gradients of the tasks at each coordinate.

        Args:
          rows: the gradients of S tasks by one variable, [S, ...].
          evidence: the evidence for these rows, or None.
          seed: int32 [2], for stateless draws.

        Returns:
          The combined gradient, [...].
        """
        raise NotImplementedError
