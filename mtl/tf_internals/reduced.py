"""Applies gradients that are already summed over replicas.

A `tf.compat.v1.train.Optimizer` sums gradients over replicas. Balancing and clipping need the
summed gradients earlier, so the optimizer must not sum the gradients a second time.

moved = reduced.apply_reduced(optimizer, gradients_and_variables)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtl.deferred import tf


def apply_reduced(
    optimizer: tf.compat.v1.train.Optimizer,
    gradients_and_variables: Sequence[tuple[Any, tf.Variable]],
    when: tf.Tensor | bool = True,
) -> tf.Operation:
    """Call `optimizer.apply_gradients` for gradients that are equal on all replicas.

    Args:
      optimizer: an optimizer of TensorFlow 1.
      gradients_and_variables: N pairs of a gradient and its variable.
      when: True, or a bool scalar of the graph that is equal on all replicas. If `when` is False,
        neither variables nor optimizer state change.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        pairs = list(gradients_and_variables)
        return _run_if(when, lambda: optimizer.apply_gradients(pairs))

    def apply_everywhere(strategy: tf.distribute.Strategy, pairs: Sequence, when: Any) -> Any:
        when = strategy.experimental_local_results(when)[0]
        # This private method is the only way to skip the sum, and to apply sparse updates to each
        # copy of a mirrored variable.
        return _run_if(when, lambda: optimizer._distributed_apply(_Reduced(strategy), pairs))

    context = tf.distribute.get_replica_context()
    return context.merge_call(apply_everywhere, args=(list(gradients_and_variables), when))


def _run_if(when: tf.Tensor | bool, operation: Callable[[], tf.Operation]) -> tf.Operation:
    return operation() if when is True else tf.cond(when, operation, tf.no_op)


class _Reduced:
    """Wraps a strategy, or its `extended`, so that it does not sum gradients over replicas."""

    def __init__(self, strategy: Any):
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    @property
    def extended(self) -> _Reduced:
        return _Reduced(self._strategy.extended)

    def batch_reduce_to(self, op: Any, values_and_variables: Sequence) -> list:
        return [value for value, _ in values_and_variables]
