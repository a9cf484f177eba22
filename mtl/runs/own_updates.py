"""Checks that training steps run the update ops that your own network has built.

training.Training(made, "runs/a", on_start, observers=[*observers, own_updates.observe])

If your network calls a batch norm of Keras, the graph has ops that update the moving averages, but
no training step runs these ops. `networks.KerasModel` and the layers of `mtl` add the updates of
moving averages to UPDATE_OPS.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import replicas
from mtl.tf_internals import graphs, keras_layers
from mtl.variables import freezing

_log = logging.getLogger(__name__)
_FIX = "Use networks.KerasModel for layers of Keras, or add the op to UPDATE_OPS."
_SHOWN = 3
_SECOND_PASS = re.compile(r"auxiliary/[^/]+/network/")
_AVERAGES = ("/moving_mean", "/moving_variance")  # Suffixes of names of averages.
_ASSIGNING = re.compile(r"Assign(Add|Sub)?VariableOp|ResourceScatter\w+|ResourceStridedSliceAssign")


def observe(run: types.ObservedRun) -> OwnUpdates:
    """Return an observer that checks the training steps of a run."""
    del run
    return OwnUpdates()


class OwnUpdates(types.RunObserver):
    """Checks, for each training step that is built, that it runs the network's update ops."""

    def list_extensions(self, model: Any, statistics: Any) -> list[types.MakeExtension]:
        del model, statistics
        return [_RequireUpdates]


class _RequireUpdates(types.StepExtension):
    """Fails if the step runs no update of a batch norm; warns of other updates that do not run."""

    suits_stacks = True

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels
        self._earlier = {id(variable) for variable in tf1.global_variables()}
        self._passed: list[tf.Operation] | None = None
        self._of_keras: set[str] = set()
        self._is_first = True

    def wrap_forward(self, forward: types.Forward) -> types.Forward:
        """Fail if a later forward pass creates new variables, as Keras layers do."""

        def run(features: types.Tensors, labels: types.Tensors) -> Any:
            result = forward(features, labels)
            new = self._find_variables() - self._of_keras
            if self._is_first:  # Losses may create variables in the first pass.
                new = {name for name in new if _SECOND_PASS.match(name)}
                self._is_first = False
            fix = "Use networks.KerasModel for layers of Keras, or get_variable."
            rule = "create no variables"
            checks.require(not new, "a second pass over the network", rule, _show_few(new), fix)
            self._of_keras = self._find_variables()
            return result

        return run

    @contextlib.contextmanager
    def around_network(self) -> Iterator[Mapping[str, Any]]:
        """Record the ops of the first forward pass; updates in later passes are not run."""
        graph = tf1.get_default_graph()
        before = len(graph.get_operations())
        yield {}
        if self._passed is None:
            self._passed = graph.get_operations()[before:]
            self._of_keras = self._find_variables()
            if self._of_keras:
                text = "%s: created without get_variable. If these variables belong to layers of "
                text += "Keras, their regularizers have no effect: use networks.KerasModel."
                _log.warning(text, _show_few(self._of_keras))

    def _find_variables(self) -> set[str]:
        """Return the names of trained variables that no `get_variable` has created."""
        if replicas.count() > 1:  # Copies of variables on other replicas have other names.
            return set()
        new = [v for v in tf1.trainable_variables() if id(v) not in self._earlier]
        return set(keras_layers.find_own_variables(new))

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Check that the step runs the update ops of the pass; return the step's op unchanged."""
        is_run, assignments = graphs.find_ancestors(moved), self._list_assignments()
        idle = [op for op in assignments if op not in is_run]
        averages = [op.name for op in idle if op.inputs[0].op.name.endswith(_AVERAGES)]
        rule = "be run by the training step"
        checks.require(not averages, "each update of an average", rule, _show_few(averages), _FIX)
        if idle:  # Only warn, because a hook may run these updates.
            names = _show_few([op.name for op in idle])
            _log.warning("The training step does not run these updates of variables: %s.", names)
        self._require_frozen({op.inputs[0].op.name for op in assignments})
        return moved

    def _require_frozen(self, changed: Collection[str]) -> None:
        """Fail if a step changes the averages of a batch norm that is frozen in all steps."""
        variables = [v for v in tf1.global_variables() if v.op.name in changed]
        averages = [v for v in variables if v.op.name.endswith(_AVERAGES)]
        # Layers of `mtl` build no update for averages that are frozen in all steps.
        frozen = [v.op.name for v in averages if freezing.averages_move(v) is False]
        rule, fix = "not be changed by the network", "mtl.layers.batch_norm heeds Freezing."
        checks.require(not frozen, "frozen variables", rule, _show_few(frozen), fix)

    def _list_assignments(self) -> list[tf.Operation]:
        """Return ops of the first forward pass that assign to variables, except first values."""
        assignments = [op for op in self._passed or () if _ASSIGNING.fullmatch(op.type)]
        # Each copy of a variable on a replica has an op that assigns the first value.
        return [op for op in assignments if op.name != f"{op.inputs[0].op.name}/Assign"]


def _show_few(names: Collection[str]) -> str:
    few = sorted(names)[:_SHOWN]
    return ", ".join(few) + (", ..." if len(names) > _SHOWN else "")
