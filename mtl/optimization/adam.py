"""Variants of Adam for embedding tables and for decoupled weight decay, as TensorFlow optimizers.

    from mtl.optimization import optimizers
    update.Update.optimizer = @optimizers.AdamW()
    optimizers.AdamW.weight_decay = 0.01

The optimizers of this module are subclasses of TensorFlow's Adam. Dense gradients use TensorFlow's
fused op, and the state has the names of TensorFlow (`<variable>/Adam`, `<variable>/Adam_1`,
`beta1_power`, `beta2_power`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mtl.deferred import tf, tf1
from mtl.layers import half_tables
from mtl.variables import patterns, sharding


class _Scalars(NamedTuple):
    """Scalars of a step: the bias-corrected learning rate, the betas, 1 - beta, and epsilon."""

    rate: tf.Tensor
    beta1: tf.Tensor
    rest1: tf.Tensor
    beta2: tf.Tensor
    rest2: tf.Tensor
    epsilon: tf.Tensor


class AdamOptimizer(tf.compat.v1.train.AdamOptimizer):
    """Adam that updates all rows of an embedding table with the fused op for dense gradients.

    TensorFlow's Adam reads a large table a dozen times, and takes two to three times as long as
    this class. The weights after a step differ from those of TensorFlow's Adam only in their last
    bits.
    """

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        shape = tf.constant(var.shape.as_list(), indices.dtype)
        # `scatter_nd` adds up rows with equal indices, so the rows need not be merged first.
        dense = tf.scatter_nd(indices[:, tf.newaxis], grad, shape)
        return self._resource_apply_dense(dense, var)


class LazyAdamOptimizer(tf.compat.v1.train.AdamOptimizer):
    """Adam that reads and writes only those rows of an embedding table that are in the batch.

    The state of a table in bfloat16 is float32, because beta2 = 0.999 would round to 1 in bfloat16.
    """

    moves_half_tables = True

    def _zeros_slot(self, var: tf.Variable, slot_name: str, op_name: str) -> tf.Variable:
        if var.dtype.base_dtype != tf.bfloat16 or not sharding.is_half(var):
            return super()._zeros_slot(var, slot_name, op_name)
        zeros, shape = tf1.zeros_initializer(), var.shape
        return self._get_or_make_slot_with_initializer(
            var, zeros, shape, tf.float32, slot_name, op_name
        )

    def _prepare(self) -> None:
        super()._prepare()
        self._scalars: dict[tuple, _Scalars] = {}

    def _build_scalars(self, var: tf.Variable, dtype: tf.DType) -> _Scalars:
        """Return the scalars of a step, which all tables on a device share."""
        # A branch of `tf.cond` has a separate graph, and other branches cannot read its tensors.
        key = tf1.get_default_graph(), var.device, dtype
        if key not in self._scalars:
            beta1, beta2 = tf.cast(self._beta1_t, dtype), tf.cast(self._beta2_t, dtype)
            powers = [tf.cast(power, dtype) for power in self._get_beta_accumulators()]
            rate = tf.cast(self._lr_t, dtype) * tf.sqrt(1 - powers[1]) / (1 - powers[0])
            epsilon = tf.cast(self._epsilon_t, dtype)
            self._scalars[key] = _Scalars(rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
        return self._scalars[key]

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        scalars = self._build_scalars(var, grad.dtype.base_dtype)
        first, second = self.get_slot(var, "m"), self.get_slot(var, "v")
        m = scalars.beta1 * tf.gather(first, indices) + scalars.rest1 * grad
        v = scalars.beta2 * tf.gather(second, indices) + scalars.rest2 * tf.square(grad)
        change = scalars.rate * m / (tf.sqrt(v) + scalars.epsilon)
        return tf.group(
            first.scatter_update(tf.IndexedSlices(m, indices)),
            second.scatter_update(tf.IndexedSlices(v, indices)),
            half_tables.move_rows(var, change, indices),
        )


class AdamWOptimizer(LazyAdamOptimizer):
    """A `LazyAdamOptimizer` that decays the weights that a step updates, before their update."""

    moves_half_tables = False  # The decay would round a bfloat16 table a second time.

    def __init__(
        self,
        *args,
        weight_decay: float,
        not_decayed: Sequence[str],
        must_match: Sequence[str],
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self._weight_decay = weight_decay
        self._not_decayed, self._must_match = not_decayed, must_match

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        for pattern in self._must_match:
            # The constructor cannot check the patterns, because the network may create variables
            # later.
            patterns.select_variables("AdamW.not_decayed", pattern, tf1.global_variables())

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        decay = var.assign_sub(self._decay(var) * var) if self._decays(var) else None
        with tf.control_dependencies([decay] if decay is not None else []):
            return super()._resource_apply_dense(grad, var)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        if not self._decays(var):
            return super()._resource_apply_sparse(grad, var, indices)
        # The scalars are built before the control dependency, so that other tables do not wait for
        # the decay of this table.
        self._build_scalars(var, grad.dtype.base_dtype)
        rows = self._decay(var) * tf.gather(var, indices)
        decay = var.scatter_sub(tf.IndexedSlices(rows, indices))
        with tf.control_dependencies([decay]):
            return super()._resource_apply_sparse(grad, var, indices)

    def _decays(self, var: tf.Variable) -> bool:
        return not any(patterns.matches(pattern, var) for pattern in self._not_decayed)

    def _decay(self, var: tf.Variable) -> tf.Tensor:
        return tf.cast(self._lr_t, var.dtype.base_dtype) * self._weight_decay
