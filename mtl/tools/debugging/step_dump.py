"""Reads all tensors of one step from the files of TensorFlow's debugger, and their ops.

dump = step_dump.StepDump("/tmp/step_20")
dump.nodes["head/digit/logits/MatMul"].inputs            # ("network/trunk/Relu:0", ...)
dump.is_bad("head/digit/logits/MatMul:0")                # whether an entry is NaN or infinite
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


# Ops that pass their inputs on, and so never break a step.
PASSING = ("Enter", "Exit", "Identity", "IdentityN", "Merge", "NextIteration", "Switch", "Snapshot")

# Kernels for Intel processors have separate names.
_MKL = re.compile(r"^_Mkl(Native)?")


@dataclasses.dataclass(frozen=True)
class Node:
    """An op of the step.

    Attributes:
      name: its name in the graph that ran; in a loop or a branch `while/body/_12/<name>`.
      kind: the type of the op, such as MatMul.
      inputs: its input tensors, as `<name>:<slot>`.
      transposes: True if it transposes its first input for a product.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    transposes: bool = False


class StepDump:
    """The tensors of a step.

    Args:
      folder: the output folder of `debugger.watch_tensors`.
    """

    def __init__(self, folder: str):
        # Values stay on disk until they are read.
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
        # {tensor: its files}, one for each time that it was computed.
        self._data: dict[str, list[Any]] = collections.defaultdict(list)
        for datum in self._dump.dumped_tensor_data:
            self._data[datum.tensor_name].append(datum)
        # {node: its recorded outputs}
        self._slots: dict[str, list[str]] = collections.defaultdict(list)
        for tensor in self._data:
            self._slots[name_node(tensor)].append(tensor)

    def list_outputs(self, node: str) -> list[str]:
        """Return the recorded output tensors of a node, by slot."""
        return sorted(self._slots.get(node, ()), key=lambda tensor: int(tensor.rpartition(":")[2]))

    def read_numbers(self, tensor: str) -> tuple[np.ndarray, ...]:
        """Return the floats of a tensor, one array for each time that it was computed.

        Return () if it was not computed, or does not hold floats.
        """
        found = (_as_floats(datum.get_tensor()) for datum in self._data.get(tensor, ()))
        return tuple(value for value in found if value is not None)

    def read_any(self, tensor: str) -> np.ndarray | None:
        """Return the first value of a tensor, of any type; None if it was not computed."""
        data = self._data.get(tensor)
        value = data[0].get_tensor() if data else None
        return value if isinstance(value, np.ndarray) else None

    def find_shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor; () if it was not computed or is a scalar."""
        return self._tensor_forms[tensor][0] if tensor in self._tensor_forms else ()

    def find_type(self, tensor: str) -> str:
        """Return the type of a tensor, such as bfloat16; "" if it was not computed."""
        return self._tensor_forms[tensor][1] if tensor in self._tensor_forms else ""

    @property
    def bad(self) -> frozenset[str]:
        """The tensors with an entry that is NaN or infinite."""
        return self._scanned_tensors[1]

    @property
    def _tensor_forms(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return self._scanned_tensors[0]

    @functools.cached_property
    def _scanned_tensors(self) -> tuple[dict[str, tuple[tuple[int, ...], str]], frozenset[str]]:
        """Return {tensor: (its shape, its type)}, and the bad tensors; reads all tensors once."""
        forms, bad = {}, set()
        for tensor, data in self._data.items():
            values = [v for datum in data if isinstance(v := datum.get_tensor(), np.ndarray)]
            if values:
                forms[tensor] = (values[0].shape, values[0].dtype.name)
            floats = [own for value in values if (own := _as_floats(value)) is not None]
            if not all(np.isfinite(own).all() for own in floats):
                bad.add(tensor)
        return forms, frozenset(bad)

    def is_bad(self, tensor: str) -> bool:
        """Return whether an entry is NaN or infinite."""
        return tensor in self.bad

    @functools.cached_property
    def readers(self) -> dict[str, list[str]]:
        """{tensor: the nodes that read it}."""
        found: dict[str, list[str]] = collections.defaultdict(list)
        for node in self.nodes.values():
            for tensor in node.inputs:
                found[tensor].append(node.name)
        return found

    def list_followers(
        self, tensors: Iterable[str], within: Collection[str] | None = None
    ) -> set[str]:
        """Return the nodes that these tensors lead to; if given, only through tensors `within`.

        Args:
          tensors: names of tensors, `<node>:<slot>`.
          within: the only tensors that the walk passes on through; None allows all.
        """
        reached: set[str] = set()
        waiting = list(tensors)
        while waiting:
            for node in self.readers.get(waiting.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    read = self._of_node.get(node, [])
                    waiting += [t for t in read if within is None or t in within]
        return reached

    def list_leaders(self, node: str) -> dict[str, int]:
        """Return {tensor: distance in ops} of all tensors that a node needs, the nearest first."""
        found: dict[str, int] = {}
        # Breadth first, so that the first distance found is the shortest.
        waiting = collections.deque((tensor, 1) for tensor in self.nodes[node].inputs)
        while waiting:
            tensor, distance = waiting.popleft()
            if tensor in found:
                continue
            found[tensor] = distance
            made_by = self.nodes.get(name_node(tensor))
            waiting += [(t, distance + 1) for t in (made_by.inputs if made_by else ())]
        return found

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """{node: its place}, each after the nodes that it depends on; a loop is entered once."""
        placed: dict[str, int] = {}
        for name in self.nodes:
            # A stack in place of recursion: a graph may be deeper than Python's limit of calls.
            path = [(name, iter(self._forward_inputs(name)))] if name not in placed else []
            entered = {name}
            while path:
                node, inputs = path[-1]
                nexts = (name_node(tensor) for tensor in inputs)
                following = next((n for n in nexts if n in self.nodes and n not in placed), None)
                if following is None:
                    placed.setdefault(node, len(placed))
                    path.pop()
                elif following not in entered:
                    entered.add(following)
                    path.append((following, iter(self._forward_inputs(following))))
        return placed

    def _forward_inputs(self, name: str) -> list[str]:
        """Return the inputs of a node, without edges from one iteration of a loop to the next."""
        node = self.nodes[name]
        makers = (self.nodes.get(name_node(tensor)) for tensor in node.inputs)
        pairs = zip(node.inputs, makers, strict=True)
        return [
            tensor
            for tensor, maker in pairs
            # The Merge of a loop has two inputs: the first value, and the value of the last
            # iteration.
            if node.kind != "Merge" or maker is None or maker.kind != "NextIteration"
        ]

    @functools.cached_property
    def _of_node(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = collections.defaultdict(list)
        for tensor in self.readers:
            found[name_node(tensor)].append(tensor)
        return found


def name_node(tensor: str) -> str:
    """Return the node that makes a tensor: the name before its slot."""
    return tensor.rpartition(":")[0]


def _list_data(inputs: Iterable[str]) -> list[str]:
    """Return the inputs of a node as `<name>:<slot>`, without control inputs."""
    # "^" marks an input that only orders two ops.
    data = (name for name in inputs if not name.startswith("^"))
    return [
        # A GraphDef leaves out the slot 0.
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
    # NumPy does not know bfloat16.
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else None
