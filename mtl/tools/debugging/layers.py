"""Reads a graph as a tree of scopes, with output shapes, variables, FLOPs and tasks.

tree = layers.read_tree(graph, [images], {"digit": [logits]}, variables, trained)
print(layers.draw_tree(tree, ["digit"]))
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mtl import aligned
from mtl.deferred import tf, tf1
from mtl.variables import patterns

# The top scopes of a served model, in the order in which data pass through them.
_TOPS = ("features", "network", "head")
# Leave out ops that compute initial values: initialisers lie in the scope of a layer, but run only
# once.
_INITIAL = "/Initializer/"
_ALL = "all"


@dataclasses.dataclass
class Scope:
    """A scope of a model with its children, or a variable in a scope.

    Attributes:
      name: the full name, such as network/trunk/hidden_0.
      output: the shape of the last tensor that leaves the scope, or of its last tensor if none
        leaves it; None for a variable, for a scope at the top of the tree, and for an unknown
        shape.
      variable: the shape of the variable; None if this is a scope.
      parameters: the number of parameters.
      num_bytes: the size of the parameters in bytes.
      flops: the floating-point operations for one row. TensorFlow counts only some ops, mostly
        matrix products and convolutions.
      tasks: the tasks whose predictions depend on the scope.
      is_held: True if training changes no variable of the scope.
      children: the scopes and variables inside this scope.
    """

    name: str
    output: tuple[int | None, ...] | None = None
    variable: tuple[int, ...] | None = None
    parameters: int = 0
    num_bytes: int = 0
    flops: int = 0
    tasks: tuple[str, ...] = ()
    is_held: bool = False
    children: list[Scope] = dataclasses.field(default_factory=list)


def read_tree(
    graph: tf.Graph,
    inputs: Iterable[tf.Tensor],
    outputs: Mapping[str, Sequence[tf.Tensor]],
    variables: Iterable[tf.Variable],
    trained: Collection[str],
) -> list[Scope]:
    """Return the scopes `features`, `network` and `head` of a graph for a single row.

    Args:
      graph: the graph that computes predictions.
      inputs: the input tensors of the graph, with a single row.
      outputs: {task: the tensors of its predictions}.
      variables: the variables of the model.
      trained: the names of the variables that training changes.
    """
    leading = {task: _list_leaders(tensors) for task, tensors in outputs.items()}
    # The graph must be for a single row, because FLOPs grow with the number of rows.
    flops = _count_flops(graph)
    scopes: dict[str, Scope] = {}
    trained_scopes: set[str] = set()
    for variable in variables:
        name = patterns.variable_name(variable)
        if name.partition("/")[0] not in _TOPS:
            continue
        shape = tuple(variable.shape.as_list())
        count, size = variable.shape.num_elements() or 0, variable.dtype.base_dtype.size
        scope_of_variable = _add_scope(scopes, name)
        scope_of_variable.variable = shape  # The static shape, such as (64, 32).
        for scope in _list_above(scopes, name):
            scope.parameters += count
            scope.num_bytes += count * size
            # The loop below sets `is_held` to False for every scope with a trained variable.
            scope.is_held = True
            if name in trained:
                trained_scopes.add(scope.name)
    _read_operations(graph, scopes, flops, leading, list_followers(inputs))
    for name in trained_scopes:
        scopes[name].is_held = False
    return [scopes[name] for name in _TOPS if name in scopes]


def draw_tree(tree: Sequence[Scope], tasks: Sequence[str]) -> str:
    """Return a tree of scopes as text, with a line for each scope and each variable.

    Args:
      tree: the scopes, from `read_tree`.
      tasks: the names of all tasks. A scope that all tasks use shows "all" in place of the names of
        tasks.
    """
    lines: list[tuple[str, ...]] = [("", "output", "parameters", "bytes", "FLOPs", "tasks")]
    for scope in tree:
        lines += _list_lines(scope, "", tuple(tasks))
    total = [
        sum(getattr(s, attribute) for s in tree)
        for attribute in ("parameters", "num_bytes", "flops")
    ]
    lines.append(("total", "", *(f"{number:,}" for number in total), ""))
    return "\n".join(aligned.align_columns(lines, right=(2, 3, 4)))


def find_outputs(graph: tf.Graph, scope: str, followers: Collection[str]) -> list[tf.Tensor]:
    """Return the float tensors that leave a scope and depend on the rows, in order of creation.

    Args:
      graph: the graph that contains the scope.
      scope: the name of the scope, without a slash at its end.
      followers: the names of all operations that depend on the rows, from `list_followers`.
    """
    inside = f"{scope}/"
    return [
        tensor
        for operation in graph.get_operations()
        if operation.name.startswith(inside) and operation.name in followers
        for tensor in operation.outputs
        if tensor.dtype.is_floating and _is_read_outside(tensor, inside)
    ]


def _is_read_outside(tensor: tf.Tensor, inside: str) -> bool:
    """Return whether an op outside of a scope reads a tensor; ops of gradients do not count."""
    # In a training graph, ops in "balancing/" and "update/" read activations to compute gradients.
    within = (inside, "balancing/", "update/")
    readers = [reader.name for reader in tensor.consumers()]
    return any(not name.startswith(within) and "gradients/" not in name for name in readers)


def _list_lines(scope: Scope, indent: str, tasks: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return table rows for a scope and its children, with names indented by depth."""
    task_names = _ALL if scope.tasks == tasks else ", ".join(scope.tasks)
    is_variable = scope.variable is not None
    shape = scope.variable if is_variable else scope.output
    name = indent + scope.name.rpartition("/")[2]
    cells = (
        name + (" (not trained)" if scope.is_held else ""),
        "" if shape is None else _write_shape(shape),
        _write_number(scope.parameters),
        _write_number(scope.num_bytes),
        "" if is_variable else _write_number(scope.flops),
        "" if is_variable else task_names,
    )
    below = [line for child in scope.children for line in _list_lines(child, f"{indent}  ", tasks)]
    return [cells, *below]


