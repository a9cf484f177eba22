"""A wrapper for any head of the tf.estimator API.

from mtl import heads
head = compat.estimator.RegressionHead(weight_column="weight")     # needs Keras 2, see mtl.compat
heads.EstimatorHead(name="price", head=head)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks, layers, types
from mtl.deferred import compat, tf, tf1
from mtl.heads import base, metrics, values
from mtl.step import replicas

_DIRECTIONS = {
    "auc": True,
    "auc/*": True,
    "auc_precision_recall": True,
    "auc_precision_recall/*": True,
    "accuracy": True,
    "accuracy/*": True,
    "precision": True,
    "precision/*": True,
    "recall": True,
    "recall/*": True,
    "average_loss": False,
    "loss": False,
}
_KINDS = {"predict": "predict", "classification": "classify", "regression": "regress"}


@checks.dataclass
class EstimatorHead(types.Head):
    """Wraps a head of tf.estimator, behind a linear layer on the tower.

    The wrapped `head` computes loss, predictions, metrics and export outputs. The tf.estimator head
    gets only rows with a label, and reads its `weight_column` from the label fields. Heads of
    `tf.estimator` divide the loss by the number of rows, not by the sum of weights. For a head with
    the `loss_reduction` "sum", the loss of a training step is the sum over all rows of the batch,
    even with micro-batches and replicas. With parameter servers, the loss is the sum over the rows
    of the worker.

    Attributes:
      name: the name of the task, with which the names of its metrics and predictions begin.
        Variables are in `head/<name>`.
      head: a `tf.estimator.Head`, except MultiHead. Instead of a MultiHead, wrap each of its heads
        in a separate `EstimatorHead`.
      label: the name of the label field; the name of the task by default.
      trainable: False freezes the last layer. `mtl.variables.freezing` freezes variables by name.
    """

    name: checks.Name
    head: Any
    label: Annotated[str, checks.Is(str, "name a label field")] | None = None
    trainable: bool = True

    def __post_init__(self):
        where = f"EstimatorHead.head of task {self.name!r}"
        checks.is_a(where, self.head, compat.estimator.Head, "be a tf.estimator head")
        is_single = not isinstance(self.head, compat.estimator.MultiHead)
        fix = "Wrap each head of the MultiHead in an EstimatorHead."
        checks.require(is_single, where, "be a single head", "a MultiHead", fix)

    @property
    def directions(self) -> Mapping[str, bool]:
        """{metric: True if a higher value is better}: first as `head` declares, then defaults."""
        head_directions = getattr(self.head, "directions", {})
        # The `directions` of `head` come first to set the order of metrics, and last to override
        # the defaults.
        return {**head_directions, **_DIRECTIONS, **head_directions}

    @property
    def field(self) -> str:
        """The name of the label field."""
        return self.label or self.name

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, head.logits_dimension]."""
        return layers.dense(tower, self.head.logits_dimension, "logits")

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the loss: logits [B, C] and labels {field: [B, ...]} -> a scalar.

        Raises:
          UserError: the label field is absent, or holds lists of different lengths.
        """
        rows = labels.get(self._rows_field)
        if rows is None:
            return self._compute_loss(logits, labels)
        # A training step multiplies the loss of a part of the batch by the part's share of the
        # labels, as if the loss were a mean. `factor` divides the loss by the part's share of the
        # labels. If the part is the whole batch, `factor` is exactly 1.
        factor = tf.math.divide_no_nan(rows[0], self.label_weight(labels))
        return self._compute_loss(logits, labels) * factor

    def _compute_loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        logits, label, fields = self._select_labelled(logits, labels)
        head, classes = self.head, getattr(self.head, "_label_vocabulary", None)
        if classes is not None and label.dtype == tf.string:
            # The head would create a lookup table here, in the loop over steps, and a session does
            # not initialise the tables of a loop.
            head, (label, _) = copy.copy(head), values.class_ids(label, tuple(classes))
            head._label_vocabulary = None
        return head.loss(label, logits, features=fields)

    def see_batch(self, labels: types.Tensors) -> types.Tensors:
        """Add a field with the number of labelled rows in the batch, if the loss is a sum.

        Args:
          labels: {field: [B, ...]}.

        Returns:
          The labels, with `<task>/labelled_rows` [B] if the loss is a sum over rows.
        """
        if self.head.loss_reduction != "sum":
            return labels
        rows = replicas.sum_over_replicas(self.label_weight(labels))
        return {
            **labels,
            self._rows_field: rows + tf.zeros_like(self._find_rows(labels), rows.dtype),
        }

    @property
    def _rows_field(self) -> str:
        return f"{self.name}/labelled_rows"

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Count the rows with a label: {field: [B, ...]} -> a scalar.

        Raises:
          UserError: the label field is absent, or holds lists of different lengths.
        """
        return tf.reduce_sum(tf.cast(self._find_rows(labels), tf.float32))

    def _find_rows(self, labels: types.Tensors) -> tf.Tensor:
        """Return True for each row with a label, [B]."""
        checks.one_of(f"head {self.name!r}: its label field", self.field, labels)
        where, rule = f"head {self.name!r}: label {self.field!r}", "have a fixed shape"
        is_dense, fix = isinstance(labels[self.field], tf.Tensor), "heads.MultiLabel takes lists."
        checks.require(is_dense, where, rule, "lists of any length", fix)
        kinds = (compat.estimator.RegressionHead, compat.estimator.PoissonRegressionHead)
        is_number = isinstance(self.head, kinds)
        present = (values.are_present if is_number else values.are_ids_present)(labels[self.field])
        return present if present.shape.rank == 1 else tf.reduce_all(present, axis=-1)

    def _select_labelled(
        self, logits: tf.Tensor, labels: types.Tensors
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Select the rows with a label: return logits, the label and all dense label fields."""
        rows = self._find_rows(labels)
        fields = {
            name: tf.boolean_mask(field, rows)
            for name, field in labels.items()
            if isinstance(field, tf.Tensor)
        }
        weight = getattr(self.head, "_weight_column", None)
        if isinstance(weight, str):  # The head would raise a ValueError.
            checks.one_of(f"head {self.name!r}: its weight_column", weight, fields)
        return tf.boolean_mask(logits, rows), fields[self.field], fields

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the tf.estimator head's predictions, under its own names, from logits [B, C]."""
        return dict(self.head.predictions(logits))

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Return the tf.estimator head's metrics, under its own names, and `nan_predictions`.

        `nan_predictions` counts labelled rows of any weight with a NaN prediction. A single NaN
        prediction turns every metric into NaN, except for metrics that depend on labels alone.
        """
        logits, label, fields = self._select_labelled(logits, labels)
        rows = tf.ones_like(logits[:, 0], tf.bool)
        nan_count = base.nan_rows(self.predictions(logits).values(), rows)
        is_nan, nan_update = metrics.stream_sums({"nan": nan_count}, dict)["nan"]
        estimator_metrics = self.head.update_metrics(self.head.metrics(), fields, logits, label)
        for metric in estimator_metrics.values():
            for variable in metric.variables:
                # Sessions initialise only variables of collections, and Keras metrics use no
                # collection.
                tf1.add_to_collection(tf1.GraphKeys.LOCAL_VARIABLES, variable)
        updates = {
            name: tf.group(nan_update, metric.updates) for name, metric in estimator_metrics.items()
        }
        values = {name: metric.result() for name, metric in estimator_metrics.items()}
        of_labels = {"accuracy_baseline", "label/mean"}
        return {
            name: (value, updates.get(name, nan_update))
            for name, value in base.or_nan(values, is_nan, of_labels).items()
        }

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs of the tf.estimator head."""
        mode = compat.estimator.ModeKeys.PREDICT
        outputs = self.head.create_estimator_spec({}, mode, logits).export_outputs
        return {_KINDS[kind]: outputs[kind] for kind in _KINDS if kind in outputs}

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return None, as a tf.estimator head does not say which labels are valid."""
        del labels
        return None
