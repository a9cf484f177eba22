"""Finds the phase of a training step that an op belongs to; the code calls a phase a "word".

attribution = words.Attribution(graph)
attribution.find("balancing/gradients/network/trunk/MatMul_grad/MatMul")   # (NETWORK, True)

The phase of an op follows from its scope, or else from the line of this package that created the
op. An op of a gradient belongs to the same phase as its forward op.
"""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

import mtl
from mtl.deferred import tf
from mtl.tf_internals import graphs

ENCODE, NETWORK, HEADS = "encode", "network", "heads"
AUXILIARY, BALANCING, UPDATE = "auxiliary losses", "weighting, surgery", "update"
OTHER = "other ops"
OPS = (ENCODE, NETWORK, HEADS, AUXILIARY, BALANCING, UPDATE, OTHER)
# Phases for wall time in which no op runs.
WAITING, SESSION, BETWEEN = "waiting for input", "session", "between calls"
# Time in which threads start ops, or run small ops that the profiler skips. The time of the phase
# "starting" is divided among other phases.
STARTING = "starting"
ALL = (*OPS, WAITING, SESSION, BETWEEN)

_SCOPES = {
    "features": ENCODE,
    "network": NETWORK,
    "head": HEADS,
    "auxiliary": AUXILIARY,
    "balancing": BALANCING,
    "update": UPDATE,
}
# {folder or file of mtl: phase}, for ops outside of all scopes.
_ROOMS = {
    "features": ENCODE,
    "histories": ENCODE,
    "networks": NETWORK,
    "mixing.py": NETWORK,
    "heads": HEADS,
    "auxiliary": AUXILIARY,
    "balancing": BALANCING,
    "optimization": UPDATE,
    "sparsity": UPDATE,
}
_SCOPE = re.compile(rf"(?:^|/)({'|'.join(_SCOPES)})(?=/)")
_PART = re.compile(r"(?:^|/)((?:features|network|head|auxiliary)/[^/]+)(?=/)")
_GRADIENTS = re.compile(r"(?:^|.*/)(gradients(?:_\d+)?)/(.*)")
# TensorFlow's optimizers name ops like Adam/update_network/trunk/kernel/ResourceApplyAdam.
_OPTIMIZER = re.compile(r"(?:^|/)\w+/update_")
# The prefixes that TensorFlow's graph optimizer adds to the names of rewritten ops.
_REWRITTEN = re.compile(r"\w+(?:Optimizer|Folding)/(?:\w+Rewrite_|\w+Stage_)?")
_OURS = os.path.dirname(os.path.abspath(mtl.__file__)) + os.sep
# A sum of gradients belongs to the phase of its terms, which are searched at most this number of
# ops before the sum.
_FAR = 8


class Place(NamedTuple):
    """The phase of a training step to which an op belongs, forward or backward.

    Attributes:
      word: the phase that the op belongs to.
      is_backward: True if the op computes a gradient.
    """

    word: str
    is_backward: bool = False


class Attribution:
    """Finds the phases of the ops of a graph.

    Args:
      graph: the graph of the training.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self.find = functools.cache(self._find_place)

    def _find_place(self, name: str) -> Place:
        # Remove the prefix that TensorFlow's graph optimizer has put before the name.
        name = _REWRITTEN.sub("", name)
        return _place_op(graphs.find_operation(self._graph, name), name)


def _place_op(operation: tf.Operation | None, name: str) -> Place:
    """Return the `Place` of an op; `operation` is None if TensorFlow has rewritten the op."""
    # Use the link to the forward op, because names in the body of a loop do not show this op.
    forward = graphs.forward_operation(operation) if operation is not None else None
    if forward is not None:
        return Place(_place_op(forward, forward.name).word, is_backward=True)
    match = _GRADIENTS.match(name)
    if match:
        return Place(_find_scope(match.group(2)) or _follow_gradients(operation), is_backward=True)
    # Check for the optimizer first: the op's name also has the scope of a variable, which would
    # lead to the phase of a layer.
    if _OPTIMIZER.search(name):
        return Place(UPDATE)
    return Place(_find_scope(name) or _find_line(operation) or OTHER)


def _follow_gradients(operation: tf.Operation | None) -> str:
    """Return the phase of the nearest gradient among the inputs of an op that sums gradients."""
    for _ in range(_FAR):
        if operation is None or not operation.inputs:
            break
        operation = operation.inputs[0].op
        match = _GRADIENTS.match(operation.name)
        forward = graphs.forward_operation(operation)
        if forward is not None:
            return _place_op(forward, forward.name).word
        word = _find_scope(match.group(2)) if match else None
        if word:
            return word
    # An op on gradients that belongs to no layer sums or weighs gradients.
    return BALANCING


def find_scope(name: str) -> str:
    """Return the scope of the model that an op belongs to.

    Args:
      name: the name of the op, or the name of the op's gradient, which contains the op's name.

    Returns:
      A scope such as "network/trunk"; "" if the op lies outside of the model.
    """
    match = _PART.search(name)
    return match.group(1) if match else ""


def find_pass(name: str) -> str | None:
    """Return the backward pass that an op belongs to.

    Args:
      name: the name of the op.

    Returns:
      The name of the pass, such as "gradients_2"; None for an op that computes no gradient.
    """
    match = _GRADIENTS.match(name)
    return match.group(1) if match else None


def _find_scope(name: str) -> str | None:
    match = _SCOPE.search(name)
    return _SCOPES[match.group(1)] if match else None


def _find_line(operation: tf.Operation | None) -> str | None:
    """Return the phase of the innermost line of this package in the traceback of an op."""
    # Ops that TensorFlow itself creates have no traceback.
    for frame in reversed(operation.traceback or () if operation is not None else ()):
        path = os.path.abspath(frame.filename)
        if path.startswith(_OURS):
            word = _ROOMS.get(path.removeprefix(_OURS).partition(os.sep)[0])
            if word:
                return word
    return None
