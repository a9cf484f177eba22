"""Optimizers around another optimizer, which act before and after it moves a variable.

optimizer = wrapped.Masked(optimizer, {"network/kernel": masks.Nonzero()})
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl.variables import patterns

tf1 = tf.compat.v1

Mask = Callable[[tf.Tensor, str], tf.Tensor]


class Wrapped(tf.compat.v1.train.Optimizer):
    """Moves variables by another optimizer, whose state keeps its names."""

    def __init__(self, inner: tf.compat.v1.train.Optimizer, name: str):
        super().__init__(use_locking=False, name=name)
        self.inner = inner

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        self.inner._create_slots(var_list)

    def _prepare(self) -> None:
        self.inner._prepare()

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        return self.inner._resource_apply_dense(grad, var)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        return self.inner._resource_apply_sparse_duplicate_indices(grad, handle, indices)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        return self.inner._finish(update_ops, name_scope)


def innermost(optimizer: tf.compat.v1.train.Optimizer) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer inside all wrappers."""
    while isinstance(optimizer, Wrapped):
        optimizer = optimizer.inner
    return optimizer


class Masked(Wrapped):
    """Restores entries outside a mask after each move, to the bit, whatever the optimizer does."""

    def __init__(self, inner: tf.compat.v1.train.Optimizer, masks: Mapping[str, Mask]):
        super().__init__(inner, "Masked")
        self._masks = masks

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        move = super()._resource_apply_dense
        return self._masked(var, lambda: move(grad, var))

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        # Some optimizers move rows without a gradient as well, so the whole table is restored.
        move = super()._resource_apply_sparse_duplicate_indices
        return self._masked(handle, lambda: move(grad, handle, indices))

    def _masked(self, var: tf.Variable, move: Callable[[], Any]) -> Any:
        name = patterns.shard_name(var)
        if name not in self._masks:
            return move()
        before = tf.identity(var.read_value())
        mask = self._masks[name](before, patterns.variable_name(var))
        with tf.control_dependencies([before]):
            moved = move()
        with tf.control_dependencies([moved]):
            return var.assign(tf.where(mask, var.read_value(), before), read_value=False)
