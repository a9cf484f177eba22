"""Refuses a network of your own whose variables have updates that no step runs.

training.Training(made, "runs/a", on_start, observers=[*observers, own_updates.observe])

A batch norm of Keras, called in a network of your own, creates ops that update its averages, and
nothing runs these ops. `networks.KerasModel` and the layers of `mtl` add such ops to UPDATE_OPS.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import replicas
from mtl.tf_internals import keras_layers

_log = logging.getLogger(__name__)
_FIX = "Use networks.KerasModel for layers of Keras, or add the op to UPDATE_OPS."
_SHOWN = 3
_ASSIGNING = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def observe(run: types.ObservedRun) -> OwnUpdates:
    """Return the observer of a run with parts of your own."""
    del run
    return OwnUpdates()


class OwnUpdates(types.RunObserver):
    """Checks the updates of each training step that is built."""

    def list_extensions(self, model: Any, statistics: Any) -> list[types.MakeExtension]:
        del model, statistics
        return [_RequireUpdates]


class _RequireUpdates(types.StepExtension):
    """Fails if an op of the step assigns to a variable, and the step does not run the op."""

    suits_stacks = True

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels
        self._graph = tf1.get_default_graph()
        self._earlier = {id(variable) for variable in tf1.global_variables()}
        self._passed: list[tf.Operation] = []

    @contextlib.contextmanager
    def around_network(self) -> Iterator[Mapping[str, Any]]:
        """Note the ops of the first pass: auxiliary losses withhold the updates of later passes."""
        before = len(self._graph.get_operations())
        yield {}
        if not self._passed:
            self._passed = self._graph.get_operations()[before:]

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Check the ops of the step, and return the op that runs them unchanged."""
        is_run = _find_ancestors(moved)
        idle = [op.name for op in self._list_assignments() if op not in is_run]
        rule = "be run by the training step"
        checks.require(not idle, "each update of a variable", rule, ", ".join(idle[:_SHOWN]), _FIX)
        if replicas.count() == 1:  # Copies on other replicas have other names.
            self._tell_of_keras()
        return moved

    def _list_assignments(self) -> list[tf.Operation]:
        """Return the ops of the pass that assign to a variable, without its first value."""
        initializers = {variable.initializer for variable in tf1.global_variables()}
        assignments = [op for op in self._passed if op.type in _ASSIGNING]
        return [op for op in assignments if op not in initializers]

    def _tell_of_keras(self) -> None:
        """Warn of trained variables that no `get_variable` has created, such as those of Keras."""
        new = [v for v in tf1.trainable_variables() if id(v) not in self._earlier]
        names = keras_layers.find_own_variables(new)
        if names:
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            reason = "regularizers of Keras layers have no effect outside of networks.KerasModel"
            _log.warning(
                "The network creates variables without get_variable, %s: %s.", shown, reason
            )


def _find_ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Return all ops of a graph that run if an op runs."""
    pending, found = [operation], set()
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += [*current.control_inputs, *(tensor.op for tensor in current.inputs)]
    return found
