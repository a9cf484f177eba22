"""Finds the graph around a loop or a branch, and ops by their nodes, which `tf.Graph` hides."""

from __future__ import annotations

import re
from typing import Any

from mtl.deferred import tf

_IN_CALLED = re.compile(r"(.+?)/(?:body|cond|then|else)/_\d+/(.+)")
_CALLED = ("body", "cond", "then_branch", "else_branch", "f")


def outermost_graph() -> tf.Graph:
    """Return the graph that is being built, also from within its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    # Only graphs of functions, such as bodies of loops, have this attribute.
    while hasattr(graph, "outer_graph"):
        graph = graph.outer_graph
    return graph


def depends_on(tensor: tf.Tensor, given: Any) -> bool:
    """Return True if a tensor depends on one of these nested tensors of the same graph.

    Args:
      tensor: a tensor.
      given: tensors in any nesting, also ragged and sparse ones.
    """
    known = {one.ref() for one in tf.nest.flatten(given, expand_composites=True)}
    left, seen = [tensor], set()
    while left:
        one = left.pop()
        if one.ref() in known:
            return True
        if one.op not in seen:
            seen.add(one.op)
            left += one.op.inputs
    return False


def find_operation(graph: tf.Graph, name: str) -> tf.Operation | None:
    """Return the operation of a node, also of a node in a loop or a branch.

    Args:
      graph: the graph, or the graph of a function.
      name: the name of a node, such as "loop/body/_12/add" for one in the body of a loop.

    Returns:
      The operation; None if there is none.
    """
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        found = _IN_CALLED.fullmatch(name)
    caller = find_operation(graph, found.group(1)) if found else None
    if found is None or caller is None:
        return None
    for key in _CALLED:
        if key in caller.node_def.attr:
            called = caller.graph._get_function(caller.node_def.attr[key].func.name)
            inside = getattr(called, "graph", None)
            operation = inside and find_operation(inside, found.group(2))
            if operation is not None:
                return operation
    return None


def forward_operation(operation: tf.Operation) -> tf.Operation | None:
    """Return the forward operation of an operation of a gradient; None for others."""
    forward = getattr(operation, "_original_op", None)
    if forward is None and operation._control_flow_context is None:
        return None
    return forward
