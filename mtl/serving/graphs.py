"""Lets code rewrite a GraphDef, with nodes by name and constants as arrays.

graph = graphs.Graph(graph_def)
graph.value("network/kernel")                # the array of a constant, None for other nodes
graph.set_constant("scaled", kernel * 2)
graph.pruned(["head/price/value"])           # the GraphDef that these nodes depend on
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf, tf1


class Graph:
    """The nodes of a GraphDef.

    A reference is the name of a node for its first output, or "<name>:1" for its second output.

    Args:
      graph_def: the GraphDef, whose nodes this class changes.
    """

    def __init__(self, graph_def: tf.compat.v1.GraphDef):
        self.graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        for node in graph_def.node:
            node.attr.pop("_class", None)  # `_class` may name removed variables.

    def value(self, reference: str) -> np.ndarray | None:
        """Return the array of a numeric constant.

        Args:
          reference: the name of the node.

        Returns:
          The array; None if the node is not a constant, holds texts, or does not exist.
        """
        node = self.nodes.get(reference)
        if node is None or node.op != "Const" or node.attr["dtype"].type == tf.string:
            return None
        return tf.make_ndarray(node.attr["value"].tensor)

    def readers(self) -> dict[str, list[Any]]:
        """Return {node: its readers}; a reader with two inputs from a node is listed twice."""
        readers = collections.defaultdict(list)
        for node in self.nodes.values():
            for reference in node.input:
                readers[name_of(reference)].append(node)
        return readers

    def set(self, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Create or replace a node.

        Args:
          name: the name of the node.
          op: the name of the op, such as "Mul".
          inputs: references to the inputs.
          **attributes: attributes of the node, each a DType, an array for a tensor, or an
            AttrValue.

        Returns:
          The name of the node.
        """
        node = tf1.NodeDef(name=name, op=op, input=inputs)
        for key, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[key].type = value.as_datatype_enum
            elif isinstance(value, np.ndarray):
                tensor = tf.make_tensor_proto(value, shape=value.shape)
                node.attr[key].tensor.CopyFrom(tensor)
            else:
                node.attr[key].CopyFrom(value)
        self.nodes[name] = node
        return name

    def set_constant(self, name: str, value: np.ndarray) -> str:
        """Create or replace a constant.

        Args:
          name: the name of the node.
          value: an array or a number, whose dtype the constant gets.

        Returns:
          The name of the node.
        """
        # Convert numbers, because the sum of two NumPy arrays of shape [] is a number.
        value = np.asarray(value)
        return self.set(name, "Const", [], dtype=tf.as_dtype(value.dtype), value=value)

    def pruned(self, names: Iterable[str]) -> tf.compat.v1.GraphDef:
        """Return a GraphDef with some nodes and all nodes that they depend on.

        Args:
          names: the names of nodes, or references to nodes.

        Returns:
          A copy, in which the nodes keep their order; the graph does not change.
        """
        pending, needed = list(names), {}
        while pending:
            name = name_of(pending.pop())
            if name not in needed:
                needed[name] = self.nodes[name]
                pending += needed[name].input
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        del graph_def.node[:]
        # Keep the order of the nodes; new nodes come last.
        graph_def.node.extend(node for name, node in self.nodes.items() if name in needed)
        return graph_def


def order_operations(graph: tf.Graph) -> list[tf.Operation]:
    """Sort all operations of a graph, with inputs before the operations that read them.

    In a loop of TensorFlow 1, one of the operations comes before its input, because the inputs form
    a cycle.

    Args:
      graph: the graph, which does not change.
    """
    order, visited = [], set()
    # Use a stack instead of recursion, because graphs are deeper than Python's recursion limit.
    stack = [(operation, False) for operation in reversed(graph.get_operations())]
    while stack:
        operation, has_inputs = stack.pop()
        if has_inputs:
            order.append(operation)
        elif operation not in visited:
            visited.add(operation)
            stack.append((operation, True))
            stack += [(tensor.op, False) for tensor in operation.inputs]
    return order


def attribute(node: tf.compat.v1.NodeDef, key: str) -> Any:
    """Return an attribute of a node.

    Args:
      node: the node, which does not change.
      key: the name of the attribute.

    Returns:
      The AttrValue; an empty AttrValue if the node lacks the attribute.
    """
    return node.attr[key] if key in node.attr else tf1.AttrValue()


def name_of(reference: str) -> str:
    """Return the name of the node in a reference such as `^name`, `name` or `name:1`."""
    return reference.lstrip("^").partition(":")[0]
