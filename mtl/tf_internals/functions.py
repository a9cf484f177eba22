"""Finds the functions that a graph calls by name, with TensorFlow's private API.

for operation in functions.called_operations(tf.compat.v1.get_default_graph()): ...
"""

from __future__ import annotations

from collections.abc import Iterator

from mtl.deferred import tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def called_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield the operations of all functions that the graph calls, directly or not."""
    for operation in graph.get_operations():
        if operation.type in _CALLS:
            called = graph._get_function(operation.get_attr("f").name)
            # The graph may know a function of a loaded SavedModel only by its definition.
            if isinstance(getattr(called, "graph", None), tf.Graph):
                yield from called.graph.get_operations()
                yield from called_operations(called.graph)
