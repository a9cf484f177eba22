"""A GraphDef for rewriting: nodes by name, readers of nodes, constants as arrays.

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
    """The nodes of a GraphDef; references are names of nodes, with ":1" for further outputs."""

    def __init__(self, graph_def: tf.compat.v1.GraphDef):
        self.graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        for node in graph_def.node:
            node.attr.pop("_class", None)  # It may name variables that are gone.

    def value(self, reference: str) -> np.ndarray | None:
        """Return the array of a numeric constant; None for other nodes."""
        node = self.nodes.get(reference)
        if node is None or node.op != "Const" or node.attr["dtype"].type == tf.string:
            return None
        return tf.make_ndarray(node.attr["value"].tensor)

    def readers(self) -> dict[str, list[Any]]:
        """Return {name: the nodes that read it}; a node appears once for each such input."""
        readers = collections.defaultdict(list)
        for node in self.nodes.values():
            for reference in node.input:
                readers[name_of(reference)].append(node)
        return readers

    def set(self, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Make or replace a node; attributes may be types or arrays.

        Args:
          name: the name of the node.
          op: its operation, such as "Mul".
          inputs: references: names of nodes, with ":1" for a further output.
          **attributes: a DType, an array for a tensor, or an AttrValue.

        Returns:
          The name.
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
        """Make or replace a constant."""
        # NumPy turns the sum of two arrays without axes into a number.
        value = np.asarray(value)
        return self.set(name, "Const", [], dtype=tf.as_dtype(value.dtype), value=value)

    def pruned(self, names: Iterable[str]) -> tf.compat.v1.GraphDef:
        """Return the nodes that these nodes depend on, with themselves."""
        waiting, kept = list(names), {}
        while waiting:
            name = name_of(waiting.pop())
            if name not in kept:
                kept[name] = self.nodes[name]
                waiting += kept[name].input
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        del graph_def.node[:]
        # Keep the old order; new nodes come last.
        graph_def.node.extend(node for name, node in self.nodes.items() if name in kept)
        return graph_def


def order_operations(graph: tf.Graph) -> list[tf.Operation]:
    """Return the operations, each after its inputs; operations inside loops are left out."""
    ordered, seen = [], set()
    # A stack of its own: graphs are deeper than Python's recursion may go.
    waiting = [(operation, False) for operation in reversed(graph.get_operations())]
    while waiting:
        operation, is_done = waiting.pop()
        if is_done:
            ordered.append(operation)
        elif operation not in seen:
            seen.add(operation)
            waiting.append((operation, True))
            waiting += [(tensor.op, False) for tensor in operation.inputs]
    return ordered


def attribute(node: tf.compat.v1.NodeDef, key: str) -> Any:
    """Return the attribute, or an empty one: asking the node directly would add it."""
    return node.attr[key] if key in node.attr else tf1.AttrValue()


def name_of(reference: str) -> str:
    """Return the name of the node in `^name`, `name` or `name:1`."""
    return reference.lstrip("^").partition(":")[0]
