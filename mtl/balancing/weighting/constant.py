"""Weights that do not depend on losses: equal, fixed, scheduled, or random.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.Fixed()
weighting.Fixed.weights = {"income": 1.0, "never_married": 0.5}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated

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


@checks.dataclass
class Fixed(base.Weighting):
    """Constant weights: `L = sum_t w_t L_t`.

    The weights are not normalised, so their sum also scales the gradient.

    Attributes:
      weights: {task: weight}, at least 0, for every task. A task with weight 0 has a loss and
        metrics, but does not train the network.
    """

    reads_losses = False

    weights: Annotated[
        Mapping[str, checks.NotNegative],
        checks.Map("map tasks to weights"),
        checks.Rule("hold a weight above 0", lambda value: any(dict(value).values())),
    ]

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}.

        Raises:
          UserError: the tasks with a weight are not the tasks of the model.
        """
        del step
        base.of_tasks("Fixed.weights", self.weights, losses)
        return {task: self.weights[task] * loss for task, loss in losses.items()}


@checks.dataclass
class Scheduled(base.Weighting):
    """Weights that change over the steps: `L = sum_t w_t(step) L_t`.

    Attributes:
      weights: {task: schedule or constant}, for every task. Schedules of learning rates also work
        here, such as `schedules.Polynomial` from one weight to another.
    """

    reads_losses = False

    weights: Annotated[
        Mapping[
            str,
            Annotated[
                float | types.Schedule, checks.Scheduled(checks.AtLeast(0), "schedules.Polynomial")
            ],
        ],
        checks.Map("map tasks to schedules and numbers"),
    ]

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}.

        Raises:
          UserError: the tasks with a weight are not the tasks of the model.
        """
        base.of_tasks("Scheduled.weights", self.weights, losses)
        step = tf.convert_to_tensor(step)
        weights = {
            task: weight(step) if callable(weight) else weight
            for task, weight in self.weights.items()
        }
        return {task: weights[task] * loss for task, loss in losses.items()}


def _draw_normal(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.random.stateless_normal([num_tasks], seed))


def _draw_uniform(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.random.stateless_uniform([num_tasks], seed))


def _one_task(num_tasks: int, seed: tf.Tensor) -> tf.Tensor:
    index = tf.random.stateless_uniform([], seed, maxval=num_tasks, dtype=tf.int32)
    return tf.one_hot(index, num_tasks)


_DISTRIBUTIONS: dict[str, Callable[[int, tf.Tensor], tf.Tensor]] = {
    "normal": _draw_normal,
    "uniform": _draw_uniform,
    "one_task": _one_task,
}


@checks.dataclass
class RandomLossWeighting(base.Weighting):
    """Random weights at every step: `L = sum_t w_t L_t`, `w = softmax(z)`, `z_t ~ N(0, 1)`.

    B. Lin, F. Ye, Y. Zhang, I. W. Tsang, "Reasonable Effectiveness of Random Weighting: A Litmus
    Test for Multi-Task Learning", 2021, arXiv:2111.10603. The weights sum to 1, as in the paper, so
    the gradient is on average T times smaller than with `Equal`. The random weights depend only on
    the run's seed and the global step, so a restored run repeats them.

    Attributes:
      distribution: the distribution of z: "normal", which the paper recommends, or "uniform", z_t ~
        U(0, 1), for weights that vary less. "one_task" gives all weight to a random task, with
        equal probabilities; this is the paper's constrained Bernoulli.
    """

    reads_losses = False

    distribution: Annotated[str, checks.OneOf(_DISTRIBUTIONS)] = "normal"

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}."""
        del step
        seed = draws.make_step_seed("random_loss_weighting")
        weights = _DISTRIBUTIONS[self.distribution](len(losses), seed)
        return base.scale_losses(weights, losses)
