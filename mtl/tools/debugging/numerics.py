"""Checks in every step that each op with finite inputs has finite outputs.

from mtl import experiment
experiment.Run.check_numerics = True

The run ends in the first step with an op that fails the check, and names the op. The setting
`Update.if_not_finite` does not change this. It also ends if a `tf.where` hides the value from the
losses. Checks do not change the weights by a single bit: they insert nothing between two ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from mtl import types
from mtl.deferred import tf
from mtl.optimization import finite
from mtl.step import gradients as gradients_lib
from mtl.tools.debugging import origin

# The other outputs of these ops are uninitialised memory.
_FIRST_OUTPUT_ONLY = "FusedBatchNorm"
_READS = ("ReadVariableOp", "ResourceGather")


class Checking(types.RunObserver):
    """Checks every op of every training step."""

    def list_extensions(self, model: Any, statistics: Any) -> Sequence[types.MakeExtension]:
        return [_CheckedStep]


class _CheckedStep(types.StepExtension):
    """Refuses a step, op by op."""

    # Checks read single ops, so layers of several tasks may stay stacked.
    suits_stacks = True

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels

    def check_update(
        self,
        losses: types.Tensors,
        gradients: Sequence[types.Gradient],
        step: tf.Tensor,
        unless: tf.Tensor | bool,
    ) -> Sequence[tf.Operation]:
        tensors = [*losses.values(), *gradients_lib.list_values(gradients)]
        return [assert_finite(tensors, step, unless)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckNumerics:
    """Ends a run in the first step in which an op makes a NaN or infinity of finite inputs.

    `Run.check_numerics` adds such a part.
    """

    def __call__(self, run: types.ObservedRun) -> Checking:
        """Return the observer that checks a run's steps."""
        del run
        return Checking()


def assert_finite(
    tensors: Iterable[tf.Tensor], step: tf.Tensor, unless: tf.Tensor | bool
) -> tf.Operation:
    """Fail when run if an op behind the tensors makes a NaN or infinity from finite inputs.

    A loop or a branch counts as one op. A variable counts as an output of the op that reads it. A
    batch may hold NaN, which marks missing values.

    Args:
      tensors: tensors of the graph that is being built.
      step: scalar, the global step, for the message.
      unless: bool scalar; True switches the check off.

    Raises:
      InvalidArgumentError: when run; its message has the step, and the ops with their lines.
    """
    graph, all_finite = tf.compat.v1.get_default_graph(), dict[str, tf.Tensor]()

    def is_finite(tensor: tf.Tensor) -> tf.Tensor:
        # Most tensors are the output of one op and the input of another: one test serves both.
        if tensor.name not in all_finite:
            all_finite[tensor.name] = tf.reduce_all(tf.math.is_finite(tensor))
        return all_finite[tensor.name]

    breaks, names = [], []
    for op in _list_ops(graph, tensors):
        given, made = list(filter(_is_float, op.inputs)), list(filter(_is_float, op.outputs))
        if op.type.startswith(_FIRST_OUTPUT_ONLY):
            made = made[:1]
        # Constants and batches have no float inputs, and may hold NaN for a missing value.
        if not made or not (given or op.type.startswith(_READS)):
            continue
        sound = [is_finite(tensor) for tensor in given]
        broken = [~is_finite(tensor) for tensor in made]
        # Only the op that broke the value: those that follow have inputs that are not finite.
        breaks.append(tf.reduce_all(sound) & tf.reduce_any(broken))
        names.append(_describe_op(graph, op))
    flags, step = tf.stack(breaks), tf.as_string(step)

    def fail() -> tf.Operation:
        return finite.fail_at(step, tf.boolean_mask(tf.constant(names), flags), "its ops")

    # The texts of the message are made in the branch, so that a sound step does not pay for them.
    return tf.cond(tf.reduce_any(flags) & ~tf.convert_to_tensor(unless), fail, tf.no_op)


def _list_ops(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops of the graph that lead to tensors, in the order of creation."""
    found, left = set[str](), [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op.name not in found:
            found.add(op.name)
            left += [tensor.op for tensor in op.inputs]
    return [op for op in graph.get_operations() if op.name in found]


def _is_float(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating


def _describe_op(graph: tf.Graph, op: tf.Operation) -> str:
    """Return name, type and line number of an op; the line's text could end the message."""
    lines = origin.find_origin(graph, op.name).lines
    line = f", {lines[0].partition(': ')[0]}" if lines else ""
    return f"{op.name} ({op.type}{line})"
