"""Applies gradients that all replicas already have in common.

A `tf.compat.v1.train.Optimizer` sums gradients over the replicas. Clipping and balancing need the
sums earlier; the optimizer would sum them a second time.

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
    """Apply gradients that are equal in every replica, as `optimizer.apply_gradients` does.

    Args:
      optimizer: of TensorFlow 1.
      gradients_and_variables: N pairs.
      when: True to apply. A bool scalar of the graph, equal in every replica, puts the update into
        a branch: if it is False, variables and state do not change.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        pairs = list(gradients_and_variables)
        return _run_if(when, lambda: optimizer.apply_gradients(pairs))

    def apply_everywhere(strategy: tf.distribute.Strategy, pairs: Sequence, when: Any) -> Any:
        when = strategy.experimental_local_results(when)[0]
        # Of what TensorFlow offers only this private method skips the sum, and updates mirrored
        # variables by their copies, as sparse updates need.
        return _run_if(when, lambda: optimizer._distributed_apply(_Reduced(strategy), pairs))

    context = tf.distribute.get_replica_context()
    return context.merge_call(apply_everywhere, args=(list(gradients_and_variables), when))


def _run_if(when: tf.Tensor | bool, operation: Callable[[], tf.Operation]) -> tf.Operation:
    return operation() if when is True else tf.cond(when, operation, tf.no_op)


class _Reduced:
    """A strategy, or its `extended`, for which a sum over the replicas is done already."""

    def __init__(self, of: Any):
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    @property
    def extended(self) -> _Reduced:
        return _Reduced(self._of.extended)

    def batch_reduce_to(self, op: Any, values_and_variables: Sequence) -> list:
        return [value for value, _ in values_and_variables]
