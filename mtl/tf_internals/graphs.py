"""Finds graphs and ops of loops and branches, which the public API does not show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mtl.deferred import tf

_IN_CALLED = re.compile(r"(.+?)/(?:body|cond|then|else)/_\d+/(.+)")
_CALLED = ("body", "cond", "then_branch", "else_branch", "f")


def outermost_graph() -> tf.Graph:
    """Return the outermost graph that is being built, even inside a loop or a branch."""
    graph = tf.compat.v1.get_default_graph()
    # Only graphs of functions, such as bodies of loops, have the attribute `outer_graph`.
    while hasattr(graph, "outer_graph"):
        graph = graph.outer_graph
    return graph


def depends_on(tensor: tf.Tensor, given: Any) -> bool:
    """Return True if a tensor depends on any of several other tensors.

    Args:
      tensor: a tensor.
      given: tensors of the same graph in any nesting, also ragged and sparse tensors.
    """
    sources = {source.ref() for source in tf.nest.flatten(given, expand_composites=True)}
    pending, visited = [tensor], set()
    while pending:
        current = pending.pop()
        if current.ref() in sources:
            return True
        if current.op not in visited:
            visited.add(current.op)
            pending += current.op.inputs
    return False


def find_gradient_sources(tensor: tf.Tensor, *sources: Sequence[tf.Tensor]) -> tuple[bool, ...]:
    """Find the sources that the gradient of a tensor reaches.

    Args:
      tensor: a tensor.
      sources: several lists of tensors of the same graph; the search ends at each source, and at
        each `tf.stop_gradient`.

    Returns:
      For each list, True if the gradient reaches one of its tensors.
    """
    list_of = {source.ref(): index for index, some in enumerate(sources) for source in some}
    found = set()
    pending, visited = [tensor], set()
    while pending:
        current = pending.pop()
        if current.ref() in list_of:
            found.add(list_of[current.ref()])
        elif not (current.dtype.is_floating or current.dtype.is_complex):
            continue  # Gradients do not pass integers, such as the result of an argmax.
        elif current.op not in visited and current.op.type != "StopGradient":
            visited.add(current.op)
            pending += current.op.inputs
    return tuple(index in found for index in range(len(sources)))


def find_ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Return an op, and all ops of its graph that run before it.

    Args:
      operation: the op.
    """
    pending, found = [operation], set()
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += [*current.control_inputs, *(tensor.op for tensor in current.inputs)]
    return found


def find_operation(graph: tf.Graph, name: str) -> tf.Operation | None:
    """Return the operation with the name of a node, which may be in a loop or a branch.

    Args:
      graph: the graph, or the graph of a function.
      name: the name of a node, such as "loop/body/_12/add" for a node in the body of a loop.

    Returns:
      The operation; None if the node does not exist.
    """
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        match = _IN_CALLED.fullmatch(name)
    caller = find_operation(graph, match.group(1)) if match else None
    if match is None or caller is None:
        return None
    for key in _CALLED:
        if key in caller.node_def.attr:
            function = caller.graph._get_function(caller.node_def.attr[key].func.name)
            inner = getattr(function, "graph", None)
            operation = inner and find_operation(inner, match.group(2))
            if operation is not None:
                return operation
    return None


def forward_operation(operation: tf.Operation) -> tf.Operation | None:
    """Return the forward operation to which an operation of a gradient belongs; else None."""
    forward = getattr(operation, "_original_op", None)
    if forward is None and operation._control_flow_context is None:
        return None
    return forward
