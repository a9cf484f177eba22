"""Which weights matter: a score for each, of which the least are cut.

from mtl.sparsity import criteria
pruning.Pruning.criterion = @criteria.Taylor()
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mtl import checks
from mtl.step import draws


class Seen(NamedTuple):
    """What is known of a variable in the step in which its scores are asked for.

    Attributes:
      name: of the variable.
      weights: as they are before the step moves them.
      gradient: of the loss of the whole batch, of the shape of the weights; None of a table.
      total: what the criterion has gathered over the steps; None where it gathers nothing.
      inputs: [D], the mean squares of what goes into the layer; None where nothing asks for them.
    """

    name: str
    weights: tf.Tensor
    gradient: Any
    total: Any
    inputs: Any = None


class Criterion(abc.ABC):
    """Gives every weight a score."""

    reads_gradients: bool = False
    """Whether it needs the gradient of the loss by the weights."""
    reads_inputs: bool = False
    """Whether it needs the mean squares of what goes into a layer."""
    gathers: bool = False
    """Whether it gathers something over the steps, by `gather`."""

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of what it gathers of a variable of this shape."""
        return list(shape)

    @abc.abstractmethod
    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return what `seen.total` is after this step."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude(Criterion):
    """`|w|`: cheap, and in most comparisons as good as any where weights are cut gradually.

    S. Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015,
    arXiv:1506.02626.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return tf.abs(seen.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snip(Criterion):
    """`|w dL/dw|` of the batch of the step: how much the loss would change to first order.

    N. Lee et al., "SNIP: Single-shot Network Pruning based on Connection Sensitivity", 2019,
    arXiv:1810.02340, with `OneShot` at step 0 and `Global`. The paper divides by the sum over all
    weights, which changes no order.
    """

    reads_gradients = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return tf.abs(seen.weights * seen.gradient)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taylor(Criterion):
    """The running average of `(w dL/dw)^2` over the steps.

    P. Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, arXiv:1906.10771,
    equation 8, with its momentum. Keeps a number for each weight while weights are cut.

    Attributes:
      momentum: the share of the average that a step keeps, in [0, 1).
    """

    momentum: float = 0.9
    reads_gradients = True
    gathers = True

    def __post_init__(self):
        checks.rate("Taylor.momentum", self.momentum)

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return self.gather(seen)

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return what `seen.total` is after this step; of the shape of the weights."""
        new = tf.square(seen.weights * seen.gradient)
        return self.momentum * seen.total + (1 - self.momentum) * new


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement(Criterion):
    """`-sum_t w_t dL/dw_t`: high for weights that training moves away from 0.

    V. Sanh et al., "Movement Pruning: Adaptive Sparsity by Fine-Tuning", 2020, arXiv:2005.07683,
    for networks that start from another run. The learning rate of the paper's scores changes no
    order and is left out. There a cut weight keeps its value behind the mask and goes on to gather;
    here that holds under `Pruning.gradient = "straight_through"` alone, where it is trained, too.
    Otherwise it is 0, so that its score stays as it was.
    """

    reads_gradients = True
    gathers = True

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return self.gather(seen)

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return what `seen.total` is after this step; of the shape of the weights."""
        return seen.total - seen.weights * seen.gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanda(Criterion):
    """`|w| sqrt(mean x^2)` of the input x that it weighs: what a weight adds to its unit.

    M. Sun et al., "A Simple and Effective Pruning Approach for Large Language Models", 2024,
    arXiv:2306.11695, which compares the weights of one unit with each other: `Uniform.per_unit`.
    For kernels of `layers.dense` and `layers.conv`; the mean is a running average over the steps.

    Attributes:
      momentum: the share of the average that a step keeps, in [0, 1).
    """

    momentum: float = 0.9
    reads_inputs = True
    gathers = True

    def __post_init__(self):
        checks.rate("Wanda.momentum", self.momentum)

    def total_shape(self, shape: Sequence[int]) -> list[int]:
        """Return [D], a number for each input of a layer."""
        return [shape[-2]]

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return tf.abs(seen.weights) * tf.sqrt(self.gather(seen))[:, tf.newaxis]

    def gather(self, seen: Seen) -> tf.Tensor:
        """Return what `seen.total` is after this step, [D]."""
        return self.momentum * seen.total + (1 - self.momentum) * seen.inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(Criterion):
    """A draw: the control that every other criterion has to beat, and the start of `Regrowth`.

    It depends on the run's seed and the variable's name alone, so that what is cut stays cut.
    """

    def scores(self, seen: Seen) -> tf.Tensor:
        """Return the scores of weights, of their shape."""
        return tf.random.stateless_uniform(seen.weights.shape, draws.make_run_seed(seen.name))
