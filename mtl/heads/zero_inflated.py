"""A head for amounts that are 0 for most rows, and large for a few rows.

revenue/heads.ZeroInflatedLogNormal.name = "revenue"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, metrics, objectives, ranking, regression

# Larger exponents overflow float32.
_MAX_LOG = 80.0


@checks.dataclass
class ZeroInflatedLogNormal(regression.Number):
    """Zero-inflated log-normal model (ZILN) of an amount, such as the value of a customer.

    The amount is above 0 with a probability p, and then has a log-normal distribution:
    `loss_i = CE(p, [y > 0]) - [y > 0] log LN(y; mu, s^2)` in nats, with `p = sigmoid(a)`, `mu = b`
    and `s = f + softplus(c)` for logits (a, b, c) and the floor f. The model is from Wang, Liu and
    Miao, "A Deep Probabilistic Model for Customer Lifetime Value Prediction", 2019,
    arXiv:1912.07753. In the paper, s has no floor, so the likelihood could grow without bound if
    amounts are equal.

    Predicts `value`, the mean `p exp(mu + s^2 / 2)`; `positive_probability`, p; `log_mean`, mu; and
    `log_scale`, s; [B] each. The metric `positive_auc` is the AUC of p for amounts above 0.

    Attributes:
      min_scale: the smallest standard deviation f of the logarithm of an amount, above 0.
      prior: the share of rows with an amount above 0, between 0 and 1, that the initial bias
        predicts.
      prior_value: the typical positive amount, above 0, that the initial bias predicts.
    """

    min_scale: checks.Positive = 0.01
    prior: Annotated[float, base.check_share] = 0.5
    prior_value: checks.Positive = 1.0

    size: ClassVar[int] = 3
    directions: ClassVar[Mapping[str, bool]] = {
        "average_loss": False,
        "positive_auc": True,
        **regression.Number.directions,
    }

    def initial_bias(self) -> list[float]:
        """Return the logit of `prior`, the log of `prior_value`, and the logit for a scale of 1."""
        scale = max(1.0 - self.min_scale, self.min_scale)
        return [base.logit(self.prior), math.log(self.prior_value), math.log(math.expm1(scale))]

    def in_range(self, value: Any) -> Any:
        """Return True if the label is at least 0."""
        return value >= 0

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be an amount."""
        del dtype
        return "be a finite amount of at least 0"

    def _split(self, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the logit of "the amount is above 0", mu and s: [B, 3] -> [B] each."""
        positive, mean, scale = tf.unstack(logits, axis=-1)
        return positive, mean, self.min_scale + tf.math.softplus(scale)

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Compute the mean amounts.

        Args:
          logits: [B, 3].

        Returns:
          The mean amounts, [B], in the unit of the label, at most exp(80).
        """
        positive, mean, scale = self._split(logits)
        log_value = mean + 0.5 * scale**2 - tf.math.softplus(-positive)
        return tf.exp(tf.minimum(log_value, _MAX_LOG))

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the predictions that the class docstring lists, [B] each, from logits [B, 3]."""
        positive, mean, scale = self._split(logits)
        return {
            "value": self.value(logits),
            "positive_probability": tf.sigmoid(positive),
            "log_mean": mean,
            "log_scale": scale,
        }

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example.

        Args:
          logits: [B, 3].
          targets: amounts of at least 0, [B].

        Returns:
          The losses of the rows, [B], in nats.
        """
        positive, mean, scale = self._split(logits)
        is_positive = targets > 0
        # Take the logarithm before the cast, as float32 would round tiny amounts to 0.
        logs = tf.cast(
            tf.math.log(tf.where(is_positive, targets, tf.ones_like(targets))), mean.dtype
        )
        deviations = (logs - mean) / scale
        density = objectives.gaussian_log_density(deviations[:, tf.newaxis], scale[:, tf.newaxis])
        positives = tf.cast(is_positive, logits.dtype)
        return objectives.binary_cross_entropy(positive, positives) + positives * (logs - density)

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor | metrics.Total]:
        """Sum the errors as in `Number`, and collect the scores for `positive_auc`."""
        logits, targets, weights = examples
        is_positive = tf.cast(targets > 0, weights.dtype)
        scores = ranking.stream_scores(
            logits[:, 0], weights * is_positive, weights * (1 - is_positive)
        )
        return {**super().sums(examples), "scores": scores}

    def summary(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Returns:
          The metrics of `regression.Number`; `positive_auc`, which is NaN unless some amounts are 0
          and some are above 0; and `positive_auc_error_bound`.
        """
        area, bound = ranking.compute_auc(sums["scores"])
        positive_areas = {"positive_auc": area[0], f"positive_auc{ranking.BOUND}": bound[0]}
        return {**super().summary(sums), **positive_areas}
