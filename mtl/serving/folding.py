"""Folds an export: computes constants once, and draws batch norm into the layer before.

graph = folding.fold_graph(session, ["head/price/value"])
# W x + b, scaled and shifted -> one W and one b, and all of them constants
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mtl.deferred import tf, tf1
from mtl.serving import graphs, rows

_NUMBERS = ("float32", "int32", "int64", "bool")
# A folded constant may have this many elements more than its inputs.
_FREE_ELEMENTS = 1024
_ADDITIONS = ("Add", "AddV2", "BiasAdd")
_PRODUCTS = ("MatMul", "Conv2D")


def fold_graph(session: tf.compat.v1.Session, names: Collection[str]) -> graphs.Graph:
    """Return the folded graph that these nodes depend on, with variables as constants.

    Args:
      session: a session with the variables of a SavedModel.
      names: the nodes that the graph must compute, such as outputs, inputs and initialisers.
    """
    frozen = tf1.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), sorted(names)
    )
    graph = graphs.Graph(frozen)
    fold_constants(graph)
    return fold_scales(graph, names)


def fold_constants(graph: graphs.Graph) -> None:
    """Replace nodes that depend only on constants by their values, unless these need more room."""
    values = _compute_values(graph)
    for name, value in values.items():
        inputs = [
            values.get(reference, graph.value(reference)) for reference in graph.nodes[name].input
        ]
        # A broadcast or a range may be far larger than what it is made of.
        if value.size <= _FREE_ELEMENTS + sum(given.size for given in inputs if given is not None):
            graph.set_constant(name, value)


def _compute_values(graph: graphs.Graph) -> dict[str, np.ndarray]:
    """Return {name: value} of all nodes that depend only on constants."""
    with tf.Graph().as_default() as built, tf1.Session(config=rows.on_cpu()) as session:
        tf.import_graph_def(graph.pruned(graph.nodes), name="")
        # Operations come after their inputs, so one pass finds whole chains.
        fixed, outputs = set(), {}
        for operation in graphs.order_operations(built):
            if graph.value(operation.name) is not None:
                fixed.add(operation.name)
            elif _is_pure(operation) and all(t.op.name in fixed for t in operation.inputs):
                fixed.add(operation.name)
                outputs[operation.name] = operation.outputs[0]
        return {name: np.asarray(value) for name, value in session.run(outputs).items()}


def _is_pure(operation: tf.Operation) -> bool:
    return (
        bool(operation.inputs)
        and len(operation.outputs) == 1
        and operation.outputs[0].dtype in _NUMBERS
        and not operation.control_inputs
        and not operation.op_def.is_stateful
        and not operation.type.startswith("Placeholder")
        # Loops of TensorFlow 1: a value inside of them depends on the round.
        and operation.type not in ("Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond")
    )


def fold_scales(graph: graphs.Graph, names: Collection[str]) -> graphs.Graph:
    """Fold a multiplication and an addition for each channel into the layer before.

    Batch norm in inference is such a pair: `y = s x + t`. After `x = W h + b` it becomes
    `y = (W s) h + (b s + t)`. The last of the nodes keeps its name, so its readers stay unchanged.

    Args:
      graph: the graph, which is rewritten.
      names: the names of the nodes that the graph must compute.

    Returns:
      The graph that these nodes depend on.
    """
    for node in list(graph.nodes.values()):
        if node.op.startswith("FusedBatchNorm"):
            _spell_out(graph, node)
    # A fold may bring the next pair together: go on until nothing changes.
    while True:
        graph = graphs.Graph(graph.pruned(names))
        readers = graph.readers()
        if not sum(_rewrite_node(graph, name, readers) for name in list(graph.nodes)):
            return graph


def _rewrite_node(graph: graphs.Graph, name: str, readers: Mapping[str, list[Any]]) -> bool:
    """Apply the rule that fits a node, if there is one; return whether it did."""
    node = graph.nodes[name]
    if node.op not in ("Mul", *_ADDITIONS):
        return False
    before, constant = _split(graph, node)
    # A value with other readers would be computed twice; new nodes wait for the next round.
    if before is None or constant is None or len(readers.get(before, ())) != 1:
        return False
    inner = graph.nodes[before]
    if node.op == "Mul" and inner.op in _PRODUCTS:
        return _scale_product(graph, name, inner, constant)
    return inner.op in _ADDITIONS and _swap_operations(graph, node, inner, constant)


def _swap_operations(
    graph: graphs.Graph,
    node: tf.compat.v1.NodeDef,
    addition: tf.compat.v1.NodeDef,
    constant: np.ndarray,
) -> bool:
    """(x + b) * s -> x * s + (b s), and (x + b) + t -> x + (b + t)."""
    first, shift = _split(graph, addition)
    if first is None:
        return False
    if node.op == "Mul":
        factor = graph.set_constant(f"{node.name}/factor", constant)
        first = graph.set(f"{node.name}/scaled", "Mul", [first, factor], T=node.attr["T"])
        moved = shift * constant
    else:
        moved = shift + constant
    total = graph.set_constant(f"{node.name}/shift", moved)
    graph.set(node.name, "AddV2", [first, total], T=node.attr["T"])
    return True


def _split(graph: graphs.Graph, node: tf.compat.v1.NodeDef) -> tuple[str | None, np.ndarray | None]:
    """Return the computed input, and the constant for each channel; None for a missing one."""
    if not _channels_last(node) or len(node.input) != 2:
        return None, None
    # Sums and products work in both orders.
    for one, other in (node.input, reversed(node.input)):
        value = graph.value(other)
        is_fit = value is not None and value.dtype == np.float32 and value.ndim <= 1
        if is_fit and one in graph.nodes and graph.value(one) is None:
            return one, value
    return None, None


def _channels_last(node: tf.compat.v1.NodeDef) -> bool:
    return graphs.attribute(node, "data_format").s != b"NCHW"


def _scale_product(
    graph: graphs.Graph, name: str, product: tf.compat.v1.NodeDef, scale: np.ndarray
) -> bool:
    kernel = graph.value(product.input[1])
    is_transposed = graphs.attribute(product, "transpose_b").b
    is_last_axis = not is_transposed and _channels_last(product)
    if kernel is None or kernel.dtype != np.float32 or not is_last_axis:
        return False
    # The last axis of a kernel is the output channel, so [C] scales each channel.
    scaled = graph.set_constant(f"{name}/kernel", (kernel * scale).astype(np.float32))
    graph.set(name, product.op, [product.input[0], scaled], **dict(product.attr))
    return True


def _spell_out(graph: graphs.Graph, node: tf.compat.v1.NodeDef) -> None:
    """Turn FusedBatchNorm in inference into a multiplication and an addition."""
    inputs, *parameters = node.input
    gamma, beta, mean, variance = map(graph.value, parameters)
    known = all(value is not None for value in (gamma, beta, mean, variance))
    if not known or graphs.attribute(node, "is_training").b or not _channels_last(node):
        return
    # y = gamma (x - mean) / sqrt(variance + epsilon) + beta, as s x + t.
    scale = gamma / np.sqrt(variance + np.float32(node.attr["epsilon"].f))
    dtype = node.attr["T"]
    factor = graph.set_constant(f"{node.name}/factor", scale.astype(np.float32))
    scaled = graph.set(f"{node.name}/scaled", "Mul", [inputs, factor], T=dtype)
    shift = graph.set_constant(f"{node.name}/shift", (beta - mean * scale).astype(np.float32))
    graph.set(node.name, "AddV2", [scaled, shift], T=dtype)
