"""A graph as a tree: scopes with what comes out of them, variables, FLOPs, and whose they are.

tree = layers.read_tree(graph, [images], {"digit": [logits]}, variables, trained)
print(layers.draw_tree(tree, ["digit"]))
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import aligned
from mtl.variables import patterns

tf1 = tf.compat.v1

_TOPS = ("features", "network", "head")
_INITIAL = "/Initializer/"
_ALL = "all"


@dataclasses.dataclass
class Scope:
    """A scope of the model, or a variable in one.

    Attributes:
      name: whole, such as network/trunk/hidden_0.
      output: the shape of the last tensor that leaves it; None where none does, or of a variable.
      variable: the shape of a variable; None of a scope.
      parameters: how many there are in it.
      num_bytes: that they take.
      flops: of one row, by the ops whose FLOPs TensorFlow counts: products and convolutions above
        all.
      tasks: whose predictions depend on it.
      is_held: whether none of its variables is trained.
      children: what lies in it.
    """

    name: str
    output: tuple[int | None, ...] | None = None
    variable: tuple[int, ...] | None = None
    parameters: int = 0
    num_bytes: int = 0
    flops: int = 0
    tasks: tuple[str, ...] = ()
    is_held: bool = False
    children: list["Scope"] = dataclasses.field(default_factory=list)


def read_tree(
    graph: tf.Graph,
    inputs: Iterable[tf.Tensor],
    outputs: Mapping[str, Sequence[tf.Tensor]],
    variables: Iterable[tf.Variable],
    trained: Collection[str],
) -> list[Scope]:
    """Return the scopes `features`, `network` and `head` of a graph of one row.

    Args:
      graph: of predictions.
      inputs: what the rows enter by.
      outputs: {task: what is predicted}.
      variables: of the model.
      trained: the names of those that are trained.
    """
    leading = {task: _list_leaders(tensors) for task, tensors in outputs.items()}
    flops = _count_flops(graph)
    scopes: dict[str, Scope] = {}
    for variable in variables:
        name = patterns.variable_name(variable)
        if name.partition("/")[0] not in _TOPS:
            continue
        shape = tuple(variable.shape.as_list())
        count, size = variable.shape.num_elements() or 0, variable.dtype.base_dtype.size
        own = _add(scopes, name)
        own.variable, own.is_held = shape, name not in trained
        for scope in _list_above(scopes, name):
            scope.parameters += count
            scope.num_bytes += count * size
    _read_operations(graph, scopes, flops, leading, list_followers(inputs))
    for scope in scopes.values():
        if scope.variable is None:
            inside = [s for s in scopes.values() if s.name.startswith(f"{scope.name}/")]
            held = [s.is_held for s in inside if s.variable is not None]
            scope.is_held = bool(held) and all(held)
    return [scopes[name] for name in _TOPS if name in scopes]


def draw_tree(tree: Sequence[Scope], tasks: Sequence[str]) -> str:
    """Return the tree as text, a line for each scope and variable."""
    lines: list[tuple[str, ...]] = [("", "output", "parameters", "bytes", "FLOPs", "tasks")]
    for scope in tree:
        lines += _lines(scope, "", tuple(tasks))
    total = [sum(getattr(s, what) for s in tree) for what in ("parameters", "num_bytes", "flops")]
    lines.append(("total", "", *(f"{number:,}" for number in total), ""))
    return "\n".join(aligned.align_columns(lines, right=(2, 3, 4)))


def find_outputs(graph: tf.Graph, scope: str, followers: Collection[str]) -> list[tf.Tensor]:
    """Return the float tensors that leave a scope, in the order in which they were made.

    Only those of operations that follow from the rows count: a variable does not.
    """
    inside = f"{scope}/"
    return [
        tensor
        for operation in graph.get_operations()
        if operation.name.startswith(inside) and operation.name in followers
        for tensor in operation.outputs
        if tensor.dtype.is_floating
        and any(_is_outside(reader.name, inside) for reader in tensor.consumers())
    ]


def _list_made(graph: tf.Graph, scope: Scope, followers: Collection[str]) -> list[tf.Tensor]:
    """Return the float tensors of a scope that nobody reads; none of a variable's."""
    return [
        tensor
        for operation in graph.get_operations()
        if scope.variable is None and operation.name in followers
        if operation.name.startswith(f"{scope.name}/")
        for tensor in operation.outputs
        if tensor.dtype.is_floating
    ]


