"""Weights that do not depend on losses: equal, fixed, scheduled, or drawn at every step.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.Fixed()
weighting.Fixed.weights = {"income": 1.0, "never_married": 0.5}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from mtl import checks, types
from mtl.balancing.weighting import base
from mtl.deferred import tf
from mtl.step import draws


@dataclasses.dataclass(frozen=True, kw_only=True)
class Equal(base.Weighting):
    """Every task has the weight 1: `L = sum_t L_t`."""

    reads_losses = False

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Return the losses unchanged: {task: scalar} -> {task: scalar}."""
        del step
        return losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed(base.Weighting):
    """Constant weights: `L = sum_t w_t L_t`.

    The weights are used as given and not normalised, so they also scale the learning rate.

    Attributes:
      weights: {task: weight}, at least 0, for every task. A task of weight 0 still has a loss and
        metrics, but does not train the network.
    """

    reads_losses = False

    weights: Mapping[str, float]

    def __post_init__(self):
        checks.mapping("Fixed.weights", self.weights, "map tasks to weights")
        for task, weight in self.weights.items():
            checks.at_least(f"Fixed.weights[{task!r}]", weight, 0)
        values = dict(self.weights)
        checks.require(any(values.values()), "Fixed.weights", "hold one above 0", values)

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses: {task: scalar} -> {task: scalar}.

        Raises:
          UserError: if the tasks with a weight are not the tasks of the model.
        """
        del step
        base.of_tasks("Fixed.weights", self.weights, losses)
        return {task: self.weights[task] * loss for task, loss in losses.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduled(base.Weighting):
    """Weights that change over the steps: `L = sum_t w_t(step) L_t`.

    Attributes:
      weights: {task: schedule or constant}, for every task. Use schedules of learning rates, such
        as `schedules.Polynomial` from one weight to another.
    """

    reads_losses = False

    weights: Mapping[str, float | types.Schedule]

    def __post_init__(self):
        rule = "map tasks to schedules and numbers"
        checks.mapping("Scheduled.weights", self.weights, rule)
        for task, weight in self.weights.items():
            where = f"Scheduled.weights[{task!r}]"
            if isinstance(weight, int | float):
                checks.at_least(where, weight, 0)
            else:
                checks.require_part(where, weight, "schedules.Polynomial")

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses: {task: scalar} -> {task: scalar}.

        Raises:
          UserError: if the tasks with a weight are not the tasks of the model.
        """
        base.of_tasks("Scheduled.weights", self.weights, losses)
        step = tf.convert_to_tensor(step)
        weights = {
            task: weight(step) if callable(weight) else weight
            for task, weight in self.weights.items()
        }
        return {task: weights[task] * loss for task, loss in losses.items()}


def _normal(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.random.stateless_normal([num_tasks], seed))


def _uniform(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.random.stateless_uniform([num_tasks], seed))


def _one_task(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    chosen = tf.random.stateless_uniform([], seed, maxval=num_tasks, dtype=tf.int32)
    return tf.one_hot(chosen, num_tasks)


_DISTRIBUTIONS: dict[str, Callable[[int, tf.Tensor], tf.Tensor]] = {
    "normal": _normal,
    "uniform": _uniform,
    "one_task": _one_task,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomLossWeighting(base.Weighting):
    """Weights drawn at every step: `L = sum_t w_t L_t`, `w = softmax(z)`, `z_t ~ N(0, 1)`.

    B. Lin, F. Ye, Y. Zhang, I. W. Tsang, "Reasonable Effectiveness of Random Weighting: A Litmus
    Test for Multi-Task Learning", 2021, arXiv:2111.10603. The weights sum to 1, as in the paper, so
    the gradient is on average T times smaller than with `Equal`. A draw depends only on the run's
    seed and the global step, so a restored run repeats its draws.

    Attributes:
      distribution: "normal", the paper's recommendation; "uniform", z_t ~ U(0, 1), whose weights
        vary less; "one_task", the paper's constrained Bernoulli: all weight on a single task, drawn
        with equal chances.
    """

    reads_losses = False

    distribution: str = "normal"

    def __post_init__(self):
        checks.one_of("RandomLossWeighting.distribution", self.distribution, _DISTRIBUTIONS)

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses: {task: scalar} -> {task: scalar}."""
        del step
        seed = draws.make_step_seed("random_loss_weighting")
        weights = _DISTRIBUTIONS[self.distribution](len(losses), seed)
        return base.scale_losses(weights, losses)