def _write_shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _write_number(number: int) -> str:
    return f"{number:,}" if number else ""


def _add_scope(scopes: dict[str, Scope], name: str) -> Scope:
    """Return the scope with a name; create the scope and its parents if they do not exist."""
    if name not in scopes:
        scopes[name] = Scope(name)
        above = name.rpartition("/")[0]
        if above:
            _add_scope(scopes, above).children.append(scopes[name])
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
    """Add outputs, tasks and FLOPs to the scopes, and add scopes without variables."""
    operations = [
        operation for operation in graph.get_operations() if _INITIAL not in operation.name
    ]
    for operation in operations:
        parts = operation.name.split("/")
        if parts[0] in _TOPS and len(parts) >= 3:
            _add_scope(scopes, "/".join(parts[:2]))
    _add_tasks(operations, scopes, flops, leading)
    for name, tensor in _find_last(operations, scopes, followers).items():
        if scopes[name].variable is None and tensor.shape.rank is not None and "/" in name:
            scopes[name].output = tuple(tensor.shape.as_list())


def _add_tasks(
    operations: Iterable[tf.Operation],
    scopes: Mapping[str, Scope],
    flops: Mapping[str, int],
    leading: Mapping[str, set[str]],
) -> None:
    """Set the tasks of the scopes, and add the FLOPs of operations that affect predictions."""
    tasks: dict[str, set[str]] = collections.defaultdict(set)
    for operation in operations:
        dependent = {task for task, names in leading.items() if operation.name in names}
        # Skip operations that affect no prediction, because a served model does not run them.
        for scope in _list_above(scopes, operation.name) if dependent else ():
            scope.flops += flops.get(operation.name, 0)
            tasks[scope.name] |= dependent
    for scope in scopes.values():
        scope.tasks = tuple(task for task in leading if task in tasks[scope.name])


def _find_last(
    operations: Iterable[tf.Operation], scopes: Mapping[str, Scope], followers: Collection[str]
) -> dict[str, tf.Tensor]:
    """Return {scope: the last tensor that leaves the scope, or its last tensor if none does}."""
    leaving_last, inner_last = dict[str, tf.Tensor](), dict[str, tf.Tensor]()
    for operation in operations:
        if operation.name not in followers:
            continue
        floats = [tensor for tensor in operation.outputs if tensor.dtype.is_floating]
        for scope in _list_above(scopes, operation.name.rpartition("/")[0]):
            leaving = [tensor for tensor in floats if _is_read_outside(tensor, f"{scope.name}/")]
            leaving_last.update((scope.name, tensor) for tensor in leaving)
            inner_last.update((scope.name, tensor) for tensor in floats)
    # No op in the graph reads predictions, so no tensor leaves the scopes that compute predictions.
    return {**inner_last, **leaving_last}


def list_followers(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the operations that depend on at least one of the tensors."""
    names: set[str] = set()
    waiting = list(tensors)
    while waiting:
        for operation in waiting.pop().consumers():
            if operation.name not in names:
                names.add(operation.name)
                waiting += operation.outputs
    return names


def _list_leaders(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the operations that at least one of the tensors depends on."""
    names: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.name not in names:
            names.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return names


def _count_flops(graph: tf.Graph) -> dict[str, int]:
    """Return {operation: FLOPs} for the operations that TensorFlow counts."""
    # With cmd="scope", TensorFlow's profiler returns a tree of scopes whose leaves are ops.
    builder = tf1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    flops: dict[str, int] = {}
    waiting: list[Any] = [tf1.profiler.profile(graph, cmd="scope", options=options)]
    while waiting:
        node = waiting.pop()
        flops[node.name] = node.float_ops
        waiting += node.children
    return flops
