"""The base class of heads without a label, in which every row weighs 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl import types
from mtl.deferred import compat, tf


class Unlabelled(types.Head):
    """The base class of heads without a label."""

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Count the rows of a batch.

        Args:
          labels: {label field: [B, ...]}; empty if the data has no label fields.

        Returns:
          The number of rows B, a float32 scalar; 1 if there are no label fields.
        """
        return tf.cast(types.count_rows(labels), tf.float32) if labels else tf.constant(1.0)

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return None, as there is no label to check."""
        del labels
        return None

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export output "predict" with all predictions."""
        return {"predict": compat.estimator.export.PredictOutput(self.predictions(logits))}
