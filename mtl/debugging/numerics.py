"""Checks, in every step, that no op makes a value that is not finite of finite ones.

from mtl import experiment
experiment.Run.check_numerics = True

The run then ends in the step in which such an op comes up, and names it, whatever
`Update.if_not_finite` says. That is also so where a `tf.where` keeps its value from the losses. The
weights are those of a run without checks, to the bit: nothing is put between two ops.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from mtl import types
from mtl.debugging import origin
from mtl.optimization import finite

# Their other outputs are memory that nobody has written to.
_FIRST_OUTPUT_ONLY = "FusedBatchNorm"
_READS = ("ReadVariableOp", "ResourceGather")


def check_steps(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `model_fn` whose training steps are checked, op by op."""

    @functools.wraps(model_fn)
    def checked(*args: Any, **settings: Any) -> Any:
        with finite.check_before_update(assert_finite):
            return model_fn(*args, **settings)

    return checked


class Checking(types.RunObserver):
    """Checks every op of every training step."""

    def wrap_model_fn(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        return check_steps(model_fn)


def observe(run: types.ObservedRun) -> Checking | None:
    """Return what checks the steps of a run; None unless `Run.check_numerics` is set."""
    return Checking() if run.experiment.run.check_numerics else None


def assert_finite(
    tensors: Iterable[tf.Tensor], step: tf.Tensor, unless: tf.Tensor | bool
) -> tf.Operation:
    """Fail when run if an op that leads to the tensors makes a NaN or infinity of finite inputs.

    Of a loop or a branch it is told as a whole. A variable is taken as made by the op that reads
    it; a batch may hold NaN, which marks what is missing.

    Args:
      tensors: of the graph that is being built.
      step: scalar, the global step, for the message.
      unless: bool scalar that lets all pass.

    Raises:
      InvalidArgumentError: when run; its message has the step, and the ops with their lines.
    """
    graph, all_finite = tf.compat.v1.get_default_graph(), dict[str, tf.Tensor]()

    def is_finite(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.name not in all_finite:
            all_finite[tensor.name] = tf.reduce_all(tf.math.is_finite(tensor))
        return all_finite[tensor.name]

    breaks, names = [], []
    for op in _list_ops(graph, tensors):
        given, made = list(filter(_is_float, op.inputs)), list(filter(_is_float, op.outputs))
        if op.type.startswith(_FIRST_OUTPUT_ONLY):
            made = made[:1]
        if not made or not (given or op.type.startswith(_READS)):
            continue
        sound = [is_finite(tensor) for tensor in given]
        broken = [~is_finite(tensor) for tensor in made]
        breaks.append(tf.reduce_all(sound) & tf.reduce_any(broken))
        names.append(_describe(graph, op))
    flags, step = tf.stack(breaks), tf.as_string(step)

    def fail() -> tf.Operation:
        return finite.fail_at(step, tf.boolean_mask(tf.constant(names), flags), "its ops")

    return tf.cond(tf.reduce_any(flags) & ~tf.convert_to_tensor(unless), fail, tf.no_op)


def _list_ops(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops of the graph that lead to tensors, in the order they were made in."""
    found, left = set[str](), [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op.name not in found:
            found.add(op.name)
            left += [tensor.op for tensor in op.inputs]
    return [op for op in graph.get_operations() if op.name in found]


def _is_float(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating


def _describe(graph: tf.Graph, op: tf.Operation) -> str:
    """Return the name, type and line of an op; the text of the line would end the message."""
    lines = origin.find_origin(graph, op.name).lines
    line = f", {lines[0].partition(': ')[0]}" if lines else ""
    return f"{op.name} ({op.type}{line})"
