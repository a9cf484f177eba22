"""Looks into the functions that a graph calls; only TensorFlow's private part gives them by name.

for operation in functions.called_operations(tf.compat.v1.get_default_graph()): ...
"""

from collections.abc import Iterator

import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def called_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield the operations of each `tf.function` the graph calls, and of those called in turn."""
    for operation in graph.get_operations():
        if operation.type in _CALLS:
            called = graph._get_function(operation.get_attr("f").name)
            # A function of a SavedModel that was loaded may be known by its definition alone.
            if isinstance(getattr(called, "graph", None), tf.Graph):
                yield from called.graph.get_operations()
                yield from called_operations(called.graph)
