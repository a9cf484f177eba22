"""Criteria score the importance of weights; weights with the least scores are cut.

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
    """The values of a variable from which a step computes its scores.

    Attributes:
      name: the name of the variable.
      weights: their values before the update of the step.
      gradient: the gradient of the batch's loss, in the shape of the weights; None for a table.
      total: the sum or average that the criterion gathers over the steps; None if it gathers no
        values.
      inputs: [D], the mean squares of the layer's inputs; None if the criterion does not need them.
      task_gradients: {task: the gradient of its loss}, None for a task that does not depend on the
        variable; empty if the criterion does not need them.
      is_moving: True for weights that training changes, in their shape; None if it changes all.
    """

    name: str
    weights: tf.Tensor
    gradient: Any
    total: Any
    inputs: Any = None
    task_gradients: Mapping[str, Any] = {}
    is_moving: Any = None


def sum_squares(inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the sums and the count for mean squares: [..., D] -> float32 [D], and a scalar."""
    flat = tf.reshape(tf.cast(inputs, tf.float32), [-1, inputs.shape[-1]])
    return tf.reduce_sum(tf.square(flat), 0), tf.cast(tf.shape(flat)[0], tf.float32)


def average_squares(inputs: tf.Tensor) -> tf.Tensor:
    """Return the mean squares of a layer's inputs, [..., D] -> float32 [D]."""
    total, count = sum_squares(inputs)
    return total / count


