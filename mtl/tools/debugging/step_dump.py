"""Reads the tensors and ops of a training step from the files of TensorFlow's debugger.

dump = step_dump.StepDump("/tmp/step_20")
dump.nodes["head/digit/logits/MatMul"].inputs            # ("network/trunk/Relu:0", ...)
dump.is_bad("head/digit/logits/MatMul:0")                # True if an entry is NaN or infinite
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from mtl import deferred

with deferred.imports():
    from mtl.tf_internals import debugger


# Ops that only pass their inputs on, and so cannot break a step.
PASSING = ("Enter", "Exit", "Identity", "IdentityN", "Merge", "NextIteration", "Switch", "Snapshot")

# The prefix in the names of TensorFlow's kernels for Intel processors.
_MKL = re.compile(r"^_Mkl(Native)?")


@dataclasses.dataclass(frozen=True)
class Node:
    """An op of a training step.

    Attributes:
      name: the name in the executed graph; `while/body/_12/<name>` in a loop or a branch.
      kind: the type of the op, such as MatMul.
      inputs: the names of the input tensors, as `<name>:<slot>`.
      transposes: True for a matrix product that transposes its first input.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    transposes: bool = False


class StepDump:
    """The tensors of a training step, which are read from files when a method needs them.

    Args:
      folder: the output folder of `debugger.watch_tensors`.
    """

    def __init__(self, folder: str):
        # Opening the dump reads no values: they stay on disk until a method needs them.
        self._dump = debugger.open_dump(folder)
        self.nodes = {
            node.name: Node(
                node.name,
                _MKL.sub("", node.op),
                tuple(_list_data(node.input)),
                _transposes_input(node),
            )
            for node in debugger.list_nodes(self._dump)
        }
        # {tensor: its files}; a tensor in a loop has a file for each iteration.
        self._data: dict[str, list[Any]] = collections.defaultdict(list)
        for datum in self._dump.dumped_tensor_data:
            self._data[datum.tensor_name].append(datum)
        # {node: the recorded outputs of the node}
        self._slots: dict[str, list[str]] = collections.defaultdict(list)
        for tensor in self._data:
            self._slots[name_node(tensor)].append(tensor)

    def list_outputs(self, node: str) -> list[str]:
        """Return the recorded output tensors of a node, in the order of the node's outputs."""
        return sorted(self._slots.get(node, ()), key=lambda tensor: int(tensor.rpartition(":")[2]))

    def read_numbers(self, tensor: str) -> tuple[np.ndarray, ...]:
        """Return the values of a float tensor.

        Args:
          tensor: the name of the tensor, `<node>:<slot>`.

        Returns:
          An array for each time that the tensor was computed; () if the tensor was not computed, or
          does not contain floats.
        """
        arrays = (_as_floats(datum.get_tensor()) for datum in self._data.get(tensor, ()))
        return tuple(value for value in arrays if value is not None)

    def read_any(self, tensor: str) -> np.ndarray | None:
        """Return the first value of a tensor of any type; None if the tensor was not computed."""
        data = self._data.get(tensor)
        value = data[0].get_tensor() if data else None
        return value if isinstance(value, np.ndarray) else None

    def find_shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor; () if the tensor is a scalar or was not computed."""
        return self._tensor_forms[tensor][0] if tensor in self._tensor_forms else ()

    def find_type(self, tensor: str) -> str:
        """Return the type of a tensor, such as bfloat16; "" if the tensor was not computed."""
        return self._tensor_forms[tensor][1] if tensor in self._tensor_forms else ""

    @property
    def bad(self) -> frozenset[str]:
        """The names of the tensors in which an entry is NaN or infinite."""
        return self._scanned_tensors[1]

    @property
    def _tensor_forms(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return self._scanned_tensors[0]

    @functools.cached_property
    def _scanned_tensors(self) -> tuple[dict[str, tuple[tuple[int, ...], str]], frozenset[str]]:
        """Read all tensors once; return {tensor: (its shape, its type)} and the broken tensors."""
        forms, bad = {}, set()
        for tensor, data in self._data.items():
            values = [v for datum in data if isinstance(v := datum.get_tensor(), np.ndarray)]
            if values:
                forms[tensor] = (values[0].shape, values[0].dtype.name)
            floats = [array for value in values if (array := _as_floats(value)) is not None]
            if not all(np.isfinite(array).all() for array in floats):
                bad.add(tensor)
        return forms, frozenset(bad)

    def is_bad(self, tensor: str) -> bool:
        """Return whether an entry of a tensor is NaN or infinite."""
        return tensor in self.bad

    @functools.cached_property
    def readers(self) -> dict[str, list[str]]:
        """{tensor: the names of the nodes that read the tensor}."""
        nodes: dict[str, list[str]] = collections.defaultdict(list)
        for node in self.nodes.values():
            for tensor in node.inputs:
                nodes[tensor].append(node.name)
        return nodes

    def list_followers(
        self, tensors: Iterable[str], within: Collection[str] | None = None
    ) -> set[str]:
        """Return the names of the nodes that depend on at least one of the tensors.

        Args:
          tensors: names of tensors, `<node>:<slot>`.
          within: the tensors that may lie between one of `tensors` and a node that depends on it;
            None allows all tensors.
        """
        reached: set[str] = set()
        waiting = list(tensors)
        while waiting:
            for node in self.readers.get(waiting.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    outputs = self._of_node.get(node, [])
                    waiting += [t for t in outputs if within is None or t in within]
        return reached

    def list_leaders(self, node: str) -> dict[str, int]:
        """Find the tensors that a node needs, directly or through other nodes.

        Args:
          node: the name of a node of the step.

        Returns:
          {tensor: the number of ops on the shortest path from the tensor to the node}, the nearest
          tensors first.
        """
        distances: dict[str, int] = {}
        # In a breadth-first search, the first distance to a tensor is the shortest.
        waiting = collections.deque((tensor, 1) for tensor in self.nodes[node].inputs)
        while waiting:
            tensor, distance = waiting.popleft()
            if tensor in distances:
                continue
            distances[tensor] = distance
            maker = self.nodes.get(name_node(tensor))
            waiting += [(t, distance + 1) for t in (maker.inputs if maker else ())]
        return distances

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """{node: its place in an order in which all nodes come after their inputs}."""
        places: dict[str, int] = {}
        for name in self.nodes:
            # Use a stack, because a graph may be deeper than Python's limit for recursion.
            path = [(name, iter(self._forward_inputs(name)))] if name not in places else []
            entered = {name}
            while path:
                node, inputs = path[-1]
                nexts = (name_node(tensor) for tensor in inputs)
                next_node = next((n for n in nexts if n in self.nodes and n not in places), None)
                if next_node is None:
                    places.setdefault(node, len(places))
                    path.pop()
                elif next_node not in entered:
                    entered.add(next_node)
                    path.append((next_node, iter(self._forward_inputs(next_node))))
        return places

    def _forward_inputs(self, name: str) -> list[str]:
        """Return the inputs of a node, without the values of a loop's previous iteration."""
        node = self.nodes[name]
        makers = (self.nodes.get(name_node(tensor)) for tensor in node.inputs)
        pairs = zip(node.inputs, makers, strict=True)
        return [
            tensor
            for tensor, maker in pairs
            # The Merge op of a loop has two inputs: the initial value, and the value from the
            # previous iteration.
            if node.kind != "Merge" or maker is None or maker.kind != "NextIteration"
        ]

    @functools.cached_property
    def _of_node(self) -> dict[str, list[str]]:
        tensors: dict[str, list[str]] = collections.defaultdict(list)
        for tensor in self.readers:
            tensors[name_node(tensor)].append(tensor)
        return tensors


def name_node(tensor: str) -> str:
    """Return the name of the node that computes a tensor: the tensor's name without its slot."""
    return tensor.rpartition(":")[0]


def _list_data(inputs: Iterable[str]) -> list[str]:
    """Return the data inputs of a node as `<name>:<slot>`; control inputs are left out."""
    # "^" marks a control input, which only orders two ops.
    data = (name for name in inputs if not name.startswith("^"))
    return [
        # A GraphDef omits slot 0 in the name of an input.
        name if name.rpartition(":")[2].isdigit() and ":" in name else f"{name}:0"
        for name in data
    ]


def _transposes_input(node: Any) -> bool:
    return any(node.attr[key].b for key in ("transpose_a", "adj_x") if key in node.attr)


def _as_floats(value: Any) -> np.ndarray | None:
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind == "f":
        return value
    # NumPy does not count bfloat16 as a float, so convert it.
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else None
