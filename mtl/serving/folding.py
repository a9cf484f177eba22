"""Simplifies the graph of an export: computes constants once, merges batch norm into layers.

graph = folding.fold_graph(session, ["head/price/value"])
# s (W x + b) + t becomes W' x + b', with W' and b' as constants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mtl.deferred import tf, tf1
from mtl.serving import graphs, rows

_NUMBERS = ("float32", "int32", "int64", "bool")
# A node is folded only if its value has at most this many elements more than its inputs.
_FREE_ELEMENTS = 1024
_ADDITIONS = ("Add", "AddV2", "BiasAdd")
_PRODUCTS = ("MatMul", "Conv2D")


def fold_graph(session: tf.compat.v1.Session, names: Collection[str]) -> graphs.Graph:
    """Return a simplified graph that computes some nodes, with variables as constants.

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
    """Replace each node that depends only on constants by a constant with its value.

    A node is not replaced if its value has over 1024 elements more than all inputs of the node
    together.

    Args:
      graph: the graph, which this function changes.
    """
    values = _compute_values(graph)
    for name, value in values.items():
        inputs = [
            values.get(reference, graph.value(reference)) for reference in graph.nodes[name].input
        ]
        # Do not fold large results: a broadcast or a range may be far larger than its inputs.
        size = sum(array.size for array in inputs if array is not None)
        if value.size <= _FREE_ELEMENTS + size:
            graph.set_constant(name, value)


def _compute_values(graph: graphs.Graph) -> dict[str, np.ndarray]:
    """Return {name: value} of all nodes that depend only on constants."""
    with tf.Graph().as_default() as tf_graph, tf1.Session(config=rows.on_cpu()) as session:
        tf.import_graph_def(graph.pruned(graph.nodes), name="")
        # A single pass is enough, because each operation comes after its inputs.
        fixed, outputs = set(), {}
        for operation in graphs.order_operations(tf_graph):
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
        # Leave out the ops of TensorFlow 1 loops, whose values depend on the iteration.
        and operation.type not in ("Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond")
    )


def fold_scales(graph: graphs.Graph, names: Collection[str]) -> graphs.Graph:
    """Merge a multiplication and an addition for each channel into the preceding layer.

    In inference, batch norm computes `y = s x + t`. The layer `x = W h + b` and the batch norm
    after it are together `y = (W s) h + (b s + t)`. The merged layer keeps the name of its last
    node, so nodes that read its output need no change.

    Args:
      graph: the graph, which this function changes.
      names: the names of the nodes that the graph must compute.

    Returns:
      The graph without the nodes that are not needed to compute `names`.
    """
    for node in list(graph.nodes.values()):
        if node.op.startswith("FusedBatchNorm"):
            _spell_out(graph, node)
    # One change may allow another, so continue until nothing changes.
    while True:
        graph = graphs.Graph(graph.pruned(names))
        readers = graph.readers()
        if not sum(_rewrite_node(graph, name, readers) for name in list(graph.nodes)):
            return graph


def _rewrite_node(graph: graphs.Graph, name: str, readers: Mapping[str, list[Any]]) -> bool:
    """Rewrite a node by the rule that fits it; return False if no rule fits."""
    node = graph.nodes[name]
    if node.op not in ("Mul", *_ADDITIONS):
        return False
    computed, constant = _split(graph, node)
    # Do not merge a value that other nodes read, too, because it would be computed twice. `readers`
    # lists no readers of nodes that this round of rewriting has added; the next round merges these
    # nodes.
    if computed is None or constant is None or len(readers.get(computed, ())) != 1:
        return False
    inner = graph.nodes[computed]
    if node.op == "Mul" and inner.op in _PRODUCTS:
        return _scale_product(graph, name, inner, constant)
    return inner.op in _ADDITIONS and _swap_operations(graph, node, inner, constant)


def _swap_operations(
    graph: graphs.Graph,
    node: tf.compat.v1.NodeDef,
    addition: tf.compat.v1.NodeDef,
    constant: np.ndarray,
) -> bool:
    """Turn (x + b) * s into x * s + (b s), and (x + b) + t into x + (b + t)."""
    first, shift = _split(graph, addition)
    if first is None:
        return False
    if node.op == "Mul":
        factor = graph.set_constant(f"{node.name}/factor", constant)
        first = graph.set(f"{node.name}/scaled", "Mul", [first, factor], T=node.attr["T"])
        new_shift = shift * constant
    else:
        new_shift = shift + constant
    total = graph.set_constant(f"{node.name}/shift", new_shift)
    graph.set(node.name, "AddV2", [first, total], T=node.attr["T"])
    return True


def _split(graph: graphs.Graph, node: tf.compat.v1.NodeDef) -> tuple[str | None, np.ndarray | None]:
    """Return the computed input and the constant input, [C] or [], of a node, or (None, None)."""
    if not _channels_last(node) or len(node.input) != 2:
        return None, None
    # The constant may be the first or the second input of an addition or multiplication.
    for computed, constant in (node.input, reversed(node.input)):
        value = graph.value(constant)
        is_fit = value is not None and value.dtype == np.float32 and value.ndim <= 1
        if is_fit and computed in graph.nodes and graph.value(computed) is None:
            return computed, value
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
    # The last axis of a kernel has the output channels, so a factor [C] scales each channel.
    new_kernel = graph.set_constant(f"{name}/kernel", (kernel * scale).astype(np.float32))
    graph.set(name, product.op, [product.input[0], new_kernel], **dict(product.attr))
    return True


def _spell_out(graph: graphs.Graph, node: tf.compat.v1.NodeDef) -> None:
    """Turn a FusedBatchNorm for inference into a multiplication and an addition."""
    inputs, *parameters = node.input
    gamma, beta, mean, variance = map(graph.value, parameters)
    are_constant = all(value is not None for value in (gamma, beta, mean, variance))
    if not are_constant or graphs.attribute(node, "is_training").b or not _channels_last(node):
        return
    # Write y = gamma (x - mean) / sqrt(variance + epsilon) + beta as y = s x + t.
    scale = gamma / np.sqrt(variance + np.float32(node.attr["epsilon"].f))
    dtype = node.attr["T"]
    factor = graph.set_constant(f"{node.name}/factor", scale.astype(np.float32))
    scaled = graph.set(f"{node.name}/scaled", "Mul", [inputs, factor], T=dtype)
    shift = graph.set_constant(f"{node.name}/shift", (beta - mean * scale).astype(np.float32))
    graph.set(node.name, "AddV2", [scaled, shift], T=dtype)