class Criterion(abc.ABC):
    """Gives every weight a score."""

    reads_gradients: bool = False
    """True if it needs the gradient of the loss by the weights."""
    reads_tasks: bool = False
    """True if it needs the gradient of each task's loss; it is a `TaskSaliency` then."""
    reads_inputs: bool = False
    """True if it needs the mean squares of a layer's inputs."""
    gathers: bool = False
    """True if it gathers values over the steps, by `gather`."""
    is_of_finished_runs: bool = False
    """True if only `launch.prune` can compute it."""

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the gathered values for a variable of this shape."""
        return list(shape)

    @abc.abstractmethod
    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return the next value of `seen.total`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude(Criterion):
    """`|w|`: cheap, and in most comparisons as good as any other if weights are cut gradually.

    S. Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015,
    arXiv:1506.02626.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return tf.abs(seen.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snip(Criterion):
    """`|w dL/dw|` on the batch of the step: the first-order change of the loss without the weight.

    N. Lee et al., "SNIP: Single-shot Network Pruning based on Connection Sensitivity", 2019,
    arXiv:1810.02340, with `OneShot` at step 0 and `Global`. The paper divides by the sum over all
    weights, which does not change the order.
    """

    reads_gradients = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return tf.abs(seen.weights * seen.gradient)


@checks.dataclass
class Averaged(Criterion):
    """Scores by a running average over the steps; in a finished run, by the mean over batches.

    Attributes:
      momentum: the share of the average that a step keeps, in [0, 1).
    """

    momentum: checks.Rate = 0.9
    gathers = True

    @abc.abstractmethod
    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Return the value that a batch adds to the average; None if `seen` has no batch."""

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return the next value of `seen.total`."""
        new = self.observe(seen)
        if new is None:
            return seen.total
        # The average starts at 0. So all averages of a step are too small by a common factor, which
        # does not change their order.
        return self.momentum * seen.total + (1 - self.momentum) * new


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taylor(Averaged):
    """The average of `(w dL/dw)^2` over the steps.

    P. Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, arXiv:1906.10771,
    equation 8, with its momentum. The criterion saves a number for each weight while weights are
    cut.

    Attributes:
      momentum: the share of the average that a step keeps, in [0, 1).
    """

    reads_gradients = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return self.gather(seen)

    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Return the values that a batch adds to the average, in the shape of the weights."""
        return None if seen.gradient is None else tf.square(seen.weights * seen.gradient)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement(Criterion):
    """`-sum_t w_t dL/dw_t`: high for weights that training drives away from 0.

    V. Sanh et al., "Movement Pruning: Adaptive Sparsity by Fine-Tuning", 2020, arXiv:2005.07683,
    for networks that start from another run. The paper's learning rate of the scores is left out,
    because it does not change their order. In the paper, a cut weight keeps its value under the
    mask, and its score still changes. Here only `Pruning.gradient = "straight_through"` keeps the
    value, and also trains the weight. With other gradients a cut weight is 0, and its score stays
    the same.
    """

    reads_gradients = True
    gathers = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return self.gather(seen)

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return the next value of `seen.total`, in the shape of the weights."""
        return seen.total - seen.weights * seen.gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanda(Averaged):
    """`|w| sqrt(mean x^2)` with the input x of the weight: how much it adds to its unit.

    M. Sun et al., "A Simple and Effective Pruning Approach for Large Language Models", 2024,
    arXiv:2306.11695, which compares only weights of the same unit: `Uniform.per_unit`. The
    criterion works only for kernels of `layers.dense` and `layers.conv`.

    Attributes:
      momentum: the share of the average that a step keeps, in [0, 1).
    """

    reads_inputs = True

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return [D], a number for each input of a layer."""
        return [shape[-2]]

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return tf.abs(seen.weights) * tf.sqrt(self.gather(seen))[:, tf.newaxis]

    def observe(self, seen: Seen) -> tf.Tensor | None:
        """Return the values that a batch adds to the average, [D]."""
        return seen.inputs


@checks.dataclass
class TaskSaliency(Criterion):
    """`|w dL_t/dw|` on the batch of the step for each task t: a single task can keep a weight.

    X. Sun et al., "DiSparse: Disentangled Sparsification for Multitask Model Compression", 2022,
    arXiv:2206.04662: a weight is cut only if no task needs it. In the paper each task marks the
    same number of weights, and all marked weights are kept. Here the number of marked weights
    follows from the requested density. If a weight belongs to one task alone, that task ranks it.
    Only the order of a task's scores counts, so a large loss does not outweigh others.

    Steps that cut take a backward pass for each task; other steps take none. Synchronous
    replicas also exchange a gradient for each task in every step: zeros if no cut is due.

    Attributes:
      combine: "union", or "sum" of the tasks' scores, each divided by its sum over all weights.
    """

    combine: Annotated[str, checks.OneOf(("union", "sum"))] = "union"
    reads_tasks = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the sum of the tasks' scores, in the shape of the weights."""
        return tf.reduce_sum(self.task_scores(seen), 0)

    def task_scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of each task, [T, ...]; 0 for a task that does not depend on it."""
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
          scores: [T, ...] for each of N variables.
          is_global: True if weights of different variables are compared with each other.

        Returns:
          The scores of the weights, [...] for each of N variables.
        """
        sizes = [tensor.shape[1:].num_elements() for tensor in scores]
        flat_scores = [tf.reshape(tensor, [tensor.shape[0], -1]) for tensor in scores]
        if self.combine == "sum":
            # [T, 1], over all variables: each task's scores then add up to 1.
            totals = tf.add_n([tf.reduce_sum(flat, 1, keepdims=True) for flat in flat_scores])
            merged = [tf.reduce_sum(tf.math.divide_no_nan(flat, totals), 0) for flat in flat_scores]
        elif is_global:
            merged = tf.split(_best_ranks(tf.concat(flat_scores, 1)), sizes)
        else:
            merged = list(map(_best_ranks, flat_scores))
        pairs = zip(merged, scores, strict=True)
        return [tf.reshape(weights, tensor.shape[1:]) for weights, tensor in pairs]


def _best_ranks(scores: tf.Tensor) -> tf.Tensor:
    """Return the best rank of each weight in any task, [T, N] -> [N] in [0, 1]; score 0 gives 0."""
    # The argsort of an argsort gives each entry its rank, from 0 for the least.
    ranks = tf.argsort(tf.argsort(scores, axis=1, stable=True), axis=1)
    ranks = tf.cast(ranks + 1, tf.float32) / scores.shape[1]
    return tf.reduce_max(tf.where(scores > 0, ranks, tf.zeros_like(ranks)), 0)


@checks.dataclass
class SparseGpt(Criterion):
    """Cuts weights that the other weights of a layer can replace, and adapts these other weights.

    E. Frantar, D. Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in
    One-Shot", 2023, arXiv:2301.00774. Only `launch.prune` computes this criterion, for kernels of
    `layers.dense`: see `mtl.tools.pruning.sparse_gpt`. A training step cannot.

    Attributes:
      block: the number of inputs whose weights are compared with each other at once.
      damping: a share of the mean square of the inputs, added to all their mean squares.
    """

    block: checks.Count = 128
    damping: checks.Positive = 0.01
    is_of_finished_runs = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return NaN, so that a training step cuts no weights by it."""
        return tf.fill(seen.weights.shape, tf.constant(np.nan, seen.weights.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(Criterion):
    """A random draw: a control for all other criteria, and the start of `Regrowth`.

    The draw depends only on the run's seed and the variable's name: a cut weight stays cut.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return a score for each weight, in the same shape."""
        return tf.random.stateless_uniform(seen.weights.shape, draws.make_run_seed(seen.name))
