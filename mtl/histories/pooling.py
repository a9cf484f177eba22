"""Pooling of events: their mean, sum or maximum, or the last event."""

from __future__ import annotations

from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.histories import padded

_KINDS = ("mean", "sum", "max", "last")


@checks.dataclass
class Pooling(types.HistoryEncoder):
    """The mean, sum or maximum of events, or the last event; zeros for rows without events.

    Attributes:
      kind: "mean", "sum" or "max" over the events of a row, or "last" for the last event.
    """

    kind: Annotated[str, checks.OneOf(_KINDS)] = "mean"

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Pool events, [B, (L), D] -> [B, D]."""
        del target
        values, rows = events.flat_values, events.value_rowids()
        counts = events.row_lengths()[:, tf.newaxis]
        if self.kind == "max":
            greatest = tf.math.unsorted_segment_max(values, rows, events.nrows())
            # Replace the maximum of a row without events, which is the lowest float.
            return tf.where(counts > 0, greatest, tf.zeros_like(greatest))
        if self.kind == "last":
            # Set all other events to 0, so the sum below is the last event.
            is_last = tf.equal(tf.gather(events.row_splits[1:], rows) - 1, _number_rows(values))
            values = tf.where(is_last[:, tf.newaxis], values, tf.zeros_like(values))
        total = padded.sum_rows(values, events)
        if self.kind != "mean":
            return total
        return tf.math.divide_no_nan(total, tf.cast(counts, total.dtype))


def _number_rows(values: tf.Tensor) -> tf.Tensor:
    return tf.range(tf.shape(values, tf.int64)[0])
