"""A task with one of several classes.

digit/heads.MultiClass.name = "digit"
digit/heads.MultiClass.classes = 10                      # or ["cat", "dog", "bird"]
digit/heads.MultiClass.objective = @softmax.CrossEntropy()
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from mtl import checks, types
from mtl.data import label_counts
from mtl.deferred import tf
from mtl.heads import base, calibrated, classes, classifiers, metrics, objectives, slices, softmax
from mtl.heads import shots as shots_lib


@checks.dataclass
class MultiClass(classes.Classes):
    """Softmax regression on the tower: `p = softmax(logits)`.

    A label is a class id if the label field is int64, and a class name if the field is string. If
    all class names are whole numbers, an int64 label is one of these numbers instead of an id.
    Predicts `probabilities` [B, C], `class_id` and `class` (its name).

    Attributes:
      objective: the loss of an example; see `mtl.heads.softmax` for class weights, label smoothing,
        focal loss and margins.
      classifier: the last layer; see `mtl.heads.classifiers`.
      top_k: the number k of the metric `top_<k>_accuracy`; 0 omits this metric. The metric is the
        expected accuracy if ties between logits are broken at random. For example, a class among 10
        equal logits is in the top 3 with a probability of 0.3.
      recall_limit: the largest number of classes for which the metrics include the recall of each
        class.
      shots: adds accuracies for classes with many, some and few training rows; None adds nothing.
      prior: the share of each class, above 0, that the initial bias predicts.
      class_counts: the number of rows of each class in the training split, as a list or as {name:
        rows} with 0 for absent names. With `class_counts = None`, the head counts the rows of each
        class if the objective or `shots` needs the counts.
      calibration_slices: {feature: values}. Each slice of rows has its own calibration, as with
        `Binary.calibration_slices`.
    """

    objective: Annotated[softmax.CrossEntropy, checks.Part("softmax.CrossEntropy", arguments=3)] = (
        softmax.CrossEntropy()
    )
    classifier: Annotated[Any, checks.Part("classifiers.Linear", arguments=3)] = (
        classifiers.Linear()
    )
    top_k: int = 0
    recall_limit: checks.Natural = 32
    shots: Annotated[shots_lib.Shots, checks.Part("shots.Shots", arguments=2)] | None = None
    prior: float | Sequence[float] | Mapping[str, float] | None = None
    class_counts: Sequence[int] | Mapping[str, int] | None = None
    calibration_slices: Annotated[Mapping[str, Sequence[Any]], slices.check] = dataclasses.field(
        default_factory=dict
    )

    directions: ClassVar[Mapping[str, bool]] = {
        "accuracy": True,
        "balanced_accuracy": True,
        "top_*_accuracy": True,
        "recall/*": True,
        "*_shot_accuracy": True,
        "normalized_entropy": False,
        **base.Base.directions,
    }

    def __post_init__(self):
        super().__post_init__()
        if self.prior is not None:
            self._per_class("prior")
            rule = "be None, as the classifier has no bias"
            checks.require(self.classifier.has_bias, self._where("prior"), rule, self.prior)
        self.objective.check(self.class_names)
        margin_scale = getattr(self.objective, "classifier_scale", None)
        scale = getattr(self.classifier, "scale", margin_scale)
        fits, rule = margin_scale in (None, scale), f"have the scale of the classifier, {scale}"
        checks.require(fits, self._where("objective.margin.scale"), rule, margin_scale)
        self._check_counts()
        rule = f"be in [0, {self.size})"
        checks.require(0 <= self.top_k < self.size, self._where("top_k"), rule, self.top_k)

    def _check_counts(self) -> None:
        where, setting = self._where("class_counts"), self.class_counts
        if setting is None:
            return
        checks.is_a(where, setting, (list, tuple, Mapping), "be a list or a map from class names")
        for name in setting if isinstance(setting, Mapping) else ():
            checks.one_of(where, name, self.class_names)
        counts = self._counts_in_order or ()
        for count in counts:
            checks.is_a(where, count, int, "hold numbers of rows")
            checks.at_least(where, count, 0)
        checks.require(len(counts) == self.size, where, f"hold {self.size} numbers", setting)

    @property
    def _counts_in_order(self) -> Sequence[int] | None:
        counts = self.class_counts
        return (
            [counts.get(n, 0) for n in self.class_names] if isinstance(counts, Mapping) else counts
        )

    @property
    def balances(self) -> str | None:
        """The label field if the objective compensates for unequal class shares, else None."""
        return self.field if self.objective.balances else None

    def accumulators(self) -> dict[str, Any]:
        """Return an accumulator that counts the rows of each class, if such counts are needed."""
        needs_counts = self.class_counts is None and (self.shots or self.objective.needs_counts)
        counters = label_counts.accumulators(self.field) if needs_counts else {}
        return counters if self.within is None else self._space.gather(counters)

    def fitted(self, statistics: types.Statistics) -> MultiClass:
        """Return a copy of the head with the number of training rows of each class.

        Args:
          statistics: the statistics of the training split, with the counts that the accumulators of
            this head gathered.

        Returns:
          The copy, or the head itself if it needs no counts of rows.
        """
        if not self.accumulators():
            return self
        where = "" if self.within is None else self._space.suffix
        rows_by_label = label_counts.read_counts(statistics, self.field + where, missing=())
        pairs = zip(self.class_names, self.class_numbers, strict=True)
        # Counts use the labels of the data, which are names or numbers.
        counts = [rows_by_label.get(name, rows_by_label.get(number, 0)) for name, number in pairs]
        return dataclasses.replace(self, class_counts=counts)

    @property
    def size(self) -> int:
        """The number of logits: one logit for each class."""
        return len(self.class_names)

    def initial_bias(self) -> Any:
        """Return the logarithms of the shares in `prior`."""
        return 0.0 if self.prior is None else list(map(math.log, self._per_class("prior")))

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, C]."""
        return self.classifier(tower, self.size, self.initial_bias())

    def calibrate(self, logits: tf.Tensor, features: types.Tensors) -> tf.Tensor:
        """Scale and shift each row's logits as calibrated for its slice: [B, C] -> [B, C]."""
        if not self.calibration_slices:
            return logits
        where = self._where("calibration_slices")
        return calibrated.calibrate(logits, 0, self.calibration_slices, features, where)

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, C], [B] -> [B]."""
        return self.objective(
            logits, targets, softmax.Classes(self.class_names, self._counts_in_order)
        )

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return the Kullback-Leibler divergence of two predictions: [B, C], [B, C] -> [B]."""
        return objectives.categorical_divergence(logits, others)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the entropy of the distribution of classes: [B, C] -> [B]."""
        return objectives.categorical_entropy(logits)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logarithms of the predicted `probabilities`: [B, C] -> [B, C]."""
        return tf.math.log(tf.maximum(predictions["probabilities"], objectives.LEAST))

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits.

        Logits [B, C] -> probabilities float32 [B, C], class_id int64 [B] and class string [B].
        """
        class_id = tf.argmax(logits, axis=-1)
        return {
            "probabilities": tf.nn.softmax(logits),
            "class_id": class_id,
            "class": tf.gather(tf.constant(self.class_names), class_id),
        }

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the plain cross-entropy, and for each class the weights of its rows and its hits."""
        logits, targets, weights = examples
        is_correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), targets), tf.float32)
        ids = tf.cast(targets, tf.int32)
        sums = {
            "rows": metrics.count_in_bins(ids, weights, self.size),
            "hits": metrics.count_in_bins(ids, weights * is_correct, self.size),
            "cross_entropy": metrics.sum_weighted(
                tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits), weights
            ),
        }
        if self.top_k:
            sums["top_k"] = metrics.sum_weighted(
                metrics.in_top(logits, targets, self.top_k), weights
            )
        return sums

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute accuracies over rows, over classes and in the top k, and recalls of classes."""
        weight = sums["weight"]
        recalls = metrics.ratio(sums["hits"], sums["rows"])
        summary = {
            "accuracy": metrics.ratio(tf.reduce_sum(sums["hits"]), weight),
            # The accuracy of always predicting the most frequent class.
            "accuracy_baseline": metrics.ratio(tf.reduce_max(sums["rows"]), weight),
            "balanced_accuracy": metrics.mean_defined(recalls),
            "normalized_entropy": metrics.normalized_entropy(sums["cross_entropy"], sums["rows"]),
        }
        if self.top_k:
            summary[f"top_{self.top_k}_accuracy"] = metrics.ratio(sums["top_k"], weight)
        if self.size <= self.recall_limit:
            for name, recall in zip(self.class_names, tf.unstack(recalls), strict=True):
                summary[f"recall/{name}"] = recall
        if not self.shots:
            return summary
        counts = cast(Sequence[int], self._counts_in_order)  # The setting `shots` needs counts.
        return {**summary, **self.shots(recalls, counts)}