def _is_outside(name: str, inside: str) -> bool:
    """Return whether an operation takes what leaves a scope; gradients take what is in it, too."""
    return not name.startswith((inside, "balancing/", "update/")) and "gradients/" not in name


def _lines(scope: Scope, indent: str, tasks: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the cells of a scope and of all in it; scopes without variables are not opened."""
    whose = _ALL if scope.tasks == tasks else ", ".join(scope.tasks)
    is_variable = scope.variable is not None
    shape = scope.variable if is_variable else scope.output
    name = indent + scope.name.rpartition("/")[2]
    cells = [
        name + (" (not trained)" if scope.is_held else ""),
        "" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]",
        f"{scope.parameters:,}" if scope.parameters else "",
        f"{scope.num_bytes:,}" if scope.num_bytes else "",
        f"{scope.flops:,}" if scope.flops and not is_variable else "",
        "" if is_variable else whose,
    ]
    below = [line for child in scope.children for line in _lines(child, f"{indent}  ", tasks)]
    return [tuple(cells), *below]


def _add(scopes: dict[str, Scope], name: str) -> Scope:
    """Return the scope of this name, made with all above it where it is new."""
    if name not in scopes:
        scopes[name] = Scope(name)
        above = name.rpartition("/")[0]
        if above:
            _add(scopes, above).children.append(scopes[name])
    return scopes[name]


def _list_above(scopes: Mapping[str, Scope], name: str) -> list[Scope]:
    parts = name.split("/")
    names = ("/".join(parts[: i + 1]) for i in range(len(parts)))
    return [scopes[name] for name in names if name in scopes]


def _read_operations(
    graph: tf.Graph,
    scopes: dict[str, Scope],
    flops: Mapping[str, int],
    leading: Mapping[str, set[str]],
    followers: Collection[str],
) -> None:
    """Add to the scopes what their operations tell; columns without variables become scopes too."""
    for operation in graph.get_operations():
        parts = operation.name.split("/")
        if parts[0] not in _TOPS or len(parts) < 3 or _INITIAL in operation.name:
            continue
        _add(scopes, "/".join(parts[:2]))
    tasks: dict[str, set[str]] = collections.defaultdict(set)
    for operation in graph.get_operations():
        if _INITIAL in operation.name:
            continue
        for scope in _list_above(scopes, operation.name):
            own = {task for task, names in leading.items() if operation.name in names}
            # What leads to no prediction is not computed when it is served.
            scope.flops += flops.get(operation.name, 0) if own else 0
            tasks[scope.name] |= own
    for scope in scopes.values():
        scope.tasks = tuple(task for task in leading if task in tasks[scope.name])
        left = find_outputs(graph, scope.name, followers) if scope.variable is None else []
        left = left or _list_made(graph, scope, followers)
        if left and left[-1].shape.rank is not None and "/" in scope.name:
            scope.output = tuple(left[-1].shape.as_list())


def list_followers(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the operations that depend on tensors."""
    found: set[str] = set()
    waiting = list(tensors)
    while waiting:
        for operation in waiting.pop().consumers():
            if operation.name not in found:
                found.add(operation.name)
                waiting += operation.outputs
    return found


def _list_leaders(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the operations that tensors depend on."""
    found: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return found


def _count_flops(graph: tf.Graph) -> dict[str, int]:
    """Return {operation: its FLOPs}, of those that TensorFlow counts."""
    builder = tf1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    found: dict[str, int] = {}
    waiting: list[Any] = [tf1.profiler.profile(graph, cmd="scope", options=options)]
    while waiting:
        node = waiting.pop()
        found[node.name] = node.float_ops
        waiting += node.children
    return found
