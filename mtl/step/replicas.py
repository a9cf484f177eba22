"""Counts the replicas that train one model together, and sums tensors over them.

replicas.count()             # 1 without a tf.distribute strategy
replicas.sum_over_replicas(structure)    # tensors and IndexedSlices, the same in every replica
replicas.average_over_replicas(tensor)       # in a network: gradients flow back to all replicas
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mtl import ambient, checks
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs


def count() -> int:
    """Return the number of replicas that take a step together."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def replica_index() -> int | tf.Tensor:
    """Return the index of this replica, from 0."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def sum_over_replicas(structure: Any) -> Any:
    """Sum tensors over all replicas; every replica must make the same call.

    Args:
      structure: tensors, IndexedSlices and None, in any nesting. An entry that is None on one
        replica must be None on all replicas.

    Returns:
      The sums, nested like `structure`; without several replicas, `structure` itself.
    """
    if count() == 1:
        return structure
    flat = tf.nest.flatten(structure)
    # A single call sums all tensors, because the threads of all replicas wait for each other in
    # each `merge_call`.
    values = [value for value in flat if value is not None]
    context = tf.distribute.get_replica_context()
    sums = iter(context.merge_call(_sum_values, args=(values,)) if values else ())
    return tf.nest.pack_sequence_as(structure, [v if v is None else next(sums) for v in flat])


def average_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Average a tensor over all replicas; gradients flow back to the value on each replica.

    Args:
      value: a tensor of the same shape on each replica.

    Returns:
      The mean over all replicas; `value` itself within `separate_replicas`, or if there is only one
      replica.

    Raises:
      UserError: the gradient is taken in a branch or a loop, where replicas cannot communicate.
    """

    @tf.custom_gradient
    def average_all(local_value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            rule = "be 'replica' if gradients are taken only at some steps"
            fix = "Or set every_steps of Combine or Monitored to 1."
            is_outermost = tf1.get_default_graph() is graphs.outermost_graph()
            checks.require(is_outermost, "Distribution.batch_norm", rule, "global", fix)
            return sum_over_replicas(upstream) / count()

        # Without `stop_gradient`, TensorFlow would follow the sum back to weights of other
        # replicas.
        return sum_over_replicas(tf.stop_gradient(local_value)) / count(), gradient

    return value if are_separate() else average_all(value)


def call_together(function: Callable[[], Any]) -> Any:
    """Wait for all replicas, call a function once, and return its result to each replica.

    All replicas build one graph, and share its collections. Within a branch or a loop, each replica
    has a separate graph, and calls the function separately.

    Args:
      function: a function without arguments, the same in all replicas.

    Returns:
      The result of the function.
    """
    is_outermost = tf1.get_default_graph() is graphs.outermost_graph()
    if count() == 1 or not is_outermost or tf.distribute.in_cross_replica_context():
        return function()
    return tf.distribute.get_replica_context().merge_call(lambda _: function())


def are_separate() -> bool:
    """Return True if `average_over_replicas` returns the value of this replica alone."""
    return count() == 1 or _ARE_SEPARATE.get()


def separate_replicas(when: bool = True) -> contextlib.AbstractContextManager[bool]:
    """Let `average_over_replicas` return the replica's own value within the context.

    Args:
      when: with False, `separate_replicas` has no effect; an outer context may still separate
        replicas.
    """
    return _ARE_SEPARATE.set(when or _ARE_SEPARATE.get())


class once:  # noqa: N801, as functools.cached_property
    """A cached property whose computation may communicate with other replicas.

    Before Python 3.12, `functools.cached_property` has one lock for all instances, so the threads
    of replicas would deadlock.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


def _sum_values(strategy: tf.distribute.Strategy, values: list) -> list:
    # `batch_reduce_to` takes pairs of a value and a destination. With the value as destination,
    # each sum is placed on the device of its value.
    pairs = [(value, value) for value in values]
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)


_ARE_SEPARATE = ambient.Ambient("replicas are separate", default=False)
