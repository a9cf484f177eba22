"""Draws a readable graph of a forward pass for TensorBoard, without technical ops.

graph = step_graph.draw({"income": loss}, (features, labels))       # a GraphDef
step_graph.add_training(graph, {"balancing/weighting": "Equal"}, ["income"])

The graph of a training step has thousands of ops, with gradients and an optimizer inside a loop, so
it is hard to read. The drawn graph only holds the ops from the batch to the losses. In the drawn
graph, a variable is a node that has the name of the variable. The graph leaves out constants,
checks, identities and reads of variables. Ops without a scope get the scope `batch`, or the scope
`loss/<task>` if they come after the heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl.deferred import tf, tf1
from mtl.variables import patterns

_TOPS = ("features", "network", "head")
# Ops that only pass an input on. In place of an op in `_SAME`, the drawn graph shows the op's
# input.
_SAME = (
    "Identity",
    "IdentityN",
    "ReadVariableOp",
    "StopGradient",
    "PreventGradient",
    "EnsureShape",
    "CheckNumerics",
    "Snapshot",
)
_BATCH, _LOSS = "batch", "loss"


def draw(losses: Mapping[str, tf.Tensor], batch: Any) -> tf.compat.v1.GraphDef:
    """Return a graph with the ops from a batch to the losses of the tasks.

    Args:
      losses: {task: loss}, with scalar losses.
      batch: the tensors of the batch, in any nesting. The search back from the losses ends at the
        batch.
    """
    inputs = tf.nest.flatten(batch, expand_composites=True)
    # Compare ops by identity, because an op in a loop may have the same name as an op outside.
    ends = {id(tensor.op) for tensor in inputs if isinstance(tensor, tf.Tensor)}
    resolve = _Resolver()
    names = _name_ops(losses, ends, resolve)
    graph = tf1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    for op, name in names.values():
        node = graph.node.add(name=name, op=_kind_of(op))
        # TensorBoard reads the shapes of outputs from this attribute.
        node.attr["_output_shapes"].list.shape.extend(
            tensor.shape.as_proto() for tensor in op.outputs
        )
        if id(op) not in ends:
            node.input.extend(_list_inputs(op, names, resolve))
    for task, loss in losses.items():
        source = names.get(id(resolve(loss).op))
        inputs_of_loss = [source[1]] if source else []
        graph.node.add(name=f"{_LOSS}/{task}/loss", op="Loss", input=inputs_of_loss)
    return graph


def add_training(
    graph: tf.compat.v1.GraphDef, kinds: Mapping[str, str], tasks: Sequence[str]
) -> tf.compat.v1.GraphDef:
    """Return a copy of the graph with nodes for later stages of the step, such as the update.

    Args:
      graph: the graph from `draw`.
      kinds: {name of a node: class that the node stands for, such as a surgery}, in the order of
        the data flow.
      tasks: the names of the losses that the first node in `kinds` reads.
    """
    full_graph = tf1.GraphDef()
    # Copy the graph, because the graph is drawn once, but `writing` may make several events.
    full_graph.CopyFrom(graph)
    inputs = [f"{_LOSS}/{task}/loss" for task in tasks]
    for name, kind in kinds.items():
        full_graph.node.add(name=name, op=kind, input=inputs)
        inputs = [name]
    return full_graph


def _list_inputs(
    op: tf.Operation, names: Mapping[int, tuple[tf.Operation, str]], resolve: _Resolver
) -> Iterator[str]:
    """Yield the names of the inputs of an op that are nodes of the graph."""
    for tensor in map(resolve, op.inputs):
        if id(tensor.op) in names:
            slot = f":{tensor.value_index}" if tensor.value_index else ""
            yield f"{names[id(tensor.op)][1]}{slot}"


def _name_ops(
    losses: Mapping[str, tf.Tensor], ends: set[int], resolve: _Resolver
) -> dict[int, tuple[tf.Operation, str]]:
    """Return {id of an op: (op, name of its node)} for all ops that lead to the losses."""
    nodes, queue = _name_outer(losses, ends, resolve)
    while queue:
        op = queue.pop()
        # An op that feeds both a loss and a head gets a scope on the side of the head.
        if op.type == "Const" or (id(op) in nodes and not nodes[id(op)][1].startswith(_LOSS)):
            continue
        name = _name_of(op)
        nodes[id(op)] = (op, name if _has_scope(op) else f"{_BATCH}/{name}")
        if id(op) not in ends:
            queue += [tensor.op for tensor in map(resolve, op.inputs)]
    return nodes


def _name_outer(
    losses: Mapping[str, tf.Tensor], ends: set[int], resolve: _Resolver
) -> tuple[dict[int, tuple[tf.Operation, str]], list[tf.Operation]]:
    """Return the ops without a scope between heads and losses, and the ops that feed them."""
    nodes: dict[int, tuple[tf.Operation, str]] = {}
    inner: list[tf.Operation] = []
    for task, loss in losses.items():
        queue = [resolve(loss).op]
        while queue:
            op = queue.pop()
            if id(op) in nodes or op.type == "Const":
                continue
            # Stop: the search has reached a head, or a tensor of the batch, such as labels.
            if _has_scope(op) or id(op) in ends:
                inner.append(op)
                continue
            nodes[id(op)] = (op, f"{_LOSS}/{task}/{op.name}")
            queue += [tensor.op for tensor in map(resolve, op.inputs)]
    return nodes, inner


def _has_scope(op: tf.Operation) -> bool:
    return _name_of(op).partition("/")[0] in _TOPS


def _name_of(op: tf.Operation) -> str:
    """Return the name of an op, or of the variable if the op is the handle of a variable."""
    return patterns.shard_name(op.outputs[0]) if op.type == "VarHandleOp" else op.name


def _kind_of(op: tf.Operation) -> str:
    return "Variable" if op.type == "VarHandleOp" else op.type


class _Resolver:
    """Finds the origin of a tensor, by skipping identities and leaving loops."""

    def __init__(self) -> None:
        # {id of a graph: captures of the graph}.
        self._outside: dict[int, dict[int, tf.Tensor]] = {}

    def __call__(self, tensor: tf.Tensor) -> tf.Tensor:
        while True:
            outside = self._list_captures(tensor.graph)
            if id(tensor) in outside:
                tensor = outside[id(tensor)]
            elif tensor.op.type in _SAME and len(tensor.op.inputs) > tensor.value_index:
                tensor = tensor.op.inputs[tensor.value_index]
            else:
                return tensor

    def _list_captures(self, graph: tf.Graph) -> dict[int, tf.Tensor]:
        """Return {id of a tensor inside of a loop: tensor outside of the loop} for a graph."""
        if id(graph) not in self._outside:
            # Only graphs of functions, such as the body of a loop, have captures.
            pairs = getattr(graph, "captures", [])
            self._outside[id(graph)] = {id(inside): outside for outside, inside in pairs}
        return self._outside[id(graph)]
