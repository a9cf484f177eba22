"""Heads of a number: any number, a count, an amount or a time.

price/heads.Regression.name = "price"
price/heads.Regression.loss_type = "huber"
visits/heads.Poisson.name = "visits"
claims/heads.Tweedie.name = "claims"
minutes/heads.WeightedLogistic.name = "minutes"
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import compat, tf
from mtl.heads import base, metrics, objectives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(base.Base):
    """The common base of heads of a number: labels, one predicted `value`, errors and means."""

    has_ids: ClassVar[bool] = False
    directions: ClassVar[Mapping[str, bool]] = {
        "rmse": False,
        "mae": False,
        "r2": True,
        **base.Base.directions,
    }

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of logits."""

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the predicted number of every logit."""
        return logits

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] or [B, n] -> the same shape, and a mask of present labels.

        Integers become float64, as float32 is exact only up to 2^24.
        """
        present = self.are_present(label)
        targets = label if label.dtype.is_floating else tf.cast(label, tf.float64)
        targets = tf.where(present, targets, tf.zeros_like(targets))
        valid = tf.math.is_finite(targets) & self.in_range(targets)
        return self.checked(targets, valid, label, self.rule(label.dtype)), present

    def in_range(self, value: Any) -> Any:
        """Return True for each finite number, or tensor element, that can be a label."""
        del value
        return True

    def accepts(self, value: Any) -> bool:
        """Return True if the value is finite and in range."""
        return math.isfinite(value) and bool(self.in_range(value))

    def happened(self, targets: tf.Tensor) -> tf.Tensor:
        """Return a mask of the numbers that are not 0."""
        return tf.not_equal(targets, 0)

    def is_outcome(self, value: Any) -> bool:
        """Return True if the number is not 0."""
        return value != 0

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, n] -> value float32, [B] if n is 1, else [B, n]."""
        value = self.value(logits)
        return {"value": tf.squeeze(value, -1) if self.size == 1 else value}

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Predict, and regress to the value."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["value"]),
        }

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Align examples as all heads do, with logits [B] if there is one logit, else [B, n]."""
        return super().examples(tf.squeeze(logits, -1) if self.size == 1 else logits, labels)

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return the moments of the labels, the sum of predictions, and the sums of errors."""
        logits, targets, weights = examples
        # Float64 keeps errors of large integer labels exact.
        value, targets = tf.cast(self.value(logits), tf.float64), tf.cast(targets, tf.float64)
        return {
            "labels": metrics.Moments(targets, weights),
            "predictions": metrics.sum_weighted(value, weights),
            "squared_errors": metrics.sum_weighted(
                objectives.squared_error(value, targets), weights
            ),
            "absolute_errors": metrics.sum_weighted(
                objectives.absolute_error(value, targets), weights
            ),
        }

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Return errors in the unit of the label, the share of explained variance, and means."""
        weight = sums["weight"]
        label_mean, variation = sums["labels"]
        return {
            "rmse": tf.sqrt(metrics.ratio(sums["squared_errors"], weight)),
            "mae": metrics.ratio(sums["absolute_errors"], weight),
            "r2": 1 - metrics.ratio(sums["squared_errors"], variation),
            "label_mean": label_mean,
            "prediction_mean": metrics.ratio(sums["predictions"], weight),
        }


