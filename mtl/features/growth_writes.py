"""An optimizer that writes rows of growing tables, so that all replicas write equal values."""

from __future__ import annotations

from typing import Any

from mtl.deferred import tf


class Writing(tf.compat.v1.train.Optimizer):
    """Assigns gradients to variables as values, because optimizers can write mirrored variables."""

    def __init__(self, is_greatest: bool):
        super().__init__(use_locking=False, name="grow")
        self._is_greatest = is_greatest

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        return var.assign(grad, read_value=False)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        if self._is_greatest:
            return handle.scatter_max(tf.IndexedSlices(grad, indices))
        if grad.shape.rank < handle.shape.rank:  # Keys form a matrix of buckets.
            count = handle.shape[1]
            places = tf.stack([indices // count, indices % count], 1)
            return handle.scatter_nd_update(places, grad)
        return handle.scatter_update(tf.IndexedSlices(grad, indices))
