"""Finds ops that compute the same value twice in a graph, before the graph runs.

first = len(graph.get_operations())
logits = network(features)
logits = twins.reuse_earlier(first, logits)       # from an earlier pass, if its ops are equal

TensorFlow's optimizer also merges equal ops, but not if the ops read a variable separately: the
value of the variable might have changed between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mtl.deferred import tf, tf1
from mtl.example_gradients import lists, uses

# Ops with which columns look words up in tables that never change.
_OF_TABLES = ("LookupTableFindV2", "LookupTableSizeV2")


def reuse_earlier(first: int, outputs: Any) -> Any:
    """Replace outputs by equal outputs of earlier ops ("twins"), if there are any.

    A twin is an op of the same type with the same attributes and inputs, which draws no random
    numbers. No trainable variable may change between the run of an op and the run of its twin.

    Args:
      first: the number of ops in the graph before the ops of `outputs` were added.
      outputs: tensors, in any nesting.
    """
    twins = _Twins(first)
    return tf.nest.map_structure(twins.find_twin, outputs)


class _Twins:
    """Finds twins, earlier ops with equal outputs, for all ops from the index `first` on."""

    def __init__(self, first: int):
        graph = tf1.get_default_graph()
        ops = graph.get_operations()[first:]
        self._new = {op.name for op in ops}
        # Leave out variables that are not trainable: moving averages may change between two reads.
        self._handles = {uses.find_handle(graph, v) for v in tf1.trainable_variables()}
        # Compare constants by value, because each pass creates new constants.
        self._constant: set[str] = set()
        self._twins: dict[str, tf.Operation] = {}
        # An op comes after its inputs in the graph, so twins (equal earlier ops) of its inputs are
        # already known.
        for op in ops:
            self._look_for(op)

    def find_twin(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return an equal tensor of an earlier op, or the tensor itself if there is none."""
        source = self._find_source(tensor)
        # The source of a variable's read is the variable's handle, but callers need the value.
        return tensor if source.dtype == tf.resource else source

    def _find_source(self, tensor: tf.Tensor) -> tf.Tensor:
        """Follow a tensor back through reads and `Identity` to its source, or an equal one."""
        while self._passes_on(tensor.op):
            tensor = tensor.op.inputs[0]
        twin = self._twins.get(tensor.op.name)
        return twin.outputs[tensor.value_index] if twin else tensor

    def _passes_on(self, op: tf.Operation) -> bool:
        is_read = op.type == "ReadVariableOp" and op.inputs[0].name in self._handles
        return is_read or op.type == "Identity"

    def _look_for(self, op: tf.Operation) -> None:
        sources = list(map(self._find_source, op.inputs))
        if op.type == "Const" or (sources and all(s.op.name in self._constant for s in sources)):
            self._constant.add(op.name)
        if twin := self._find_earlier(op, sources):
            self._twins[op.name] = twin

    def _find_earlier(self, op: tf.Operation, sources: Sequence[tf.Tensor]) -> tf.Operation | None:
        """Return an earlier op that equals `op` and reads the same inputs; None if none does."""
        # A twin reads the same inputs, so only the readers of one input are candidates.
        earlier = next((source for source in sources if source.op.name not in self._new), None)
        if earlier is None or self._passes_on(op):
            return None
        return next((o for o in self._list_users(earlier) if self._are_alike(op, o)), None)

    def _list_users(self, source: tf.Tensor) -> Iterator[tf.Operation]:
        """Yield the ops that read a tensor, except for new ops, whose index is at least `first`."""
        for op in source.consumers():
            # An op such as Identity or ReadVariableOp passes a value on: list the readers of the
            # op's output in place of the op.
            if self._passes_on(op):
                yield from self._list_users(op.outputs[0])
            elif op.name not in self._new:
                yield op

    def _are_alike(self, op: tf.Operation, other: tf.Operation) -> bool:
        return (
            op.type == other.type
            and self._is_repeatable(op)
            and len(op.inputs) == len(other.inputs)
            # Compare attributes, such as strides or padding.
            and lists.settings(op) == lists.settings(other)
            and all(map(self._are_same, op.inputs, other.inputs))
        )

    def _are_same(self, tensor: tf.Tensor, other: tf.Tensor) -> bool:
        tensor, other = self._find_source(tensor), self._find_source(other)
        is_constant = tensor.op.name in self._constant and tensor.value_index == other.value_index
        return tensor.name == other.name or (is_constant and self._are_alike(tensor.op, other.op))

    def _is_repeatable(self, op: tf.Operation) -> bool:
        # TensorFlow calls lookups stateful, although the tables and variables do not change.
        is_lookup = op.type == "ResourceGather" and op.inputs[0].name in self._handles
        return is_lookup or op.type in _OF_TABLES or not op.op_def.is_stateful
