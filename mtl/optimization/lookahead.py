"""Look-ahead around any optimizer.

from mtl.optimization import lookahead
update.Update.optimizer = @lookahead.Lookahead()
lookahead.Lookahead.optimizer = @optimizers.LazyAdam()
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mtl import checks, types
from mtl.optimization import groups, wrapped

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookahead:
    """`slow <- slow + rate * (w - slow);  w <- slow` after every `steps` steps of an optimizer.

    M. Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", 2019, arXiv:1907.08610.
    A step back keeps the state of the optimizer, as in the paper's experiments. `slow` is saved as
    `<variable>/Lookahead`, one more copy of the weights. Looked-up tables follow the optimizer
    alone, because few of their rows move between two steps back.

    Attributes:
      optimizer: takes the steps forward.
      steps: the number of steps between two steps back, at least 2.
      rate: the share of the way forward that a step back keeps, in (0, 1].
    """

    optimizer: types.Optimizer
    steps: int = 5
    rate: float = 0.5

    def __post_init__(self):
        groups.check_optimizer("Lookahead.optimizer", self.optimizer)
        checks.is_a("Lookahead.steps", self.steps, int, "be a number of steps")
        checks.at_least("Lookahead.steps", self.steps, 2)
        checks.positive("Lookahead.rate", self.rate)
        checks.require(self.rate <= 1, "Lookahead.rate", "be in (0, 1]", self.rate)

    @property
    def learning_rate(self) -> float | types.Schedule:
        """The learning rate of the steps forward."""
        return self.optimizer.learning_rate

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer for a learning rate, a float32 scalar of the graph."""
        return _LookaheadOptimizer(self.optimizer(learning_rate), self.steps, self.rate)


class _LookaheadOptimizer(wrapped.Wrapped):
    """Calls another optimizer, and steps back after it.

    It counts its own steps: a group that starts later begins with a whole round.
    """

    def __init__(self, inner: tf.compat.v1.train.Optimizer, steps: int, rate: float):
        super().__init__(inner, "Lookahead")
        self._steps, self._rate = steps, rate

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(0, "lookahead_steps", first)
        for variable in var_list:
            self._zeros_slot(variable, "slow", self.get_name())

    def _prepare(self) -> None:
        super()._prepare()
        position = self._taken().read_value() % self._steps
        self._is_first = tf.equal(position, 0)
        self._is_last = tf.equal(position, self._steps - 1)

    def _taken(self) -> tf.Variable:
        with tf.init_scope():  # Finds the outermost graph from within a loop or a branch.
            graph = tf1.get_default_graph()
        return self._get_non_slot_variable("lookahead_steps", graph)

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        slow = self.get_slot(var, "slow")
        # A round starts from the weights of the last step back.
        start = tf.cond(self._is_first, lambda: slow.assign(var.read_value()), slow.read_value)
        with tf.control_dependencies([start]):
            moved = super()._resource_apply_dense(grad, var)
        with tf.control_dependencies([moved]):
            return tf.cond(self._is_last, lambda: self._back(var, start), tf.no_op)

    def _back(self, var: tf.Variable, start: tf.Tensor) -> tf.Operation:
        return tf.group(var.assign(start + self._rate * (var.read_value() - start)))

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> tf.Operation:
        with tf.control_dependencies(update_ops):
            counted = self._taken().assign_add(1)
        return tf.group(super()._finish(update_ops, name_scope), counted)