@checks.dataclass
class Regression(Number):
    """Linear regression on the tower: the prediction is the logit times `unit`.

    Predicts `value`, [B] or [B, n]. If a label has several numbers, each number has a loss and may
    be missing.

    Errors of integer labels are exact, but predictions are float32 with 7 digits. If labels need
    more digits, as times do, store their distances from a start.

    Attributes:
      loss_type: the loss of an error e: squared (e^2), absolute (|e|), huber (e^2 / 2 up to delta,
        then delta (|e| - delta / 2)) or log_cosh (log cosh e).
      huber_delta: the error, above 0 and in units of the label, above which huber is linear.
      dimension: the numbers in one label: 1 for labels [B], n for [B, n].
      prior: the value that the initial bias predicts; the label's mean is a good choice if it is
        far from 0.
      unit: the unit of the logits, above 0, such as 1000 to learn grams in kilograms. The
        prediction is the logit times the unit, and the loss divides errors by it. Use the standard
        deviation of the labels if it is far from 1. Outputs then start in the range of the labels,
        and the loss has a size similar to other tasks.
    """

    loss_type: Annotated[str, checks.OneOf(objectives.REGRESSION)] = "squared"
    huber_delta: checks.Positive = 1.0
    dimension: checks.Count = 1
    prior: float = 0.0
    unit: checks.Positive = 1.0

    @property
    def size(self) -> int:
        """One logit per number."""
        return self.dimension

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of the label in one example, [] or [n]."""
        return () if self.dimension == 1 else (self.dimension,)

    def initial_bias(self) -> float:
        """Return the prior, in units of `unit`."""
        return float(self.prior) / self.unit

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the logits in the unit of the label."""
        return logits if self.unit == 1 else logits * tf.cast(self.unit, logits.dtype)

    def rule(self, dtype: Any) -> str:
        """Return the rule for errors: a label is a finite number."""
        del dtype
        return "be a finite number"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, ...], [B, ...] -> [B, ...]."""
        # The loss measures errors in units of `unit`, so the delta needs the same unit.
        settings = {"delta": self.huber_delta / self.unit} if self.loss_type == "huber" else {}
        if self.unit != 1:
            targets = targets / tf.cast(self.unit, targets.dtype)
        return objectives.REGRESSION[self.loss_type](logits, targets, **settings)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return the mean divergence of normal distributions of variance 1: [B, n] twice -> [B].

        Its unit is the square of `unit`, like the unit of the squared loss.
        """
        return tf.reduce_mean(objectives.gaussian_divergence(logits, others), -1)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return `value` divided by `unit`, [B] or [B, n] -> [B, n]."""
        return tf.reshape(predictions["value"], [-1, self.size]) / self.unit


@checks.dataclass
class Rate(Number):
    """The common base of heads with one logit, the logarithm of the mean.

    Attributes:
      prior: the mean, above 0, that the initial bias predicts.
    """

    prior: checks.Positive = 1.0

    size: ClassVar[int] = 1

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""

    def initial_bias(self) -> float:
        """Return the log of the prior."""
        return math.log(self.prior)

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the rate, exp(logit); above a logit of 30, the rate follows the tangent of exp."""
        return objectives.poisson_rate(logits)

    def in_range(self, value: Any) -> Any:
        """Return True for numbers of at least 0. Fractions may be counts of a part of a period."""
        return value >= 0

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logarithm of the rate, `value` [B] -> [B, 1]."""
        # A small rate may underflow to 0, whose logarithm is infinite.
        return tf.math.log(tf.maximum(predictions["value"], objectives.LEAST))[:, tf.newaxis]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispersion(Rate):
    """The common base of distributions with a `deviance`, which is 0 for a perfect model.

    B. Jørgensen, "Exponential Dispersion Models", 1987.
    """

    directions: ClassVar[Mapping[str, bool]] = {"deviance": False, **Number.directions}

    @abc.abstractmethod
    def deviance(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the deviance of every example: [B], [B] -> [B]."""

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return the sums of `Number`, and the deviance."""
        logits, targets, weights = examples
        # Float64 is needed, as large terms cancel if a count is large and its rate is right.
        logits, targets = tf.cast(logits, tf.float64), tf.cast(targets, tf.float64)
        deviance = metrics.sum_weighted(self.deviance(logits, targets), weights)
        return {**super().sums(examples), "deviance": deviance}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the metrics of `Number`, and the mean deviance."""
        deviance = metrics.ratio(sums["deviance"], sums["weight"])
        return {**super().summary(sums), "deviance": deviance}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Dispersion):
    """Counts: Poisson regression on the tower. The logit is the logarithm of the rate.

    `loss_i = rate - y log(rate)`, without the constant log(y!); `deviance` is 0 for a perfect
    model. Predicts `value`, the rate, [B].
    """

    def rule(self, dtype: Any) -> str:
        """Return the rule for errors: a label is a count."""
        del dtype
        return "be a finite count of at least 0"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""
        return objectives.poisson_loss(logits, targets)

    def deviance(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the deviance of every example: [B], [B] -> [B]."""
        return objectives.poisson_deviance(logits, targets)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return the divergence of the counts: [B, 1], [B, 1] -> [B]."""
        return tf.squeeze(objectives.poisson_divergence(logits, others), -1)


@checks.dataclass
class Tweedie(Dispersion):
    """Amounts that are often 0, such as claims: a compound of Poisson and gamma distributions.

    `loss_i = r^(2 - p) / (2 - p) + y r^(1 - p) / (p - 1)` for the mean r, without terms that depend
    only on the label. The logit is the logarithm of r, and the variance grows as r^p. Predicts
    `value`, the mean, [B].

    Attributes:
      power: p in (1, 2): near 1, amounts resemble counts; near 2, a gamma distribution.
    """

    power: Annotated[
        float, checks.number, checks.Rule("be between 1 and 2", lambda value: 1 < value < 2)
    ] = 1.5

    def rule(self, dtype: Any) -> str:
        """Return the rule for errors: a label is an amount."""
        del dtype
        return "be a finite amount of at least 0"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""
        return objectives.tweedie_loss(logits, targets, self.power)

    def deviance(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the deviance of every example: [B], [B] -> [B]."""
        return objectives.tweedie_deviance(logits, targets, self.power)


@checks.dataclass
class WeightedLogistic(Rate):
    """A watch time, 0 if nothing was watched: weighted logistic regression.

    `loss_i = t log(1 + e^-z) + n log(1 + e^z)`. Positives have their time t as weight; n is 1 for
    negatives and 0 for other rows. Predicts the odds e^z as `value`, [B], in the unit of the label.
    P. Covington, J. Adams, E. Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys
    2016. In the paper, negatives are the rows with a time of 0. The odds are then the expected time
    divided by the share of these rows: too large by a ninth if a tenth of the rows is watched. With
    `negatives = "all"`, every row also counts as a negative once, and the odds are the expected
    time.

    Attributes:
      negatives: the negative rows: "unwatched", as in the paper, or "all".
    """

    negatives: Annotated[str, checks.OneOf(("unwatched", "all"))] = "unwatched"

    def rule(self, dtype: Any) -> str:
        """Return the rule for errors: a label is a time."""
        del dtype
        return "be a finite time of at least 0"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""
        # -log of the probability is softplus(-z) for positives and softplus(z) for negatives.
        times = tf.cast(targets, logits.dtype)
        negatives = tf.ones_like(times)
        if self.negatives == "unwatched":
            negatives = tf.cast(tf.equal(times, 0), logits.dtype)
        return times * tf.nn.softplus(-logits) + negatives * tf.nn.softplus(logits)
