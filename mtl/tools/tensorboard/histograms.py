"""Adds ops to a graph that serialize summaries: histograms and scalars of tensors.

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
"""The largest number of entries in a histogram; larger tensors show every n-th entry."""


def draw(tag: str, values: tf.Tensor) -> tf.Tensor:
    """Return a serialized summary with a histogram of the finite entries of a tensor.

    Args:
      tag: the name of the summary.
      values: a float tensor of any shape.

    Returns:
      A string scalar with the summary.
    """
    flat = tf.cast(tf.reshape(_thin_values(values), [-1]), tf.float32)
    # TensorFlow's op fails at NaN and infinity, which would end the run.
    finite = tf.boolean_mask(flat, tf.math.is_finite(flat))
    return tf.raw_ops.HistogramSummary(tag=tag, values=finite)


def draw_scalar(tag: str, value: tf.Tensor) -> tf.Tensor:
    """Return a serialized summary with a scalar, as a string scalar.

    Args:
      tag: the name of the summary.
      value: a scalar of any type of numbers.
    """
    return tf.raw_ops.ScalarSummary(tags=tag, values=tf.cast(value, tf.float32))


def join(summaries: Sequence[tf.Tensor]) -> tf.Tensor:
    """Join serialized summaries.

    Concatenated protocol buffers are parsed as one message.

    Args:
      summaries: string scalars.

    Returns:
      A string scalar; "" without summaries.
    """
    return tf.strings.join(list(summaries)) if summaries else tf.constant("")


def draw_gradient(prefix: str, gradient: types.Gradient, variable: tf.Variable) -> list[tf.Tensor]:
    """Return summaries with histograms of the gradient of a variable.

    For an embedding table, the histogram shows only the rows that the batch looked up.

    Args:
      prefix: the beginning of the tag, such as "gradients".
      gradient: a dense or sparse gradient, or None for a variable without a gradient.
      variable: the variable; if it is a stack of variables, each member gets a histogram.

    Returns:
      Serialized summaries, as string scalars; [] without a gradient.
    """
    if gradient is None:
        return []
    # A row that was looked up twice has two slices, whose sum is the gradient.
    merged = gradients_lib.merge_rows(gradient)
    values = merged.values if isinstance(merged, tf.IndexedSlices) else merged
    return [draw(f"{prefix}/{name}", part) for name, part in split(variable, values)]


def split(variable: tf.Variable, values: tf.Tensor) -> Iterator[tuple[str, tf.Tensor]]:
    """Yield the name and the values of a variable, or of each member of a stack.

    Args:
      variable: a variable, or a stack of equal variables of several tasks.
      values: a tensor with the shape of the variable; for an embedding table, it may have only some
        of the rows.
    """
    stack = stacks.find_stack(variable)
    if stack is None:
        yield patterns.shard_name(variable), values
        return
    members = tf.unstack(values, len(stack.names), axis=stack.axis)
    yield from zip(stack.names, members, strict=True)


def _thin_values(values: tf.Tensor) -> tf.Tensor:
    """Return every n-th entry of a large tensor, [N]; return a small tensor unchanged."""
    count = values.shape.num_elements()
    # The size of an activation is unknown if the batch size is unknown.
    if count is None or count <= MOST_ENTRIES:
        return values
    stride = math.ceil(count / MOST_ENTRIES)
    # If the stride and the number of columns had a common divisor, the stride would skip the same
    # columns in every row.
    while math.gcd(stride, values.shape[-1]) > 1:
        stride += 1
    return tf.reshape(values, [-1])[::stride]
