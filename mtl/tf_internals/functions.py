"""Lists the operations in functions that a graph calls, which the public API does not list.

for operation in functions.called_operations(tf.compat.v1.get_default_graph()): ...
"""

from __future__ import annotations

from collections.abc import Iterator

from mtl.deferred import tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def called_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield the operations of all functions that a graph calls, directly or indirectly.

    If a graph calls a function twice, the operations of the function are yielded twice.
    """
    for operation in graph.get_operations():
        if operation.type in _CALLS:
            function = graph._get_function(operation.get_attr("f").name)
            # A function of a loaded SavedModel may have no graph, only a definition.
            if isinstance(getattr(function, "graph", None), tf.Graph):
                yield from function.graph.get_operations()
                yield from called_operations(function.graph)
