"""Criteria, which score the importance of weights; the weights with the least scores are pruned.

from mtl.sparsity import criteria
pruning.Pruning.criterion = @criteria.Taylor()
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.step import draws


class Seen(NamedTuple):
    """The values of a variable from which a criterion computes scores.

    Attributes:
      name: the name of the variable.
      weights: the weights before the update of the step.
      gradient: the gradient of the batch's loss, in the shape of the weights; None for an embedding
        table.
      total: the sum or average over the steps that `Criterion.gather` computes; None if `gathers`
        is False.
      inputs: the mean squares of the layer's inputs, [D]; None if `reads_inputs` is False.
      task_gradients: {task: gradient of its loss}, with None for a task whose loss does not depend
        on the variable; empty if `reads_tasks` is False.
      is_moving: a bool for each weight, True if training changes the weight; None if training
        changes all weights.
    """

    name: str
    weights: tf.Tensor
    gradient: Any
    total: Any
    inputs: Any = None
    task_gradients: Mapping[str, Any] = {}
    is_moving: Any = None


def sum_squares(inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum the squares of a layer's inputs over all rows.

    Args:
      inputs: [..., D].

    Returns:
      The sums, float32 [D], and the number of rows, a float32 scalar.
    """
    flat = tf.reshape(tf.cast(inputs, tf.float32), [-1, inputs.shape[-1]])
    return tf.reduce_sum(tf.square(flat), 0), tf.cast(tf.shape(flat)[0], tf.float32)


def average_squares(inputs: tf.Tensor) -> tf.Tensor:
    """Compute the mean squares of a layer's inputs over all rows.

    Args:
      inputs: [..., D].

    Returns:
      float32 [D].
    """
    total, count = sum_squares(inputs)
    return total / count


