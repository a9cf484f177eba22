"""Makes serialized summaries of tensors in the graph: histograms and scalars.

summary = histograms.draw("weights/network/kernel", kernel)          # a string scalar
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mtl import types
from mtl.deferred import tf
from mtl.step import gradients as gradients_lib
from mtl.variables import patterns, stacks

MOST_ENTRIES = 1 << 20
"""The most entries of a histogram; of a larger tensor, it shows every n-th entry, to save time."""


def draw(tag: str, values: tf.Tensor) -> tf.Tensor:
    """Draw a histogram of the finite entries of a tensor, as a serialized summary.

    Args:
      tag: the name of the summary.
      values: a float tensor of any shape.

    Returns:
      A string scalar.
    """
    flat = tf.cast(tf.reshape(_thin_values(values), [-1]), tf.float32)
    # TensorFlow's op fails at a NaN, and would end the run.
    finite = tf.boolean_mask(flat, tf.math.is_finite(flat))
    return tf.raw_ops.HistogramSummary(tag=tag, values=finite)


def draw_scalar(tag: str, value: tf.Tensor) -> tf.Tensor:
    """Draw a scalar, as a serialized summary."""
    return tf.raw_ops.ScalarSummary(tags=tag, values=tf.cast(value, tf.float32))


def join(summaries: Sequence[tf.Tensor]) -> tf.Tensor:
    """Join serialized summaries: concatenated protobuf messages are one message."""
    return tf.strings.join(list(summaries)) if summaries else tf.constant("")


def draw_gradient(prefix: str, gradient: types.Gradient, variable: tf.Variable) -> list[tf.Tensor]:
    """Draw the gradient of a variable; for a table, once each row that the batch looked up.

    Args:
      prefix: the beginning of the tag, such as "gradients".
      gradient: a dense or sparse gradient, or None for a variable without a gradient.
      variable: the variable; a stack gets a histogram for each member.

    Returns:
      Serialized summaries, string scalars.
    """
    if gradient is None:
        return []
    # A row that was looked up twice has two slices; its gradient is their sum.
    merged = gradients_lib.merge_rows(gradient)
    values = merged.values if isinstance(merged, tf.IndexedSlices) else merged
    return [draw(f"{prefix}/{name}", part) for name, part in split(variable, values)]


def split(variable: tf.Variable, values: tf.Tensor) -> Iterator[tuple[str, tf.Tensor]]:
    """Yield (name, values) of a variable, or of each member of a stack.

    Args:
      variable: a variable, or a stack of equal variables of several tasks.
      values: a tensor of the variable's shape; the first axis may hold only looked-up rows.
    """
    stack = stacks.find_stack(variable)
    if stack is None:
        yield patterns.shard_name(variable), values
        return
    members = tf.unstack(values, len(stack.names), axis=stack.axis)
    yield from zip(stack.names, members, strict=True)


def _thin_values(values: tf.Tensor) -> tf.Tensor:
    """Return every n-th entry of a large tensor, [N]."""
    count = values.shape.num_elements()
    # An activation has a row for each example, so its size may not be static.
    if count is None or count <= MOST_ENTRIES:
        return values
    stride = math.ceil(count / MOST_ENTRIES)
    # With a common divisor, the stride would skip the same columns in every row.
    while math.gcd(stride, values.shape[-1]) > 1:
        stride += 1
    return tf.reshape(values, [-1])[::stride]
