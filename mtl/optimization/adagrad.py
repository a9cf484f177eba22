"""Adagrad with one accumulator for each row of a table, as `tf.compat.v1.train.Optimizer`.

    from mtl.optimization import optimizers
    update.Update.optimizers = {"^features/": @optimizers.RowWiseAdagrad()}
    optimizers.RowWiseAdagrad.learning_rate = 0.05

The optimizer is a subclass of TensorFlow's Adagrad, and applies dense gradients as its base class
does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mtl.deferred import tf, tf1
from mtl.layers import half_tables
from mtl.variables import patterns

_NAME, _SLOT = "RowWiseAdagrad", "accumulator"


class RowWiseAdagradOptimizer(tf.compat.v1.train.AdagradOptimizer):
    """Adagrad whose state for an embedding table has one number for each row.

    Attributes:
      tables: the names (`patterns.shard_name`) of the variables whose state has one number for each
        row. Set `tables` before `apply_gradients`, which creates the state.
    """

    moves_half_tables = True

    def __init__(self, learning_rate: tf.Tensor, initial_accumulator: float):
        super().__init__(learning_rate, initial_accumulator, name=_NAME)
        self.tables: Collection[str] = ()

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        tables = [v for v in var_list if patterns.shard_name(v) in self.tables]
        super()._create_slots([v for v in var_list if patterns.shard_name(v) not in self.tables])
        start = tf1.constant_initializer(self._initial_accumulator_value)
        for variable in tables:
            # In TensorFlow's optimizer, a slot has the shape of its variable. Here, the slot of a
            # table has only one number for each row.
            rows = variable.shape[:1]
            self._get_or_make_slot_with_initializer(variable, start, rows, tf.float32, _SLOT, _NAME)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        accumulator = self.get_slot(var, _SLOT)
        if patterns.shard_name(var) not in self.tables:
            return super()._resource_apply_sparse(grad, var, indices)
        others = list(range(1, grad.shape.rank))
        squares = tf.reduce_mean(tf.square(grad), others)
        # TensorFlow merges equal indices before it calls this method, so each row occurs once.
        addition = accumulator.scatter_add(tf.IndexedSlices(squares, indices))
        with tf.control_dependencies([addition]):
            total = tf.gather(accumulator, indices)
        scale = tf.cast(self._learning_rate_tensor, grad.dtype) * tf.math.rsqrt(total)
        # The shape [rows, 1] gives all numbers of a row the same rate.
        change = grad * tf.reshape(scale, [-1] + [1] * len(others))
        return half_tables.move_rows(var, change, indices)
