"""A task with two outcomes.

income/heads.Binary.name = "income"
income/heads.Binary.positive = [">50K", ">50K."]
income/heads.Binary.positive_weight = 3.0
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import compat, tf
from mtl.heads import (
    base,
    calibrated,
    group_metrics,
    groups,
    metrics,
    objectives,
    ranking,
    slices,
    values,
)
from mtl.spec import literals


@checks.dataclass
class Binary(base.Base):
    """Logistic regression on the tower: `p = sigmoid(logit)`.

    `loss_i = w_y (1 - p_y)^gamma CE(p, (1 - s) y + s / 2)`; see `objectives.binary_cross_entropy`.
    Predicts `probability` (of the positive class), `class_id` (0 or 1) and `class` (its name). The
    metrics `auc` and `pr_auc` are exact up to a number of different scores that `mtl.heads.ranking`
    states.

    Attributes:
      positive: the label values that count as positive; 1 by default. The first value in `positive`
        is the name of the positive class.
      negative: the label values that count as negative; by default 0 if `positive` is empty, else
        every other value.
      positive_weight: the weight w of positives, above 0; negatives weigh 1. Any weight except 1
        shifts the predicted probabilities, which are then not calibrated.
      label_smoothing: the strength s of label smoothing, in [0, 1).
      focal_gamma: the exponent gamma of the focal loss, at least 0; 0 is plain cross-entropy, and 2
        is the choice of the paper for rare positives.
      threshold: the probability in (0, 1) from which the positive class is predicted. The threshold
        affects the metrics accuracy, precision and recall.
      prior: the share of positives, in (0, 1), that the initial bias predicts. A good prior saves
        the training steps that a head needs to learn how rare positives are.
      knots: the number of points of a piecewise linear map of the logits: 0, or at least 4.
        `calibration.Isotonic` computes the points of the map. Until `calibration.Isotonic` has
        computed the points, the piecewise linear map is the identity.
      calibration_slices: {feature: values}, in the form of `MultiTaskModel.slices`;
        `mtl.tools.calibration` calibrates each slice separately. A row in several slices belongs to
        the first of these slices. Until a calibration has run, the slices of this setting do not
        change the predictions.
      group: the field with the group of a row, such as a user, for the metric `gauc`. The group
        field is a label field, or a feature in `Spec.keys`, of type int64 or string. In every row
        with a label, the group field must have a value. The metric `gauc` takes 20 bytes of memory
        for each row of the split.
    """

    positive: Annotated[Sequence[Any], checks.Is((list, tuple), "be a list of label values")] = ()
    negative: Annotated[Sequence[Any], checks.Is((list, tuple), "be a list of label values")] = ()
    positive_weight: checks.Positive = 1.0
    label_smoothing: checks.Rate = 0.0
    focal_gamma: checks.NotNegative = 0.0
    threshold: Annotated[float, base.check_share] = 0.5
    prior: Annotated[float, base.check_share] | None = None
    knots: checks.Natural = 0
    calibration_slices: Annotated[Mapping[str, Sequence[Any]], slices.check] = dataclasses.field(
        default_factory=dict
    )
    group: Annotated[str, checks.Is(str, "name a label field")] | None = None

    label_types: ClassVar[tuple[str, ...]] = ("int64", "float32", "string")
    size: ClassVar[int] = 1
    directions: ClassVar[Mapping[str, bool]] = {
        "auc": True,
        "pr_auc": True,
        "gauc": True,
        "accuracy": True,
        "precision": True,
        "recall": True,
        "normalized_entropy": False,
        "calibration_error": False,
        **base.Base.directions,
    }

    def __post_init__(self):
        super().__post_init__()
        label_values = [*self.positive, *self.negative]
        where = self._where("positive and negative")
        for value in label_values:
            # A row with a missing label belongs to no class, whatever the settings say.
            checks.require(not values.is_missing(value), where, "hold no missing value", value)
        # Compare values as texts: 1, 1.0, True and "1" are the same label.
        names = [
            str(value if (number := literals.whole(value)) is None else number)
            for value in label_values
        ]
        checks.unique(where, names)
        is_line = self.knots == 0 or self.knots >= 4
        checks.require(is_line, self._where("knots"), "be 0 or at least 4", self.knots)

    @property
    def class_names(self) -> tuple[str, str]:
        """The names of the negative and the positive class."""
        positive = str(self.positive[0]) if self.positive else "1"
        fallback = f"not {positive}" if self.positive else "0"
        return (str(self.negative[0]) if self.negative else fallback, positive)

    def calibrate(self, logits: tf.Tensor, features: types.Tensors) -> tf.Tensor:
        """Calibrate the logits by knots or lines, if a setting asks for them: [B, 1] -> [B, 1]."""
        if not self.knots and not self.calibration_slices:
            return logits
        where = self._where("calibration_slices")
        return calibrated.calibrate(logits, self.knots, self.calibration_slices, features, where)

    @property
    def joint_kind(self) -> str | None:
        """All settings except name and label as a text; None if the head must be computed alone."""
        # A subclass is computed alone, because it may compute another loss. `within` and `group`
        # select rows of a single task.
        is_plain = type(self) is Binary and self.within is None and self.group is None
        if not is_plain or self.knots or self.calibration_slices:
            return None
        return repr(dataclasses.replace(self, name="any", label=None))

    def initial_bias(self) -> float:
        """Return the logit of the share `prior`, or 0 without a prior."""
        return 0.0 if self.prior is None else base.logit(self.prior)

    @property
    def named_values(self) -> Sequence[Any]:
        """The label values of both classes."""
        return (*self.positive, *self.negative)

    @property
    def positives(self) -> Sequence[Any]:
        """The label values that count as positive."""
        return self._values[0]

    @property
    def _values(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Positive and negative label values; without negatives, all other values are negative."""
        if self.positive:
            return self.positive, self.negative
        return (1,), self.negative or (0,)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] -> 1.0 for positives, else 0.0; and a mask of present labels."""
        targets, present, valid = self.parsed(label)
        if valid is not None:
            targets = self.checked(targets, valid, label, self.rule(label.dtype))
        return targets, present

    def parsed(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Parse labels without a check of their range.

        Args:
          label: int64, float32 or string, [B], or [B, T] for T tasks.

        Returns:
          Targets (float32, 1 for positives, else 0), a mask of present labels, and a mask that is
          False for labels out of range, all in the shape of the label. The last mask is None if
          every label is in range.

        Raises:
          UserError: the type of the label cannot hold a value of `positive`, `negative` or
            `missing`.
        """
        where = self._where("positive and negative")
        field = f"label {self.field!r}"
        positive, negative = (
            values.as_held(label, setting, where, field) for setting in self._values
        )
        present, hits = self.are_present(label), values.is_any(label, positive)
        targets = tf.cast(hits & present, tf.float32)
        if not negative:
            return targets, present, None
        return targets, present, ~present | hits | values.is_any(label, negative)

    def accepts(self, value: Any) -> bool:
        """Return True if the value belongs to one of the classes."""
        positive, negative = self._values
        # If `negative` is empty, any value that is not positive is negative, so all are valid.
        return not negative or value in (*positive, *negative)

    def happened(self, targets: tf.Tensor) -> tf.Tensor:
        """Return a mask of the positive targets."""
        return targets > 0

    def is_outcome(self, value: Any) -> bool:
        """Return True if the value counts as a positive label."""
        return value in self._values[0]

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about the label, weight or group of a record, or None."""
        problem = super().check(labels)
        return groups.check_key(self, self.group, labels) if self.group and not problem else problem

    def rule(self, dtype: Any) -> str:
        """Return the rule for labels that error messages state, `be one of ...`."""
        positive, negative = self._values
        return values.one_of([*negative, *positive])

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights in matching shapes.

        Args:
          logits: the log-odds of the positive class, [B, 1].
          labels: {field: [B, ...]}.

        Returns:
          Logits, targets and weights, [B] each. The logits of rows of weight 0 are replaced by 0.
        """
        return super().examples(tf.squeeze(logits, -1), labels)

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: logits [...], targets [...] -> [...]."""
        return objectives.binary_cross_entropy(
            logits, targets, self.positive_weight, self.label_smoothing, self.focal_gamma
        )

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return the Kullback-Leibler divergence of two predictions: [B, 1], [B, 1] -> [B]."""
        return tf.squeeze(objectives.bernoulli_divergence(logits, others), -1)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the entropy of the predicted probability: [B, 1] -> [B]."""
        return tf.squeeze(objectives.bernoulli_entropy(logits), -1)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logits that lead to the predicted `probability`: [B] -> [B, 1]."""
        return objectives.recover_log_odds(predictions["probability"])[:, tf.newaxis]

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits.

        Logits [B, 1] -> probability float32, class_id int64 and class string, all [B]. For T tasks
        together, logits [B, T, 1] -> predictions [B, T].
        """
        probability = tf.sigmoid(tf.squeeze(logits, -1))
        class_id = tf.cast(probability >= self.threshold, tf.int64)
        return {
            "probability": probability,
            "class_id": class_id,
            "class": tf.gather(tf.constant(self.class_names), class_id),
        }

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, both classes, and the probability."""
        predictions = self.predictions(logits)
        scores = self.score_classes(logits, predictions["probability"])
        return self.list_outputs(predictions, scores, base.tile_names(self.class_names, scores))

    def score_classes(self, logits: tf.Tensor, probability: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of both classes.

        Args:
          logits: the log-odds of the positive class, [..., 1].
          probability: the probability of the positive class, [...].

        Returns:
          The probabilities, [..., 2], with the negative class first.
        """
        # A difference, 1 - probability, would round to 0 below 6e-8.
        return tf.stack([tf.sigmoid(-tf.squeeze(logits, -1)), probability], axis=-1)

    def list_outputs(
        self, predictions: types.Tensors, scores: tf.Tensor, classes: tf.Tensor
    ) -> dict[str, Any]:
        """Return the outputs of an export.

        Args:
          predictions: {prediction: [B]}, with "probability".
          scores: the probabilities of both classes, [B, 2].
          classes: the names of both classes for each row, string [B, 2].

        Returns:
          {kind: output}, with the kinds "predict", "classify" and "regress".
        """
        export = compat.estimator.export
        return {
            "predict": export.PredictOutput(predictions),
            "classify": export.ClassificationOutput(scores, classes),
            "regress": export.RegressionOutput(predictions["probability"]),
        }

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return sums for the areas under curves, calibration errors and metrics at the threshold.

        Args:
          examples: logits, targets and weights, [B], or [B, T] for T tasks.

        Returns:
          The sums {name: scalar, or [T] for T tasks}, except for "excess" [15] or [T, 15], and
          "scores", which is a `metrics.Total`.
        """
        total = functools.partial(metrics.sum_weighted, axis=0)
        logits, targets, weights = examples
        probability = tf.sigmoid(logits)
        predicted_positive = tf.cast(probability >= self.threshold, tf.float32)
        return {
            # Rank rows by logits, as different probabilities near 1 may round to the same number.
            "scores": ranking.stream_scores(
                logits, weights * targets, weights * (1 - targets), True
            ),
            "excess": metrics.calibration_sums(probability, targets, weights),
            "cross_entropy": total(objectives.binary_cross_entropy(logits, targets), weights),
            "predicted": total(probability, weights),
            "positive": total(targets, weights),
            "negative": total(1 - targets, weights),
            "flagged": total(predicted_positive, weights),
            "hits": total(predicted_positive * targets, weights),
        }

    def sums_by_group(
        self, examples: types.LossInputs, labels: types.Tensors
    ) -> dict[str, tf.Tensor | metrics.Total]:
        """Return the rows with the keys of their groups, if `group` is set."""
        if self.group is None:
            return {}
        keys = groups.read_keys(self, self.group, labels, examples.weights > 0)
        return {"rows": groups.GroupedRows(keys, *examples)}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics of predicted classes, of the ranking and of probabilities."""
        weight, positive = sums["weight"], sums["positive"]
        areas = ranking.areas_by_class if weight.shape.rank else ranking.integrate_curves
        return {
            **confusion(sums),
            **areas(sums["scores"]),
            **({"gauc": group_metrics.compute_gauc(sums["rows"])} if self.group else {}),
            # The accuracy of always predicting the more frequent class.
            "accuracy_baseline": metrics.ratio(tf.maximum(positive, weight - positive), weight),
            "label_mean": metrics.ratio(positive, weight),
            "prediction_mean": metrics.ratio(sums["predicted"], weight),
            # Calibration is 1 if the predicted number of positives equals the labelled number.
            "calibration": metrics.ratio(sums["predicted"], positive),
            "calibration_error": metrics.calibration_error(sums["excess"], weight),
            "normalized_entropy": metrics.normalized_entropy(
                sums["cross_entropy"], tf.stack([sums["negative"], positive], -1)
            ),
        }


def confusion(sums: types.Tensors) -> dict[str, tf.Tensor]:
    """Return accuracy, precision and recall at the threshold.

    Args:
      sums: sums of weights, all in the same shape: "weight" of all labels, "positive" of positive
        labels, "flagged" of labels that are predicted as positive, and "hits" of positive labels
        that are predicted as positive.

    Returns:
      {metric: a tensor in the shape of the sums}; NaN where a metric is undefined, such as the
      precision if no row is predicted as positive.
    """
    positive, num_flagged, hits = sums["positive"], sums["flagged"], sums["hits"]
    # Correct rows are all rows minus the missed positives (positive - hits) and the false alarms
    # (flagged - hits).
    num_correct = sums["weight"] - positive - num_flagged + 2 * hits
    return {
        "accuracy": metrics.ratio(num_correct, sums["weight"]),
        "precision": metrics.ratio(hits, num_flagged),
        "recall": metrics.ratio(hits, positive),
    }
