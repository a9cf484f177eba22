"""Heads that predict a number: any number, a count, an amount or a time.

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
    """The base class of heads that predict a number: labels, predictions and metrics."""

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
        """Compute the predicted numbers; by default, each logit is a prediction.

        Args:
          logits: [B, n]; for one logit also [B], as from `examples`.

        Returns:
          The predictions in the unit of the label, by default in the shape of the logits.
        """
        return logits

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels.

        Integer labels become float64, as float32 is exact only for integers up to 2^24.

        Args:
          label: the labels, [B] or [B, n].

        Returns:
          Numbers, with 0 for missing labels, and a mask of present labels; in the shape of the
          labels.

        Raises:
          InvalidArgumentError: when the op runs, if a label that is not missing is infinite or out
            of range.
        """
        present = self.are_present(label)
        targets = label if label.dtype.is_floating else tf.cast(label, tf.float64)
        targets = tf.where(present, targets, tf.zeros_like(targets))
        valid = tf.math.is_finite(targets) & self.in_range(targets)
        return self.checked(targets, valid, label, self.rule(label.dtype)), present

    def in_range(self, value: Any) -> Any:
        """Check which numbers can be labels; by default, every number can be a label.

        Args:
          value: a finite number of Python, or a tensor.

        Returns:
          True for a valid number: one bool, or a mask in the shape of the tensor. One True for a
          tensor means that all its numbers are valid.
        """
        del value
        return True

    def accepts(self, value: Any) -> bool:
        """Return True if the value is finite and in range."""
        return math.isfinite(value) and bool(self.in_range(value))

    def happened(self, targets: tf.Tensor) -> tf.Tensor:
        """Return a mask of the targets that are not 0."""
        return tf.not_equal(targets, 0)

    def is_outcome(self, value: Any) -> bool:
        """Return True if the label is not 0."""
        return value != 0

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, n] -> value float32, [B] if n is 1, else [B, n]."""
        value = self.value(logits)
        return {"value": tf.squeeze(value, -1) if self.size == 1 else value}

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, and the value as regression output."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["value"]),
        }

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights; the logits are [B] for one logit, else [B, n]."""
        return super().examples(tf.squeeze(logits, -1) if self.size == 1 else logits, labels)

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum labels, predictions and errors.

        Returns:
          `labels`, a `metrics.Moments` of the labels; and the weighted sums `predictions`,
          `squared_errors` and `absolute_errors`, float64 scalars.
        """
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
        """Compute the metrics.

        Returns:
          `rmse` and `mae`, in the unit of the label; `r2`; and `label_mean` and `prediction_mean`.
          All metrics are NaN without labelled rows; `r2` is also NaN if all labels are equal.
        """
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
    more digits, such as times in seconds since 1970, subtract a constant from the labels.

    Attributes:
      loss_type: the loss of an error e: squared (e^2), absolute (|e|), huber (e^2 / 2 up to delta,
        then delta (|e| - delta / 2)) or log_cosh (log cosh e).
      huber_delta: the error delta from which the Huber loss is linear, above 0, in the unit of the
        label.
      dimension: the number of values in a label: 1 for labels [B], n for [B, n].
      prior: the value that the initial bias predicts. If the mean of the labels is far from 0, use
        this mean as the prior.
      unit: the unit of the logits, above 0, such as 1000 to learn grams in kilograms. The
        prediction is the logit times the unit, and the loss divides errors by the unit. If the
        standard deviation of the labels is far from 1, use it as the unit. If the unit is the
        standard deviation of the labels, predictions start in the range of the labels, and the loss
        is about as large as the losses of other tasks.
    """

    loss_type: Annotated[str, checks.OneOf(objectives.REGRESSION)] = "squared"
    huber_delta: checks.Positive = 1.0
    dimension: checks.Count = 1
    prior: float = 0.0
    unit: checks.Positive = 1.0

    @property
    def size(self) -> int:
        """The number of logits: one logit for each number of a label."""
        return self.dimension

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of the label in one example, [] or [n]."""
        return () if self.dimension == 1 else (self.dimension,)

    def initial_bias(self) -> float:
        """Return the prior divided by `unit`."""
        return float(self.prior) / self.unit

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the logits times `unit`, which are in the unit of the label."""
        return logits if self.unit == 1 else logits * tf.cast(self.unit, logits.dtype)

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a finite number."""
        del dtype
        return "be a finite number"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example, from errors in multiples of `unit`.

        Args:
          logits: the outputs of the head's layer, [B] or [B, n].
          targets: the labels, in the shape of the logits.

        Returns:
          Losses, in the same shape.
        """
        # The loss measures errors in units of `unit`, so the delta needs the same unit.
        settings = {"delta": self.huber_delta / self.unit} if self.loss_type == "huber" else {}
        if self.unit != 1:
            targets = targets / tf.cast(self.unit, targets.dtype)
        return objectives.REGRESSION[self.loss_type](logits, targets, **settings)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Average `objectives.gaussian_divergence` over n numbers: [B, n] twice -> [B].

        The divergence is measured in squares of `unit`, like the squared loss.
        """
        return tf.reduce_mean(objectives.gaussian_divergence(logits, others), -1)

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return `value` divided by `unit`, [B] or [B, n] -> [B, n]."""
        return tf.reshape(predictions["value"], [-1, self.size]) / self.unit


