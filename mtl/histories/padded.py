"""Pad the events of each row to a matrix, and project a target to the width of events.

values, is_event = padded.pad_events(events)             # [B, L, D] and [B, L]
target = padded.fit_target(events, target)
"""

from __future__ import annotations

from mtl import layers
from mtl.deferred import tf


def pad_events(events: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Pad events with zeros.

    Args:
      events: the events of each row, [B, (L), D].

    Returns:
      The padded events [B, L, D], and a mask bool [B, L], which is False for padding. L is the
      largest number of events in a row of the batch, but at least 1, because some operations fail
      on an empty axis.
    """
    size = events.flat_values.shape[1]
    width = tf.maximum(events.bounding_shape(axis=1), 1)
    values = events.to_tensor(shape=tf.stack([events.nrows(), width, tf.constant(size, tf.int64)]))
    values.set_shape([None, None, size])
    return values, tf.sequence_mask(events.row_lengths(), width)


def fit_target(events: tf.RaggedTensor, target: tf.Tensor) -> tf.Tensor:
    """Return the target with the width of an event; a dense layer `target` projects other widths.

    Args:
      events: the events of each row, [B, (L), D].
      target: the target of each row, [B, T].

    Returns:
      The target with the width D of an event, [B, D].
    """
    size = events.flat_values.shape[1]
    return target if target.shape[1] == size else layers.dense(target, size, "target")


def sum_rows(values: tf.Tensor, events: tf.RaggedTensor) -> tf.Tensor:
    """Sum the values of each row's events.

    Args:
      values: a vector for each of the N events, [N, D].
      events: the N events of all rows, [B, (L), D].

    Returns:
      The sums, [B, D]; 0 for a row without events.
    """
    return tf.math.unsorted_segment_sum(values, events.value_rowids(), events.nrows())
