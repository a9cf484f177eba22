"""Makes a readable graph of a forward pass for TensorBoard: by scopes, without technical ops.

graph = step_graph.draw({"income": loss}, (features, labels))       # a GraphDef
step_graph.add_training(graph, {"balancing/weighting": "Equal"}, ["income"])

The step of a run is the body of a loop, with its gradients and its optimizer: thousands of ops that
nobody can read. This graph holds only the ops from the batch to the losses. Variables are nodes
with their own names; reads, identity casts, constants and checks are left out. Ops without a scope
go to `batch`, or to `loss/<task>` if they follow the heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl.deferred import tf, tf1
from mtl.variables import patterns

_TOPS = ("features", "network", "head")
# The graph shows the first input of these ops in their place.
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
    """Draw the ops from a batch to the losses of the tasks.

    Args:
      losses: {task: scalar}.
      batch: tensors in any nesting; the walk back from the losses ends there.
    """
    inputs = tf.nest.flatten(batch, expand_composites=True)
    # Ops are compared by identity: ops of a loop and of its outer graph may share names.
    ends = {id(tensor.op) for tensor in inputs if isinstance(tensor, tf.Tensor)}
    resolve = _Resolver()
    names = _name_ops(losses, ends, resolve)
    graph = tf1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    for op, name in names.values():
        node = graph.node.add(name=name, op=_kind_of(op))
        # TensorBoard shows the shapes of outputs from this attribute.
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
    """Return the graph with a node for each part that comes after the losses.

    Args:
      graph: the graph from `draw`.
      kinds: {name of the node: class of the part}, in the order of the data flow.
      tasks: the tasks whose losses the first part reads.
    """
    whole = tf1.GraphDef()
    # Copy the graph, as it is drawn once, but `writing` may make its event several times.
    whole.CopyFrom(graph)
    inputs = [f"{_LOSS}/{task}/loss" for task in tasks]
    for name, kind in kinds.items():
        whole.node.add(name=name, op=kind, input=inputs)
        inputs = [name]
    return whole


def _list_inputs(
    op: tf.Operation, names: Mapping[int, tuple[tf.Operation, str]], resolve: _Resolver
) -> Iterator[str]:
    """Yield the inputs of an op that come from ops with a name."""
    for tensor in map(resolve, op.inputs):
        if id(tensor.op) in names:
            slot = f":{tensor.value_index}" if tensor.value_index else ""
            yield f"{names[id(tensor.op)][1]}{slot}"


def _name_ops(
    losses: Mapping[str, tf.Tensor], ends: set[int], resolve: _Resolver
) -> dict[int, tuple[tf.Operation, str]]:
    """Return {id: (op, its name)} of all ops that lead to the losses."""
    named, queue = _name_outer(losses, ends, resolve)
    while queue:
        op = queue.pop()
        # An op of a loss that also feeds a head belongs to the head's side.
        if op.type == "Const" or (id(op) in named and not named[id(op)][1].startswith(_LOSS)):
            continue
        name = _name_of(op)
        named[id(op)] = (op, name if _has_scope(op) else f"{_BATCH}/{name}")
        if id(op) not in ends:
            queue += [tensor.op for tensor in map(resolve, op.inputs)]
    return named


def _name_outer(
    losses: Mapping[str, tf.Tensor], ends: set[int], resolve: _Resolver
) -> tuple[dict[int, tuple[tf.Operation, str]], list[tf.Operation]]:
    """Return the ops between heads and losses that have no scope, and the ops that feed them."""
    named: dict[int, tuple[tf.Operation, str]] = {}
    inner: list[tf.Operation] = []
    for task, loss in losses.items():
        queue = [resolve(loss).op]
        while queue:
            op = queue.pop()
            if id(op) in named or op.type == "Const":
                continue
            # Here the walk back enters a head, or reaches the batch, such as labels.
            if _has_scope(op) or id(op) in ends:
                inner.append(op)
                continue
            named[id(op)] = (op, f"{_LOSS}/{task}/{op.name}")
            queue += [tensor.op for tensor in map(resolve, op.inputs)]
    return named, inner


def _has_scope(op: tf.Operation) -> bool:
    return _name_of(op).partition("/")[0] in _TOPS


def _name_of(op: tf.Operation) -> str:
    """Return the name of an op; if a loop has captured a variable, the name of the variable."""
    return patterns.shard_name(op.outputs[0]) if op.type == "VarHandleOp" else op.name


def _kind_of(op: tf.Operation) -> str:
    return "Variable" if op.type == "VarHandleOp" else op.type


class _Resolver:
    """Finds the origin of a tensor: before ops that only pass it on, and outside of a loop."""

    def __init__(self) -> None:
        # {id of a graph: its captures}
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
        """Return {id of a tensor within a loop: the tensor outside}, cached for each graph."""
        if id(graph) not in self._outside:
            # Only the graph of a function, such as the body of a loop, has captures.
            pairs = getattr(graph, "captures", [])
            self._outside[id(graph)] = {id(inside): outside for outside, inside in pairs}
        return self._outside[id(graph)]