@checks.dataclass
class Rate(Number):
    """The base class of heads whose logit is the logarithm of the predicted mean.

    Attributes:
      prior: the mean, above 0, that the initial bias predicts.
    """

    prior: checks.Positive = 1.0

    size: ClassVar[int] = 1

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""

    def initial_bias(self) -> float:
        """Return the logarithm of the prior."""
        return math.log(self.prior)

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the predicted mean, exp(logit); for logits above 30, a tangent replaces exp."""
        return objectives.poisson_rate(logits)

    def in_range(self, value: Any) -> Any:
        """Return True for numbers of at least 0, including fractions."""
        return value >= 0

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logarithm of the prediction `value`: [B] -> [B, 1]."""
        # A small prediction may underflow to 0, and log(0) is infinite.
        return tf.math.log(tf.maximum(predictions["value"], objectives.LEAST))[:, tf.newaxis]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispersion(Rate):
    """The base class of heads with the metric `deviance`, which is 0 for a perfect model.

    Jørgensen, "Exponential Dispersion Models", 1987.
    """

    directions: ClassVar[Mapping[str, bool]] = {"deviance": False, **Number.directions}

    @abc.abstractmethod
    def deviance(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the deviance of every example.

        Args:
          logits: the logarithms of the predicted means, [B].
          targets: the labels, [B].

        Returns:
          The deviances, [B], in the type of the logits; 0 for a perfect prediction.
        """

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the errors as in `Number`, and the deviances."""
        logits, targets, weights = examples
        # Use float64, as large terms cancel if a label is large and its prediction is good.
        logits, targets = tf.cast(logits, tf.float64), tf.cast(targets, tf.float64)
        deviance = metrics.sum_weighted(self.deviance(logits, targets), weights)
        return {**super().sums(examples), "deviance": deviance}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics of `Number`, and the mean deviance."""
        deviance = metrics.ratio(sums["deviance"], sums["weight"])
        return {**super().summary(sums), "deviance": deviance}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Dispersion):
    """Poisson regression of a count on the tower. The logit is the logarithm of the rate.

    `loss_i = rate - y log(rate)`, without the constant log(y!); `deviance` is 0 for a perfect
    model. Predicts `value`, the rate, [B].
    """

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a count."""
        del dtype
        return "be a finite count of at least 0"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""
        return objectives.poisson_loss(logits, targets)

    def deviance(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the deviance of every example: [B], [B] -> [B]."""
        return objectives.poisson_deviance(logits, targets)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return the Kullback-Leibler divergence of two predictions: [B, 1], [B, 1] -> [B]."""
        return tf.squeeze(objectives.poisson_divergence(logits, others), -1)


@checks.dataclass
class Tweedie(Dispersion):
    """Tweedie regression of an amount that is often 0, such as the claims of a policy.

    The label is assumed to have a compound Poisson-gamma distribution, which is the distribution of
    a sum of a random number of amounts. `loss_i = r^(2 - p) / (2 - p) + y r^(1 - p) / (p - 1)` for
    the mean r, without terms that depend only on the label. The logit is the logarithm of r, and
    the variance is proportional to r^p. Predicts `value`, the mean, [B].

    Attributes:
      power: the exponent p of the variance, in (1, 2). With p near 1, the distribution is similar
        to a Poisson distribution; with p near 2, to a gamma distribution.
    """

    power: Annotated[
        float, checks.number, checks.Rule("be between 1 and 2", lambda value: 1 < value < 2)
    ] = 1.5

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be an amount."""
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
    """Weighted logistic regression of a time, such as the watch time of a video.

    `loss_i = t log(1 + e^-z) + n log(1 + e^z)` for the logit z, the time t, which is 0 if nothing
    was watched, and n, which is 1 for negative rows and 0 for other rows. The weight of a positive
    row is its time t. Predicts the odds e^z as `value`, [B], in the unit of the label. The method
    is from Covington, Adams and Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys
    2016. In the paper, the negative rows are those with a time of 0. If the rows with a time of 0
    are the negatives, the predicted odds are the expected time divided by the share of negative
    rows. If a tenth of the rows is watched, the odds thus exceed the expected time by a ninth. With
    `negatives = "all"`, every row also counts as a negative once, and the odds equal the expected
    time.

    Attributes:
      negatives: which rows count as negative rows: "unwatched", as in the paper, or "all".
    """

    negatives: Annotated[str, checks.OneOf(("unwatched", "all"))] = "unwatched"

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a time."""
        del dtype
        return "be a finite time of at least 0"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B], [B] -> [B]."""
        # The negative log-likelihood is softplus(-z) for positives and softplus(z) for negatives.
        times = tf.cast(targets, logits.dtype)
        negatives = tf.ones_like(times)
        if self.negatives == "unwatched":
            negatives = tf.cast(tf.equal(times, 0), logits.dtype)
        return times * tf.nn.softplus(-logits) + negatives * tf.nn.softplus(logits)
