"""An optimizer that resets pruned weights, in the same way on all replicas."""

from __future__ import annotations

from typing import Any

from mtl.deferred import tf
from mtl.variables import slots


class Reset(tf.compat.v1.train.Optimizer):
    """Resets variables to initial values where a mask, passed as the gradient, is 0."""

    def __init__(self):
        super().__init__(use_locking=False, name="reset")

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        value = var.read_value()
        # The initial value is 0 for weights, but above 0 for some optimizer state, such as
        # Adagrad's accumulator.
        first = tf.cast(slots.find_first_value(var), value.dtype)
        return var.assign(tf.where(grad > 0, value, first), read_value=False)
