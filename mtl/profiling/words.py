"""Which word of a training step an op belongs to.

attribution = words.Attribution(graph)
attribution.find("balancing/gradients/network/trunk/MatMul_grad/MatMul")   # (NETWORK, True)

The scope of an op tells, else the line of ours that made it. An op of a gradient belongs to the op
that it is the gradient of.
"""

import functools
import os
import re
from typing import NamedTuple

import tensorflow as tf

import mtl
from mtl.compat import graphs

ENCODE, NETWORK, HEADS = "encode", "network", "heads"
AUXILIARY, BALANCING, UPDATE = "auxiliary losses", "weighting, surgery", "update"
OTHER = "other ops"
OPS = (ENCODE, NETWORK, HEADS, AUXILIARY, BALANCING, UPDATE, OTHER)
# Of the wall time, what no op takes.
WAITING, SESSION, BETWEEN = "waiting for input", "session", "between calls"
# Threads that start ops, or run ones too small to be told of: no row, but divided among them.
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
# Of an optimizer of TensorFlow: Adam/update_network/trunk/kernel/ResourceApplyAdam.
_OPTIMIZER = re.compile(r"(?:^|/)\w+/update_")
# Ahead of the names of ops that TensorFlow makes of others.
_REWRITTEN = re.compile(r"\w+(?:Optimizer|Folding)/(?:\w+Rewrite_|\w+Stage_)?")
_OURS = os.path.dirname(os.path.abspath(mtl.__file__)) + os.sep
# A gradient that adds others up belongs to what they belong to, which is few ops away.
_FAR = 8


class Place(NamedTuple):
    """Where the time of an op is counted: its word, and whether it is a gradient's."""

    word: str
    is_backward: bool = False


class Attribution:
    """Finds the words of the ops of a graph.

    Args:
      graph: of the training.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self.find = functools.cache(self._find)

    def _find(self, name: str) -> Place:
        name = _REWRITTEN.sub("", name)
        return _place(graphs.find_operation(self._graph, name), name)


def _place(operation: tf.Operation | None, name: str) -> Place:
    """Return the place of an op, which is None where TensorFlow has made another of it."""
    # The op may lie in the body of a loop, where names are not those of the whole graph.
    forward = graphs.forward_operation(operation) if operation is not None else None
    if forward is not None:
        return Place(_place(forward, forward.name).word, is_backward=True)
    found = _GRADIENTS.match(name)
    if found:
        return Place(_find_scope(found.group(2)) or _follow(operation), is_backward=True)
    if _OPTIMIZER.search(name):
        return Place(UPDATE)
    return Place(_find_scope(name) or _find_line(operation) or OTHER)


def _follow(operation: tf.Operation | None) -> str:
    """Return the word of the first gradient that an op of gradients takes."""
    for _ in range(_FAR):
        if operation is None or not operation.inputs:
            break
        operation = operation.inputs[0].op
        found = _GRADIENTS.match(operation.name)
        forward = graphs.forward_operation(operation)
        if forward is not None:
            return _place(forward, forward.name).word
        word = _find_scope(found.group(2)) if found else None
        if word:
            return word
    return BALANCING


def find_scope(name: str) -> str:
    """Return the scope of the model that an op or its gradient lies in, such as network/trunk."""
    found = _PART.search(name)
    return found.group(1) if found else ""


def find_pass(name: str) -> str | None:
    """Return which of several passes back an op belongs to, such as gradients_2; None for none."""
    found = _GRADIENTS.match(name)
    return found.group(1) if found else None


def _find_scope(name: str) -> str | None:
    found = _SCOPE.search(name)
    return _SCOPES[found.group(1)] if found else None


def _find_line(operation: tf.Operation | None) -> str | None:
    """Return the word of the innermost line of ours that belongs to one."""
    # Ops that TensorFlow makes by itself have no lines.
    for frame in reversed(operation.traceback or () if operation is not None else ()):
        path = os.path.abspath(frame.filename)
        if path.startswith(_OURS):
            word = _ROOMS.get(path.removeprefix(_OURS).partition(os.sep)[0])
            if word:
                return word
    return None
