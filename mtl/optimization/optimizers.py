"""Optimizers, which turn gradients and a learning rate into changes of the weights.

    from mtl.optimization import optimizers
    update.Update.optimizer = @optimizers.LazyAdam()
    optimizers.LazyAdam.learning_rate = 0.001            # or a schedule: @schedules.Cosine()

Each class builds a `tf.compat.v1.train.Optimizer`, whose state is saved under names such as
`<variable>/Adam`. In embedding tables, all optimizers except `Adam` change only the rows in the
batch.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.variables import patterns

with deferred.imports():
    from mtl.optimization import adagrad, adam

_NOT_DECAYED = ("/bias$", "/gamma$", "/beta$")


@checks.dataclass
class _Optimizer(abc.ABC):
    learning_rate: Annotated[
        float | types.Schedule, checks.Scheduled(checks.positive, "schedules.Cosine")
    ]

    @abc.abstractmethod
    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Build TensorFlow's optimizer with a learning rate, a float32 scalar of the graph."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(_Optimizer):
    """`w <- w - rate * g`.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
    """

    learning_rate: float | types.Schedule = 0.01

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return tf1.train.GradientDescentOptimizer(learning_rate)


@checks.dataclass
class Momentum(_Optimizer):
    """`a <- momentum * a + g;  w <- w - rate * a`, or `w - rate * (g + momentum * a)`.

    I. Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
    Rows of embedding tables that are not in the batch keep their weights and their momentum `a`.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
      momentum: the decay of the momentum `a`, in [0, 1).
      nesterov: True for Nesterov's momentum, `w <- w - rate * (g + momentum * a)`.
    """

    learning_rate: float | types.Schedule = 0.01
    momentum: checks.Rate = 0.9
    nesterov: bool = False

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return tf1.train.MomentumOptimizer(learning_rate, self.momentum, use_nesterov=self.nesterov)


@checks.dataclass
class Adagrad(_Optimizer):
    """`a <- a + g^2;  w <- w - rate * g / sqrt(a)`.

    J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization", 2011.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
      initial_accumulator: the sum of squares `a` before the first step, above 0. A larger
        `initial_accumulator` makes the first steps smaller.
    """

    learning_rate: float | types.Schedule = 0.05
    initial_accumulator: checks.Positive = 0.1

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return tf1.train.AdagradOptimizer(learning_rate, self.initial_accumulator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(Adagrad):
    """`a <- a + mean(g^2);  w <- w - rate * g / sqrt(a)`, with one `a` for each row of a table.

    The state of a table has one number for each row, but the state of `Adagrad` is as large as the
    table. The formula is the exact row-wise Adagrad of FBGEMM and TorchRec, whose initial `a` is 0.
    If a row is looked up several times in a batch, its gradients are summed before they are
    squared. Variables with dense gradients have the state and updates of `Adagrad`. The attributes
    are the same as in `Adagrad`. If the loss is a mean over the batch, the gradient of a table row
    is small, and the `a` of the row hardly changes from its initial value; so for such a loss, set
    `initial_accumulator` far below 0.1.
    """

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return adagrad.RowWiseAdagradOptimizer(learning_rate, self.initial_accumulator)


@checks.dataclass
class FTRL(_Optimizer):
    """Follow the regularised leader, for wide linear models: L1 sets weights to exactly 0.

    `n' = n + g^2;  z <- z + g - (sqrt(n') - sqrt(n)) / rate * w;  n <- n'`
    `w <- 0 if |z| <= l1, else (sign(z) * l1 - z) / (sqrt(n) / rate + 2 * l2)`

    H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013. The first step of
    FTRL replaces the initial weights, so do not use FTRL after a warm start.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
      l1: the factor of the L1 penalty, at least 0.
      l2: the factor of the L2 penalty, at least 0.
      initial_accumulator: the sum of squared gradients `n` before the first step, at least 0.
    """

    learning_rate: float | types.Schedule = 0.05
    l1: checks.NotNegative = 0.0
    l2: checks.NotNegative = 0.0
    initial_accumulator: checks.NotNegative = 0.1

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return tf1.train.FtrlOptimizer(
            learning_rate,
            initial_accumulator_value=self.initial_accumulator,
            l1_regularization_strength=self.l1,
            l2_regularization_strength=self.l2,
        )


@checks.dataclass
class RMSProp(_Optimizer):
    """`v <- d * v + (1 - d) * g^2;  a <- momentum * a + rate * g / sqrt(v + epsilon);  w <- w - a`.

    G. Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012. The running average `v` of
    squared gradients starts at 1, so the first steps are small.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
      decay: the decay `d` of the average `v` of squared gradients, in [0, 1).
      momentum: the decay of the momentum `a`, in [0, 1).
      epsilon: a number above 0, which is added to `v` in the divisor.
      centered: True subtracts the squared running average of g from v, so that g is divided by its
        standard deviation.
    """

    learning_rate: float | types.Schedule = 0.001
    decay: checks.Rate = 0.9
    momentum: checks.Rate = 0.0
    epsilon: checks.Positive = 1e-10
    centered: bool = False

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return tf1.train.RMSPropOptimizer(
            learning_rate, self.decay, self.momentum, self.epsilon, centered=self.centered
        )


@checks.dataclass
class Adam(_Optimizer):
    """`m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - rate_t * m / (sqrt(v) + eps)`.

    with `rate_t = rate * sqrt(1 - b2^t) / (1 - b1^t)`.

    D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980; epsilon
    is the paper's epsilon-hat. Each step changes every row of an embedding table, also rows that
    are not in the batch, so the time of a step grows with the vocabulary. With a table of 1,000,000
    rows of 16 numbers, and 256 rows in the batch, a step takes 83 ms with `Adam`, 251 ms with
    TensorFlow's Adam, and 0.5 ms with `LazyAdam` (see `benchmarks/table_updates.py`). For large
    tables, use `LazyAdam`, which can continue from the same checkpoints.

    Attributes:
      learning_rate: the learning rate, above 0, or a schedule.
      beta1: the decay of the first moment m, in [0, 1).
      beta2: the decay of the second moment v, in [0, 1).
      epsilon: a number above 0, which is added to sqrt(v) in the divisor.
    """

    learning_rate: float | types.Schedule = 0.001
    beta1: checks.Rate = 0.9
    beta2: checks.Rate = 0.999
    epsilon: checks.Positive = 1e-8

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return adam.AdamOptimizer(learning_rate, self.beta1, self.beta2, self.epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam(Adam):
    """`Adam` that changes only those rows of embedding tables that are in the batch.

    Variables with dense gradients change exactly as with `Adam`. The weights and moments of a row
    do not change in steps without the row, but the step number t of the bias correction counts all
    steps. The attributes are the same as in `Adam`.
    """

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return adam.LazyAdamOptimizer(learning_rate, self.beta1, self.beta2, self.epsilon)


@checks.dataclass
class AdamW(Adam):
    """`LazyAdam` with decoupled weight decay: also `w <- w - rate * weight_decay * w`.

    I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019, arXiv:1711.05101. The
    decay is multiplied by the whole learning rate, as is common today; the paper multiplies the
    decay only by the schedule of the learning rate. Rows of embedding tables decay only in steps
    that look them up. All other attributes are the same as in `Adam`.

    Attributes:
      weight_decay: the factor of the decay, above 0.
      not_decayed: patterns (see `mtl.variables.patterns`) of variables that do not decay; by
        default biases, and the scales and offsets of normalisations.
    """

    weight_decay: checks.Positive = 0.01
    not_decayed: Annotated[Sequence[str], patterns.check_patterns] = _NOT_DECAYED

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        return adam.AdamWOptimizer(
            learning_rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            weight_decay=self.weight_decay,
            not_decayed=self.not_decayed,
            # A default pattern need not match a variable of the network, but a pattern of the user
            # must.
            must_match=[pattern for pattern in self.not_decayed if pattern not in _NOT_DECAYED],
        )


def moves_entries_alike(optimizer: types.Optimizer) -> bool:
    """Check whether an optimizer treats the entries of all dense gradients in the same way.

    Returns:
      True if all entries are treated in the same way, as by the optimizers of this module, except
      `RowWiseAdagrad` and an `AdamW` whose `not_decayed` is not the default. False for optimizers
      of other modules, because their updates are unknown.
    """
    if type(optimizer) is AdamW:
        # With patterns other than the default in `not_decayed`, variables of different tasks may
        # decay differently.
        return tuple(optimizer.not_decayed) == _NOT_DECAYED
    return type(optimizer) in (SGD, Momentum, Adagrad, FTRL, RMSProp, Adam, LazyAdam)
