"""The graph around the bodies of loops and branches, which `tf.Graph` does not tell."""

import tensorflow as tf


def outermost_graph() -> tf.Graph:
    """Return the graph that is being built, also from within its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        graph = graph.outer_graph
    return graph
