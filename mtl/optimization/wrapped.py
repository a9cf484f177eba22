"""Optimizers that wrap another optimizer, and act before and after its change of a variable.

optimizer = wrapped.Masked(optimizer, {"network/kernel": masks.Nonzero()})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtl.deferred import tf, tf1
from mtl.variables import patterns

Mask = Callable[["tf.Tensor", str], "tf.Tensor"]


class Wrapped(tf.compat.v1.train.Optimizer):
    """Updates variables by an inner optimizer; the variables of its state keep their names."""

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
    """Return the innermost optimizer, without all wrappers."""
    while isinstance(optimizer, Wrapped):
        optimizer = optimizer.inner
    return optimizer


class Masked(Wrapped):
    """Takes the steps of another optimizer, but restores the entries that are outside of a mask."""

    def __init__(self, inner: tf.compat.v1.train.Optimizer, masks: Mapping[str, Mask]):
        super().__init__(inner, "Masked")
        self._masks = masks

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        move = super()._resource_apply_dense
        return self._mask_move(var, lambda: move(grad, var))

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        # Some optimizers also change rows without a gradient, so the mask is applied to the whole
        # table.
        move = super()._resource_apply_sparse_duplicate_indices
        return self._mask_move(handle, lambda: move(grad, handle, indices))

    def _mask_move(self, var: tf.Variable, move: Callable[[], Any]) -> Any:
        name = patterns.shard_name(var)
        if name not in self._masks:
            return move()
        before = tf.identity(var.read_value())
        mask = self._masks[name](before, patterns.variable_name(var))
        with tf.control_dependencies([before]):
            update = move()
        with tf.control_dependencies([update]):
            return var.assign(tf.where(mask, var.read_value(), before), read_value=False)


class Lookahead(Wrapped):
    """Calls another optimizer, and takes Lookahead's step back after every `steps` steps.

    The wrapper counts its own steps, so a parameter group that starts later begins with a complete
    round of `steps` steps.
    """

    def __init__(self, inner: tf.compat.v1.train.Optimizer, steps: int, rate: float):
        super().__init__(inner, "Lookahead")
        self._steps, self._rate = steps, rate

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        # TensorFlow places the counter on the device of a variable. The code passes the variable
        # whose name is first in alphabetical order, because this choice does not depend on the
        # order of `var_list`.
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(0, "lookahead_steps", first)
        for variable in var_list:
            self._zeros_slot(variable, "slow", self.get_name())

    def _prepare(self) -> None:
        super()._prepare()
        position = self._find_counter().read_value() % self._steps
        self._is_first = tf.equal(position, 0)
        self._is_last = tf.equal(position, self._steps - 1)

    def _find_counter(self) -> tf.Variable:
        with tf.init_scope():  # Finds the outermost graph from within a loop or a branch.
            graph = tf1.get_default_graph()
        return self._get_non_slot_variable("lookahead_steps", graph)

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        slow = self.get_slot(var, "slow")
        # At the first step of a round, `slow` gets the weights after the last step back.
        start = tf.cond(self._is_first, lambda: slow.assign(var.read_value()), slow.read_value)
        with tf.control_dependencies([start]):
            update = super()._resource_apply_dense(grad, var)
        with tf.control_dependencies([update]):
            return tf.cond(self._is_last, lambda: self._move_back(var, start), tf.no_op)

    def _move_back(self, var: tf.Variable, start: tf.Tensor) -> tf.Operation:
        return tf.group(var.assign(start + self._rate * (var.read_value() - start)))

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> tf.Operation:
        with tf.control_dependencies(update_ops):
            # The counter is incremented last, because `_prepare` reads its old value.
            increment = self._find_counter().assign_add(1)
        return tf.group(super()._finish(update_ops, name_scope), increment)
