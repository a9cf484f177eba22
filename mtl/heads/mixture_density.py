"""A head that predicts the distribution of a number, as a mixture of Gaussians.

delay/heads.MixtureDensity.name = "delay"
delay/heads.MixtureDensity.num_components = 5
delay/heads.MixtureDensity.quantiles = [0.05, 0.5, 0.95]

With `num_components = 1`, the distribution is a Gaussian with learnt mean and deviation.
"""

from __future__ import annotations

import math
import statistics as python_statistics
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from mtl import checks, types
from mtl.deferred import compat, tf
from mtl.heads import base, coverage, objectives, standardized
from mtl.step import row_draws

# The search for quantiles covers the means plus and minus this number of standard deviations.
_REACH = 6.0
# The steps of bisection reduce an interval of 12 scales to 2e-7, about float32's precision.
_BISECTIONS = 26


class _Mixture(NamedTuple):
    """Log weights, means and scales of components, in units of the standardized label, [B, K]."""

    log_weights: tf.Tensor
    means: tf.Tensor
    scales: tf.Tensor


@checks.dataclass
class MixtureDensity(standardized.Standardized):
    """A mixture density network: `p(y) = sum_k pi_k N(y; mu_k, s_k^2)` and `loss = -log p(y)`.

    `pi = softmax(a)`, `mu = m + d b` and `s = d (f + softplus(c))`, for logits (a, b, c), the mean
    m and the standard deviation d of the label, and the floor f. The model is from Bishop, "Mixture
    Density Networks", 1994; in the paper, `s = exp(c)` has no floor. Without a floor, a component
    can shrink around a single label, and the likelihood grows without bound.

    The loss is in nats and depends on the unit of the label: labels in minutes have a loss that is
    log(60) below the loss of labels in seconds. The gradient treats the responsibilities as
    constants, as in `objectives.mixture_loss`.

    With `quantiles`, the metrics of `mtl.heads.coverage` compare the share of labels at or below
    each quantile with its level.

    Predicts `value` [B], the mean of the mixture; `weights`, `means` and `scales` [B, K]; and if
    set, `quantiles` [B, Q] and `samples` [B, S]. The features of a row seed its samples
    (`mtl.step.row_draws`), so the same row has the same samples in every call.

    Attributes:
      num_components: K, the number of components of the mixture.
      min_scale: the smallest standard deviation f of a component, in (0, 1), in units of the
        standard deviation of the label. If labels have few different values, such as ages in years,
        `min_scale` should not be far below the distance between two such values in these units.
      quantiles: the levels of the predicted quantiles, in [0.001, 0.999].
      num_samples: S, the number of random samples of the mixture that each prediction has; 0 for
        none.
      label_mean: the mean m of the label; None takes the mean from the training split.
      label_stddev: the standard deviation d of the label, above 0; None takes it from the training
        split.
    """

    num_components: checks.Count = 5
    min_scale: Annotated[float, base.check_share] = 0.01
    quantiles: Annotated[Sequence[float], coverage.check_levels] = ()
    num_samples: checks.Natural = 0

    @property
    def size(self) -> int:
        """The number of logits: three for each component."""
        return 3 * self.num_components

    def initial_bias(self) -> list[float]:
        """Return logits that give components equal weights and scales, and spread their means."""
        count, normal = self.num_components, python_statistics.NormalDist()
        # The means of the components are quantiles of a Gaussian, which cover the range of a
        # standardized label.
        means = [normal.inv_cdf((index + 0.5) / count) for index in range(count)]
        scale = max(count**-0.5 - self.min_scale, self.min_scale)
        return [0.0] * count + means + [math.log(math.expm1(scale))] * count

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, 3 K], or [B, 3 K + S] with uniform draws for samples."""
        logits = super().logits(tower)
        uniform = row_draws.draw(self.name, self.num_samples) if self.num_samples else None
        return logits if uniform is None else tf.concat([logits, uniform], axis=1)

    def _split_mixture(self, logits: tf.Tensor) -> _Mixture:
        weights, means, scales = tf.split(logits[:, : self.size], 3, axis=1)
        return _Mixture(
            tf.nn.log_softmax(weights), means, self.min_scale + tf.math.softplus(scales)
        )

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, 3 K or more], [B] -> [B]."""
        log_weights, means, scales = self._split_mixture(logits)
        targets = tf.cast((targets - self._shift) / self._unit, logits.dtype)
        deviations = (targets[:, tf.newaxis] - means) / scales
        of_components = objectives.gaussian_log_density(
            deviations[..., tf.newaxis], scales[..., tf.newaxis]
        )
        # Dividing labels by d multiplies the density by d, so add log(d) to the loss.
        return objectives.mixture_loss(log_weights + of_components) + math.log(self._unit)

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the mean of the mixture, [B, 3 K or more] -> [B]."""
        log_weights, means, _ = self._split_mixture(logits)
        return self._shift + self._unit * tf.reduce_sum(tf.exp(log_weights) * means, axis=1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the predictions that the docstring of the class lists.

        Logits [B, 3 K or more] -> float32 predictions.
        """
        mixture = self._split_mixture(logits)
        predictions = {
            "value": self.value(logits),
            "weights": tf.exp(mixture.log_weights),
            "means": self._shift + self._unit * mixture.means,
            "scales": self._unit * mixture.scales,
        }
        if self.quantiles:
            predictions["quantiles"] = self._find_quantiles(mixture)
        uniform = logits[:, self.size :]
        if uniform.shape[1]:
            predictions["samples"] = self._shift + self._unit * find_quantiles(mixture, uniform)
        return predictions

    def _find_quantiles(self, mixture: _Mixture) -> tf.Tensor:
        shares = tf.constant([list(self.quantiles)], mixture.means.dtype)
        return self._shift + self._unit * find_quantiles(mixture, shares)

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the errors as in `Number`, and the weights of labels at or below each quantile."""
        sums = super().sums(examples)
        if not self.quantiles:
            return sums
        quantiles = self._find_quantiles(self._split_mixture(examples.logits))
        below = coverage.sum_below(quantiles, examples.targets, examples.weights)
        return {**sums, "below": below}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics of `Number`, and metrics of quantiles by `mtl.heads.coverage`."""
        summary = super().summary(sums)
        if self.quantiles:
            summary |= coverage.compare_shares(self.quantiles, sums["below"], sums["weight"])
        return summary

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, and the mean as regression output."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["value"]),
        }


