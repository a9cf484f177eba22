"""Checks in every training step that ops with finite inputs have finite outputs.

from mtl import experiment
experiment.Run.check_numerics = True

The run ends in the first step in which an op fails the check, and the error names the op. A failed
check ends the run for every value of `Update.if_not_finite`. The run ends even if a `tf.where`
hides the NaN from the losses. The checks insert no op between two ops of the model, so the trained
weights stay the same in every bit.
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

# Only the first output of fused batch norm is checked, because other outputs may be uninitialised
# memory.
_FIRST_OUTPUT_ONLY = "FusedBatchNorm"
_READS = ("ReadVariableOp", "ResourceGather")


class Checking(types.RunObserver):
    """Checks every op of every training step."""

    def list_extensions(self, model: Any, statistics: Any) -> Sequence[types.MakeExtension]:
        return [_CheckedStep]


class _CheckedStep(types.StepExtension):
    """Checks that the results of all ops of a training step are finite."""

    # The checks work on any ops, so the layers of several tasks may stay stacked.
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
    """Ends a run in the first step in which an op computes NaN or infinity from finite inputs.

    `Run.check_numerics` adds this part to a run.
    """

    def __call__(self, run: types.ObservedRun) -> Checking:
        """Return an observer that checks the training steps of a run."""
        del run
        return Checking()


def assert_finite(
    tensors: Iterable[tf.Tensor], step: tf.Tensor, unless: tf.Tensor | bool
) -> tf.Operation:
    """Build an op that fails if some op computes NaN or infinity from finite inputs.

    A loop or a branch counts as one op. The value of a variable counts as an output of the op that
    reads it. A batch may contain NaN, which marks missing values.

    Args:
      tensors: tensors of the current graph; all ops that they depend on are checked.
      step: the global step for the message, a scalar.
      unless: a bool scalar; in a step in which it is True, nothing is checked.

    Returns:
      The op, which raises an InvalidArgumentError if the check fails. The error names the step, the
      ops that failed the check, and their lines of code.
    """
    graph, all_finite = tf.compat.v1.get_default_graph(), dict[str, tf.Tensor]()

    def is_finite(tensor: tf.Tensor) -> tf.Tensor:
        # Most tensors are the output of one op and the input of other ops:
        # compute each test only once.
        if tensor.name not in all_finite:
            all_finite[tensor.name] = tf.reduce_all(tf.math.is_finite(tensor))
        return all_finite[tensor.name]

    breaks, names = [], []
    for op in _list_ops(graph, tensors):
        op_inputs, op_outputs = (
            list(filter(_is_float, op.inputs)),
            list(filter(_is_float, op.outputs)),
        )
        if op.type.startswith(_FIRST_OUTPUT_ONLY):
            op_outputs = op_outputs[:1]
        # Skip constants and batches: they have no float inputs, and may have
        # NaN for missing values.
        if not op_outputs or not (op_inputs or op.type.startswith(_READS)):
            continue
        are_finite = [is_finite(tensor) for tensor in op_inputs]
        are_broken = [~is_finite(tensor) for tensor in op_outputs]
        # Report only ops with finite inputs: the inputs of all later ops are already broken.
        breaks.append(tf.reduce_all(are_finite) & tf.reduce_any(are_broken))
        names.append(_describe_op(graph, op))
    flags, step = tf.stack(breaks), tf.as_string(step)

    def fail() -> tf.Operation:
        return finite.fail_at(step, tf.boolean_mask(tf.constant(names), flags), "its ops")

    # Build the message inside the branch, so that it costs no time while all ops are finite.
    return tf.cond(tf.reduce_any(flags) & ~tf.convert_to_tensor(unless), fail, tf.no_op)


def _list_ops(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Return all ops that at least one of the tensors depends on, in the order of creation."""
    names, waiting = set[str](), [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting += [tensor.op for tensor in op.inputs]
    return [op for op in graph.get_operations() if op.name in names]


def _is_float(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating


def _describe_op(graph: tf.Graph, op: tf.Operation) -> str:
    """Return the name, type and line number of an op, without the text of the line."""
    lines = origin.find_origin(graph, op.name).lines
    line = f", {lines[0].partition(': ')[0]}" if lines else ""
    return f"{op.name} ({op.type}{line})"
