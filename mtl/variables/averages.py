"""An optimizer that updates averages of variables, and the names of its state.

averages.Averaging(0.999, step, tables).apply_gradients(...)
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs
from mtl.variables import patterns

AVERAGE, DECAY = "average", "average_decay"
# This number replaces a decay of 0, whose logarithm is not finite.
LEAST_DECAY = 1e-300
# {graph: {name of a variable: the average that code in the graph reads}}.
_READ: weakref.WeakKeyDictionary[tf.Graph, dict[str, tf.Variable]] = weakref.WeakKeyDictionary()


def list_read_averages() -> dict[str, tf.Variable]:
    """Return the averages that code in the graph reads, {name of the variable: average}."""
    return _READ.setdefault(graphs.outermost_graph(), {})


class Averaging(tf.compat.v1.train.Optimizer):
    """Updates averages of variables.

    For an embedding table, the caller passes no gradient, but the values that the changed rows had
    before the step. With these values, the optimizer makes up for the earlier steps in which the
    averages of the rows were not updated.
    """

    def __init__(self, decay: float, step: tf.Tensor, tables: Collection[str]):
        super().__init__(use_locking=False, name=AVERAGE)
        # In the first step, the decay is 0, so the average is set to the weights.
        self._decay = tf.minimum(decay, tf.where(step < 1, 0.0, (1 + step) / (10 + step)))
        self._log = tf.math.log(tf.maximum(tf.cast(self._decay, tf.float64), LEAST_DECAY))
        self._tables = tables

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        averages_in_use = list_read_averages()
        for variable in var_list:
            if (average := averages_in_use.get(patterns.variable_name(variable))) is not None:
                self._slot_dict(AVERAGE)[variable.op.graph, variable.op.name] = average
            self._zeros_slot(variable, AVERAGE, self.get_name())
            if patterns.shard_name(variable) in self._tables:
                zeros, rows = tf1.zeros_initializer(), variable.shape[:1]
                self._get_or_make_slot_with_initializer(
                    variable, zeros, rows, tf.float64, DECAY, DECAY
                )
        if self._tables:
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(np.zeros([]), DECAY, first)

    def _prepare(self) -> None:
        if self._tables:
            self._total_log = self._log_decay().read_value()

    def _log_decay(self) -> tf.Variable:
        with tf.init_scope():  # Finds the outermost graph from within a loop or a branch.
            graph = tf1.get_default_graph()
        return self._get_non_slot_variable(DECAY, graph)

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        del grad
        average = self.get_slot(var, AVERAGE)
        weights = var.read_value()
        return average.assign(weights + tf.cast(self._decay, var.dtype) * (average - weights))

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        # Each row occurs once, so TensorFlow need not add up the values of equal rows.
        average = self.get_slot(handle, AVERAGE)
        decays = self.get_slot(handle, DECAY)
        missed_decay = tf.exp(self._total_log - tf.gather(decays, indices))
        missed_decay = tf.reshape(missed_decay, [-1] + [1] * (grad.shape.rank - 1))
        old = grad + tf.cast(missed_decay, grad.dtype) * (tf.gather(average, indices) - grad)
        weights = tf.gather(handle, indices)
        new = weights + tf.cast(self._decay, grad.dtype) * (old - weights)
        # Without this dependency, rows could be written before `new` has read their old values.
        with tf.control_dependencies([new]):
            now = tf.fill(tf.shape(indices), self._total_log + self._log)
        return tf.group(
            average.scatter_update(tf.IndexedSlices(new, indices)),
            decays.scatter_update(tf.IndexedSlices(now, indices)),
        )

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        if not self._tables:
            return super()._finish(update_ops, name_scope)
        # The product of all decays changes only after all rows of the batch have used the old
        # product.
        with tf.control_dependencies(update_ops):
            return tf.group(self._log_decay().assign_add(self._log), name=name_scope)
