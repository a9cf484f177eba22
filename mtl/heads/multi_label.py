"""A multi-label task: any number of classes may apply to a row.

topics/heads.MultiLabel.name = "topics"
topics/heads.MultiLabel.classes = ["sport", "politics", "film"]
topics/heads.MultiLabel.threshold = 0.3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.example_gradients import proof
from mtl.heads import (
    base,
    binary,
    calibrated,
    classes,
    metrics,
    objectives,
    ranking,
    slices,
)


@checks.dataclass
class MultiLabel(classes.Classes):
    """One logistic regression per class: `p = sigmoid(logits)`.

    The loss is the mean over classes and rows of `objectives.binary_cross_entropy`. A label is a
    multi-hot vector or a list of classes. A multi-hot label, of shape (C,), holds 1, 0 or a missing
    value for each class; missing values add nothing to the loss. A list, of shape (None,), holds
    the ids (int64) or names (string) of the classes that apply. If all class names are whole
    numbers, an int64 label in a list is one of these numbers instead of an id.

    Predicts `probabilities` [B, C] and `multi_hot` [B, C]. The metrics `auc` and `pr_auc` are means
    over the classes, and exact up to a number of different scores that `mtl.heads.ranking` states.

    Attributes:
      classes: the number of classes, at least 2, or their names in the order of their ids.
      empty_is_missing: True if an empty list means a missing label, and False if it means that no
        class applies. An absent list and a list with a missing value, [-1] or [""], always mean a
        missing label. CSV and tf.Examples do not tell an absent list from an empty list.
      positive_weight: the factor of the loss of positives, above 0: one number for all classes, a
        list with a number for each class, or {class name: number}.
      label_smoothing: the strength of label smoothing, in [0, 1).
      focal_gamma: the exponent of the focal loss, at least 0; see
        `objectives.binary_cross_entropy`.
      threshold: the probability in (0, 1) from which a class is predicted.
      prior: the share of rows with each class, in (0, 1), that the initial bias predicts: one
        number for all classes, or a list with a number for each class.
      calibration_slices: {feature: values}. Each slice of rows has its own calibration, as with
        `Binary.calibration_slices`.
    """

    empty_is_missing: bool = False
    positive_weight: float | Sequence[float] | Mapping[str, float] = 1.0
    label_smoothing: checks.Rate = 0.0
    focal_gamma: checks.NotNegative = 0.0
    threshold: Annotated[float, base.check_share] = 0.5
    prior: float | Sequence[float] | None = None
    calibration_slices: Annotated[Mapping[str, Sequence[Any]], slices.check] = dataclasses.field(
        default_factory=dict
    )

    label_types: ClassVar[tuple[str, ...]] = ("int64", "float32", "string")
    label_shape: ClassVar[tuple[int | None, ...]] = (None,)
    directions: ClassVar[Mapping[str, bool]] = {
        "auc": True,
        "pr_auc": True,
        "accuracy": True,
        "precision": True,
        "recall": True,
        "exact_match": True,
        "normalized_entropy": False,
        **base.Base.directions,
    }

    has_one_class: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        self._per_class("positive_weight")
        if self.prior is not None:
            for share in self._per_class("prior"):
                base.check_share(self._where("prior"), share)

    @property
    def size(self) -> int:
        """The number of logits: one logit for each class."""
        return len(self.class_names)

    def initial_bias(self) -> Any:
        """Return the logits of the shares in `prior`."""
        return 0.0 if self.prior is None else list(map(base.logit, self._per_class("prior")))

    def targets(self, label: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels.

        Args:
          label: multi-hot, int64 or float32 [B, C]; or lists of classes, int64 or string, ragged
            [B, (L)].

        Returns:
          Multi-hot targets, float32 [B, C], and a mask of present entries, bool [B, C].

        Raises:
          UserError: the label field has a type or shape that the head does not accept.
          InvalidArgumentError: when the op runs, if a multi-hot value is not 0, 1 or missing, or if
            a list holds a value that is not the label of a class.
        """
        if isinstance(label, tf.RaggedTensor):
            return self._targets_of_lists(label)
        kinds, shape = (tf.int64, tf.float32), (self.size,)
        label = self.read_field({self.field: label}, self.field, kinds, shape)
        present, hits = self.are_present(label), tf.equal(label, 1)
        targets = tf.cast(hits, tf.float32)
        return self.checked(targets, hits | tf.equal(label, 0) | ~present, label, _RULE), present

    def _targets_of_lists(self, label: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        kinds = (tf.int64, tf.string)
        label_values = self.read_field({self.field: label}, self.field, kinds, (None,)).flat_values
        is_present = self.are_present(label_values)
        ids = tf.where(is_present, self._checked_ids(label_values, is_present), 0)
        # Each pair of a row and a class is an index into a flat tensor [B * C].
        cells = label.value_rowids() * self.size + ids
        shape = tf.stack([label.nrows(), self.size])
        counts = tf.math.unsorted_segment_sum(
            tf.cast(is_present, tf.float32), cells, tf.reduce_prod(shape)
        )
        # A missing value may stand for any class, so all labels of the row are missing.
        marks = tf.cast(~is_present, tf.int32)
        missing = tf.math.unsorted_segment_sum(marks, label.value_rowids(), label.nrows()) > 0
        if self.empty_is_missing:
            missing |= tf.equal(label.row_lengths(), 0)
        # If a list names a class twice, the target is still 1.
        targets = tf.ensure_shape(tf.reshape(tf.minimum(counts, 1.0), shape), [None, self.size])
        present = tf.broadcast_to(~missing[:, tf.newaxis], shape)
        return proof.declare(targets), proof.declare(present)

    def criterion(self, given: Sequence[Any]) -> tuple[Callable[[Any], bool], str]:
        """Return the check and the rule for values of a multi-hot label or a list of classes."""
        # A label of C values is multi-hot if some values are floats, or if some are equal, because
        # a list names each class only once.
        is_multi_hot = len(set(given)) < self.size or any(isinstance(v, float) for v in given)
        if len(given) == self.size and is_multi_hot:
            return lambda value: value in (0, 1), _RULE
        return super().criterion(given)

    def calibrate(self, logits: tf.Tensor, features: types.Tensors) -> tf.Tensor:
        """Scale and shift each row's logits as calibrated for its slice: [B, C] -> [B, C]."""
        where = self._where("calibration_slices")
        return calibrated.calibrate(logits, 0, self.calibration_slices, features, where)

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, C], [B, C] -> [B, C]."""
        weights = self._per_class("positive_weight")
        return objectives.binary_cross_entropy(
            logits, targets, weights, self.label_smoothing, self.focal_gamma
        )

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Average the divergences of two predictions over the classes: [B, C] twice -> [B]."""
        return tf.reduce_mean(objectives.bernoulli_divergence(logits, others), -1)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Average the entropies of the predicted probabilities over classes: [B, C] -> [B]."""
        return tf.reduce_mean(objectives.bernoulli_entropy(logits), -1)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logits that lead to the predicted `probabilities`: [B, C] -> [B, C]."""
        return objectives.recover_log_odds(predictions["probabilities"])

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, C] -> probabilities float32 and multi_hot int64, both [B, C]."""
        probabilities = tf.sigmoid(logits)
        return {
            "probabilities": probabilities,
            "multi_hot": tf.cast(probabilities >= self.threshold, tf.int64),
        }

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return the scores of each class, and sums over multi-hot entries and over whole rows."""
        logits, targets, weights = examples
        predicted_labels = tf.cast(tf.sigmoid(logits) >= self.threshold, tf.float32)
        mistakes = tf.cast(tf.not_equal(predicted_labels, targets), tf.float32)
        # The weight of a missing entry is 0, so the greatest weight is the row's weight.
        row_weights = tf.reduce_max(weights, axis=-1)
        has_mistake = tf.cast(tf.reduce_any(mistakes * weights > 0, axis=-1), tf.float32)
        return {
            "scores": ranking.stream_scores(logits, weights * targets, weights * (1 - targets)),
            "cross_entropy": metrics.sum_weighted(
                objectives.binary_cross_entropy(logits, targets), weights
            ),
            "labels": tf.stack(
                [metrics.sum_weighted(hit, weights, axis=0) for hit in (1 - targets, targets)], -1
            ),
            "positive": metrics.sum_weighted(targets, weights),
            "flagged": metrics.sum_weighted(predicted_labels, weights),
            "hits": metrics.sum_weighted(predicted_labels * targets, weights),
            "rows": metrics.sum_weighted(tf.ones_like(row_weights), row_weights),
            "mistaken_rows": metrics.sum_weighted(has_mistake, row_weights),
        }

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics of multi-hot entries and of rows, and the mean AUC of classes."""
        return {
            **binary.confusion(sums),
            "exact_match": 1 - metrics.ratio(sums["mistaken_rows"], sums["rows"]),
            **ranking.integrate_curves(sums["scores"]),
            "normalized_entropy": metrics.normalized_entropy(sums["cross_entropy"], sums["labels"]),
            "label_mean": metrics.ratio(sums["positive"], sums["weight"]),
        }


_RULE = "be 1, 0 or missing"