def find_quantiles(mixture: _Mixture, shares: tf.Tensor) -> tf.Tensor:
    """Return the quantiles of mixtures.

    Bisection inverts the distribution function of a mixture, which has no closed inverse. If the
    levels are uniform random numbers, the quantiles are samples of the mixture.

    Args:
      mixture: log weights, means and scales of K components, [B, K] each.
      shares: the levels of Q quantiles, in (0, 1): [B, Q] for each row, or [1, Q] for all rows.

    Returns:
      The quantiles, [B, Q].
    """
    weights, means, scales = (values[:, tf.newaxis] for values in mixture)
    weights, inverse = tf.exp(weights), 1 / (scales * math.sqrt(2))
    shares = shares[..., tf.newaxis]
    # The bounds are [B, 1, 1]; adding zeros broadcasts each bound to [B, Q, 1].
    low = tf.reduce_min(means - _REACH * scales, -1, keepdims=True) + tf.zeros_like(shares)
    high = tf.reduce_max(means + _REACH * scales, -1, keepdims=True) + tf.zeros_like(shares)
    # Unroll the steps, as some export formats lack loops. To save ops, build constants once. The
    # erf in (-1, 1) is compared with `2 * shares - 1`, so it need not be scaled to (0, 1).
    goals, half, last = 2 * shares - 1, tf.constant(0.5, means.dtype), tf.constant(-1)
    for _ in range(_BISECTIONS):
        middle = half * (low + high)
        heights = tf.reduce_sum(weights * tf.math.erf((middle - means) * inverse), last, True)
        is_below = heights < goals
        low, high = tf.where(is_below, middle, low), tf.where(is_below, high, middle)
    return tf.squeeze(half * (low + high), -1)
