"""Finds the phase of a training step, its "word", that an op belongs to.

attribution = words.Attribution(graph)
attribution.find("balancing/gradients/network/trunk/MatMul_grad/MatMul")   # (NETWORK, True)

The scope of an op tells the word, or else the line of our code that made it. An op of a gradient
has the word of its forward op.
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
# Wall time outside of ops.
WAITING, SESSION, BETWEEN = "waiting for input", "session", "between calls"
# Time in which threads start ops, or run unrecorded small ops; it is divided among other words.
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
# {folder or file of mtl: word}, for ops outside of all scopes.
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
# Names by optimizers of TensorFlow, as in Adam/update_network/trunk/kernel/ResourceApplyAdam.
_OPTIMIZER = re.compile(r"(?:^|/)\w+/update_")
# Prefixes of ops that TensorFlow's graph optimizer rewrites.
_REWRITTEN = re.compile(r"\w+(?:Optimizer|Folding)/(?:\w+Rewrite_|\w+Stage_)?")
_OURS = os.path.dirname(os.path.abspath(mtl.__file__)) + os.sep
# A sum of gradients has the word of its terms, which are at most this many ops away.
_FAR = 8


class Place(NamedTuple):
    """The place that the time of an op counts for: its word, and True for a gradient."""

    word: str
    is_backward: bool = False


class Attribution:
    """Finds the words of the ops of a graph.

    Args:
      graph: the graph of the training.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self.find = functools.cache(self._find_place)

    def _find_place(self, name: str) -> Place:
        # The graph optimizer keeps the old name behind its prefix.
        name = _REWRITTEN.sub("", name)
        return _place_op(graphs.find_operation(self._graph, name), name)


def _place_op(operation: tf.Operation | None, name: str) -> Place:
    """Return the place of an op; `operation` is None if TensorFlow has rewritten the op."""
    # The op may lie in the body of a loop, which has separate names.
    forward = graphs.forward_operation(operation) if operation is not None else None
    if forward is not None:
        return Place(_place_op(forward, forward.name).word, is_backward=True)
    match = _GRADIENTS.match(name)
    if match:
        return Place(_find_scope(match.group(2)) or _follow_gradients(operation), is_backward=True)
    # Before scopes: the name of the variable follows, and would give the word of its layer.
    if _OPTIMIZER.search(name):
        return Place(UPDATE)
    return Place(_find_scope(name) or _find_line(operation) or OTHER)


def _follow_gradients(operation: tf.Operation | None) -> str:
    """Return the word of the first gradient among the inputs of an op on gradients."""
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
    # Gradients of no layer are summed or weighed.
    return BALANCING


def find_scope(name: str) -> str:
    """Return the scope of the model that an op or its gradient lies in, such as network/trunk."""
    found = _PART.search(name)
    return found.group(1) if found else ""


def find_pass(name: str) -> str | None:
    """Return the name of the backward pass of an op, such as gradients_2; None without one."""
    found = _GRADIENTS.match(name)
    return found.group(1) if found else None


def _find_scope(name: str) -> str | None:
    found = _SCOPE.search(name)
    return _SCOPES[found.group(1)] if found else None


def _find_line(operation: tf.Operation | None) -> str | None:
    """Return the word of the innermost line of our code that has a word."""
    # Ops that TensorFlow creates itself have no traceback.
    for frame in reversed(operation.traceback or () if operation is not None else ()):
        path = os.path.abspath(frame.filename)
        if path.startswith(_OURS):
            word = _ROOMS.get(path.removeprefix(_OURS).partition(os.sep)[0])
            if word:
                return word
    return None