class Criterion(abc.ABC):
    """The base class of criteria, which give every weight a score."""

    reads_gradients: bool = False
    """True if the criterion needs the gradient of the loss by the weights."""
    reads_tasks: bool = False
    """True if the criterion needs the gradient of each task's loss, as `TaskSaliency` does."""
    reads_inputs: bool = False
    """True if the criterion needs the mean squares of a layer's inputs."""
    gathers: bool = False
    """True if the criterion sums or averages values over the steps, by `gather`."""
    is_of_finished_runs: bool = False
    """True if only `launch.prune` can compute the criterion, after a training."""

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the sums or averages, `Seen.total`, of a variable.

        Args:
          shape: the shape of the variable. By default, `Seen.total` has the shape of the variable.
        """
        return list(shape)

    @abc.abstractmethod
    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight.

        Args:
          seen: the weights, gradients and other values of a variable.

        Returns:
          Scores in the shape of the weights. If a score is not finite, the step prunes no weights.
        """

    def gather(self, seen: Seen) -> tf.Tensor:
        """Compute the next sum or average, `seen.total`; called only if `gathers` is True.

        Args:
          seen: the weights, gradients and other values of a variable.

        Returns:
          The next sum or average, with the shape that `total_shape` returns.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude(Criterion):
    """`|w|`: a cheap criterion, as good as others in most comparisons with gradual pruning.

    S. Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015,
    arXiv:1506.02626.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return tf.abs(seen.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snip(Criterion):
    """`|w dL/dw|` on one batch: the change of the loss without the weight, to first order.

    N. Lee et al., "SNIP: Single-shot Network Pruning based on Connection Sensitivity", 2019,
    arXiv:1810.02340. For the method of the SNIP paper, set the schedule to `OneShot` at step 0, and
    the density to `Global`. The paper divides scores by their sum, which does not change their
    order.
    """

    reads_gradients = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return tf.abs(seen.weights * seen.gradient)


@checks.dataclass
class Averaged(Criterion):
    """The base class of criteria that average values over the steps or, in `launch.prune`, batches.

    Attributes:
      momentum: the decay of the running average, in [0, 1).
    """

    momentum: checks.Rate = 0.9
    gathers = True

    @abc.abstractmethod
    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Compute the value of one batch that enters the running average.

        Args:
          seen: the weights, gradients and other values of a variable.

        Returns:
          The values, with the shape that `total_shape` returns; None if `seen` has no values of a
          batch.
        """

    def gather(self, seen: Seen) -> tf.Tensor:
        """Compute the next value of the running average, `seen.total`."""
        new = self.observe(seen)
        if new is None:
            return seen.total
        # The average starts at 0, so in early steps, all averages are too small by a common factor.
        # A common factor does not change the order of the scores.
        return self.momentum * seen.total + (1 - self.momentum) * new


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taylor(Averaged):
    """`(w dL/dw)^2`, averaged over the steps.

    P. Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, arXiv:1906.10771,
    equation 8, with its momentum. The state has a number for each weight, which changes until the
    last step of the pruning.

    Attributes:
      momentum: the decay of the running average, in [0, 1).
    """

    reads_gradients = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return self.gather(seen)

    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Compute the values of one batch that enter the average, in the shape of the weights."""
        return None if seen.gradient is None else tf.square(seen.weights * seen.gradient)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement(Criterion):
    """`-sum_t w_t dL/dw_t` over the steps t: high for weights that move away from 0.

    V. Sanh et al., "Movement Pruning: Adaptive Sparsity by Fine-Tuning", 2020, arXiv:2005.07683,
    for networks that start from another run. The formula has no learning rate, because a common
    factor does not change the order of the scores. In the paper, a pruned weight keeps its value
    behind the mask, and its score still changes. Here, a pruned weight keeps its value only with
    `Pruning.gradient = "straight_through"`, which also trains the pruned weight. With other values
    of `Pruning.gradient`, a pruned weight is 0, and its score does not change.
    """

    reads_gradients = True
    gathers = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return self.gather(seen)

    def gather(self, seen: Seen) -> tf.Tensor:
        """Compute the next value of the sum, `seen.total`, in the shape of the weights."""
        return seen.total - seen.weights * seen.gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanda(Averaged):
    """`|w| sqrt(mean x^2)`, with x the input of the weight w: the weight's share of its unit's sum.

    M. Sun et al., "A Simple and Effective Pruning Approach for Large Language Models", 2024,
    arXiv:2306.11695, which compares only weights of the same unit; set `Uniform.per_unit` to do the
    same. The criterion works only for kernels of `layers.dense` and `layers.conv`.

    Attributes:
      momentum: the decay of the running average, in [0, 1).
    """

    reads_inputs = True

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape [D] of `Seen.total`, with D the number of inputs of the layer."""
        return [shape[-2]]

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return tf.abs(seen.weights) * tf.sqrt(self.gather(seen))[:, tf.newaxis]

    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Compute the values of one batch that enter the running average, [D]."""
        return seen.inputs


@checks.dataclass
class TaskSaliency(Criterion):
    """`|w dL_t/dw|` on one batch for each task t: a weight remains if any task needs it.

    X. Sun et al., "DiSparse: Disentangled Sparsification for Multitask Model Compression", 2022,
    arXiv:2206.04662. In the paper, each task marks a chosen number of weights, and all marked
    weights remain. In `TaskSaliency`, the requested density determines how many weights each task
    marks. A weight that only one task uses is ranked by the scores of this task. Only the order of
    a task's scores counts, so a task with a large loss does not dominate.

    Only steps that prune take a backward pass for each task. Synchronous replicas, however,
    exchange a gradient for each task in every step; in steps that do not prune, these gradients are
    zeros.

    Attributes:
      combine: the rule that merges the tasks' scores: "union" as in the paper; or "sum", which
        divides the scores of each task by their total, and adds up the results of all tasks.
    """

    combine: Annotated[str, checks.OneOf(("union", "sum"))] = "union"
    reads_tasks = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute the sum of the tasks' scores, in the shape of the weights."""
        return tf.reduce_sum(self.task_scores(seen), 0)

    def task_scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight in each of T tasks.

        Args:
          seen: the weights of a variable, with the gradients of T tasks; T is at least 1.

        Returns:
          The scores, [T, ...], with the shape of the weights as [...]; 0 for a task that does not
          use the variable.
        """
        nothing = tf.zeros_like(seen.weights)
        return tf.stack(
            [
                nothing if gradient is None else tf.abs(seen.weights * gradient)
                for gradient in seen.task_gradients.values()
            ]
        )

    def merge(self, scores: Sequence[tf.Tensor], is_global: bool) -> list[tf.Tensor]:
        """Merge the scores of T tasks into one score for each weight.

        Args:
          scores: the scores of T tasks for N variables, [T, ...] each.
          is_global: True if weights of different variables are compared.

        Returns:
          The scores of the weights of N variables, [...] each.
        """
        sizes = [tensor.shape[1:].num_elements() for tensor in scores]
        flat_scores = [tf.reshape(tensor, [tensor.shape[0], -1]) for tensor in scores]
        if self.combine == "sum":
            # The totals [T, 1] are over all variables, so that the scores of each task add up to 1.
            totals = tf.add_n([tf.reduce_sum(flat, 1, keepdims=True) for flat in flat_scores])
            merged = [tf.reduce_sum(tf.math.divide_no_nan(flat, totals), 0) for flat in flat_scores]
        elif is_global:
            merged = tf.split(_best_ranks(tf.concat(flat_scores, 1)), sizes)
        else:
            merged = list(map(_best_ranks, flat_scores))
        pairs = zip(merged, scores, strict=True)
        return [tf.reshape(weights, tensor.shape[1:]) for weights, tensor in pairs]


def _best_ranks(scores: tf.Tensor) -> tf.Tensor:
    """Return the best rank of each weight over T tasks, [T, N] -> [N] in [0, 1]; 0 for score 0."""
    # The argsort of an argsort is the rank of each entry, from 0 for the least entry.
    ranks = tf.argsort(tf.argsort(scores, axis=1, stable=True), axis=1)
    ranks = tf.cast(ranks + 1, tf.float32) / scores.shape[1]
    return tf.reduce_max(tf.where(scores > 0, ranks, tf.zeros_like(ranks)), 0)


@checks.dataclass
class SparseGpt(Criterion):
    """Prunes weights that other weights of the layer can replace, and adapts the other weights.

    E. Frantar, D. Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in
    One-Shot", 2023, arXiv:2301.00774. Only `launch.prune` computes this criterion, for kernels of
    `layers.dense`; see `mtl.tools.pruning.sparse_gpt`. `SparseGpt` cannot prune during training.

    Attributes:
      block: the number of inputs whose weights are pruned at once.
      damping: a share of the average mean square of the inputs, which is added to the mean square
        of each input.
    """

    block: checks.Count = 128
    damping: checks.Positive = 0.01
    is_of_finished_runs = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return NaN, so that a training step prunes no weights."""
        return tf.fill(seen.weights.shape, tf.constant(np.nan, seen.weights.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(Criterion):
    """Random scores, as a baseline for other criteria, and as the start of `Regrowth`.

    The scores depend only on the run's seed and the variable's name, so pruned weights remain
    pruned.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Compute a score for each weight, in the shape of the weights."""
        return tf.random.stateless_uniform(seen.weights.shape, draws.make_run_seed(seen.name))
