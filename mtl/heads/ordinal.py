"""Ordinal regression: a task with ordered classes, such as ratings.

stars/heads.Ordinal.name = "stars"
stars/heads.Ordinal.classes = ["bad", "fair", "good"]    # or the number of classes, 3
stars/heads.Ordinal.prior = [0.2, 0.3, 0.5]
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mtl import layers, types
from mtl.deferred import compat, tf, tf1
from mtl.heads import base, classes, metrics, objectives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordinal(classes.Classes):
    """Ordinal regression by C - 1 thresholds of a score: `P(y > k) = sigmoid(score - t_k)`.

    `loss_i = sum_k CE(P(y > k), [y_i > k])`; Cao, Mirjalili and Raschka, "Rank consistent ordinal
    regression for neural networks with application to age estimation" (CORAL), 2019,
    arXiv:1901.07884. In the paper, the thresholds are in order only at the optimum. Here
    `t_k = t_0 + sum softplus(d)` keeps the thresholds in order, so every probability is at least 0.

    A label is a class id if the label field is int64, and a class name if the field is string. If
    all class names are whole numbers, an int64 label is one of these numbers instead of an id.
    Predicts `probabilities` [B, C], `class_id` (the median, which minimises the absolute error),
    `class` (its name) and `value` (the mean class id).

    Attributes:
      classes: the number of classes, at least 2, or their names from the lowest to the highest.
      prior: the share of each class, above 0, that the initial thresholds predict; equal shares by
        default.
    """

    prior: float | Sequence[float] | Mapping[str, float] | None = None

    directions: ClassVar[Mapping[str, bool]] = {
        "mae": False,
        "rmse": False,
        "accuracy": True,
        **base.Base.directions,
    }

    def __post_init__(self):
        super().__post_init__()
        self._class_shares()

    def _class_shares(self) -> list[float]:
        return [1.0] * (self.size + 1) if self.prior is None else self._per_class("prior")

    @property
    def size(self) -> int:
        """The number of logits: one logit for each threshold."""
        return len(self.class_names) - 1

    def initial_bias(self) -> list[float]:
        """Return the first threshold t_0, then the number d of each step to the next threshold."""
        shares = self._class_shares()
        below = list(itertools.accumulate(shares))[:-1]
        above = list(itertools.accumulate(reversed(shares)))[-2::-1]
        # A tiny class share between two thresholds would be lost to rounding if the code subtracted
        # the thresholds' log-odds.
        steps = [
            math.log1p(share / lower) + math.log1p(share / upper)
            for share, lower, upper in zip(shares[1:-1], below, above[1:], strict=False)
        ]
        # log(exp(x) - 1) is the inverse of softplus.
        raw_steps = [math.log(math.expm1(step)) for step in steps]
        return [math.log(below[0]) - math.log(above[0]), *raw_steps]

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute the logits of y > 0, y > 1, ...

        Args:
          tower: the output of the tower, [B, H].

        Returns:
          The logits [B, C - 1], in falling order within each row.
        """
        score = layers.dense(tower, 1, "logits", use_bias=False)
        initializer = tf1.constant_initializer(self.initial_bias())
        # The variable holds the first threshold, and C - 2 steps before softplus.
        raw = tf1.get_variable("thresholds", [self.size], tf.float32, initializer)
        return score - tf.cumsum(tf.concat([raw[:1], tf.nn.softplus(raw[1:])], 0))

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, C - 1], [B] -> [B]."""
        # Each threshold is a binary task: is the label above the threshold?
        above = tf.cast(targets[:, tf.newaxis] > tf.range(self.size, dtype=tf.int64), tf.float32)
        return tf.reduce_sum(objectives.binary_cross_entropy(logits, above), axis=-1)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Sum the divergences of two predictions over thresholds: [B, C - 1] twice -> [B]."""
        return tf.reduce_sum(objectives.bernoulli_divergence(logits, others), -1)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logits of y > 0, y > 1, ... from `probabilities`: [B, C] -> [B, C - 1]."""
        probabilities = predictions["probabilities"]
        above = tf.cumsum(probabilities, -1, exclusive=True, reverse=True)[:, :-1]
        below = tf.cumsum(probabilities, -1)[:, :-1]
        above, below = (tf.maximum(share, objectives.LEAST) for share in (above, below))
        # Use the sums from both sides, as 1 - above would round to 0.
        return tf.math.log(above) - tf.math.log(below)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits [B, C - 1].

        Returns:
          `probabilities` [B, C]; `class_id` int64 [B], the median class; `class` string [B], its
          name; and `value` [B], the mean class id.
        """
        class_id = _find_median(logits)
        return {
            "probabilities": _compute_probabilities(logits),
            "class_id": class_id,
            "class": tf.gather(tf.constant(self.class_names), class_id),
            "value": tf.reduce_sum(tf.sigmoid(logits), axis=-1),
        }

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Build the outputs of an export.

        Returns:
          `predict` with all predictions, `classify` with the probabilities of all classes, and
          `regress` with the mean class id.
        """
        predictions = self.predictions(logits)
        scores = predictions["probabilities"]
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "classify": base.classification_output(scores, self.class_names),
            "regress": compat.estimator.export.RegressionOutput(predictions["value"]),
        }

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum row weights for each class, and for each distance between predicted and labelled id.

        Returns:
          `rows`, the weight of the rows of each class, and `off_by`, the weight of the rows at each
          distance between the predicted and the labelled class id; float64 [C] each.
        """
        logits, targets, weights = examples
        distance = tf.cast(tf.abs(_find_median(logits) - targets), tf.int32)
        num_classes = self.size + 1
        return {
            "rows": metrics.count_in_bins(tf.cast(targets, tf.int32), weights, num_classes),
            "off_by": metrics.count_in_bins(distance, weights, num_classes),
        }

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Returns:
          `accuracy`; `accuracy_baseline`, the accuracy of always predicting the most frequent
          class; and `mae` and `rmse`, the mean errors of the predicted class id. All metrics are
          NaN without labelled rows.
        """
        weight, off_by = sums["weight"], sums["off_by"]
        distance = np.arange(self.size + 1, dtype=np.float64)
        return {
            "accuracy": metrics.ratio(off_by[0], weight),
            "accuracy_baseline": metrics.ratio(tf.reduce_max(sums["rows"]), weight),
            "mae": metrics.ratio(tf.reduce_sum(off_by * distance), weight),
            "rmse": tf.sqrt(metrics.ratio(tf.reduce_sum(off_by * distance**2), weight)),
        }


def _compute_probabilities(logits: tf.Tensor) -> tf.Tensor:
    """Convert logits [B, C - 1] to probabilities [B, C], precisely even if tiny.

    A difference of two sigmoids near 1 would round to 0 if it is below 6e-8. So a product replaces
    the difference: `sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a))` for
    `a >= b`.
    """
    above, below = tf.sigmoid(logits), tf.sigmoid(-logits)
    gaps = logits[:, :-1] - logits[:, 1:]
    # With t = tanh(x / 2), 1 - exp(-x) is 2 t / (1 + t); ONNX lacks expm1. The difference of two
    # infinite logits is NaN, which 0 replaces.
    half = tf.tanh(tf.where(tf.math.is_nan(gaps), tf.zeros_like(gaps), gaps) / 2)
    inner_classes = above[:, :-1] * below[:, 1:] * (2 * half / (1 + half))
    return tf.concat([below[:, :1], inner_classes, above[:, -1:]], -1)


def _find_median(logits: tf.Tensor) -> tf.Tensor:
    """Return the median class, the number of thresholds with P(y > k) > 1/2: [B]."""
    return tf.reduce_sum(tf.cast(logits > 0, tf.int64), axis=-1)
