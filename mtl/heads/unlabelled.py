"""The common base of heads without a label: every row weighs 1, and no label can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl import types
from mtl.deferred import compat, tf


class Unlabelled(types.Head):
    """A head that needs no label."""

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Return the number of rows of any label field, or 1 without label fields."""
        return tf.cast(types.count_rows(labels), tf.float32) if labels else tf.constant(1.0)

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return None: no label can be wrong."""
        del labels
        return None

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export output "predict" with all predictions."""
        return {"predict": compat.estimator.export.PredictOutput(self.predictions(logits))}
