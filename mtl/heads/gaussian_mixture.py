"""A Gaussian mixture over the tower, which predicts the density and component of each row.

usual/heads.GaussianMixture.name = "usual"
usual/heads.GaussianMixture.num_components = 8
usual/heads.GaussianMixture.covariance = "full"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.heads import density, objectives

_COVARIANCES = ("diagonal", "full")


@checks.dataclass
class GaussianMixture(density.Density):
    """A Gaussian mixture, `p_k(h) = N(h; mu_k, C_k)`; `density.Density` lists the predictions.

    With diagonal covariances, the H dimensions of a component are independent, with standard
    deviations `s = f + softplus(c)` and the floor f. A full covariance is `C = L L^T` with
    `L = (I - A)^-1 diag(s)` and A below the diagonal. With a full covariance, each dimension is a
    linear function of the previous dimensions, plus an independent residual with the standard
    deviation s (Pourahmadi, "Joint Mean-Covariance Models with Applications to Longitudinal Data",
    1999). So the standard deviations s are the diagonal of the Cholesky factor L of the covariance.
    With diagonal and with full covariances, the density is at most `(2 pi f^2)^(-H/2)`, even if
    most rows are equal.

    Initial means are random, with the standard deviation `initial_spread`. The default of
    `initial_spread` suits inputs from `features.Numeric`. The head has the variables `weights` [R,
    K], `means` and `scales` [R, K, H], and for full covariances `coefficients` [R, K, H, H].

    With `noise` e, components are fitted to rows plus Gaussian noise of standard deviation e.
    Averaged over the noise, the log density of component k is `log p_k(h) - e^2 trace(C_k^-1) / 2`,
    and training follows the gradient of this average. So a covariance S of the rows becomes `S +
    e^2 I`, like the M step of scikit-learn with `reg_covar = e^2` (Bishop, "Training with Noise is
    Equivalent to Tikhonov Regularization", 1995). The reported loss, the metrics and the
    predictions use the densities `p_k` at rows without noise.

    Attributes:
      covariance: "diagonal" or "full". With "full", a training step of the head takes up to H times
        as long, for a tower of width H.
      min_scale: the smallest standard deviation f of a component, above 0, in the unit of the
        tower's values. A component may shrink to this standard deviation around a value that occurs
        many times, such as a capital gain of 0.
      initial_spread: the standard deviation of the initial means, above 0. The initial standard
        deviations within components are half of `initial_spread`.
      noise: the standard deviation e of the noise, at least 0, in the unit of the tower's values.
        Noise regularizes full covariances if there are few rows; `min_scale` bounds only the
        standard deviations s.
    """

    covariance: Annotated[str, checks.OneOf(_COVARIANCES)] = "diagonal"
    min_scale: checks.Positive = 0.01
    initial_spread: checks.Positive = 1.0
    noise: checks.NotNegative = 0.0

    def __post_init__(self):
        super().__post_init__()
        rule = f"be above 2 min_scale, {2 * self.min_scale:g}"
        is_above = self.initial_spread / 2 > self.min_scale
        checks.require(is_above, self._where("initial_spread"), rule, self.initial_spread)

    def parameters(self, width: int) -> Sequence[tf.Tensor]:
        """Return means and scales, [R, K, H] each, and for full covariances A [R, K, H, H]."""
        shape = [self.num_starts, self.num_components, width]
        initial_means = tf1.random_normal_initializer(stddev=self.initial_spread)
        means = tf1.get_variable("means", shape, tf.float32, initial_means)
        initial_scales = tf1.constant_initializer(
            _invert_softplus(self.initial_spread / 2 - self.min_scale)
        )
        scales = tf1.get_variable("scales", shape, tf.float32, initial_scales)
        parameters = [means, self.min_scale + tf.math.softplus(scales)]
        if self.covariance == "full":
            start = tf1.zeros_initializer()
            coefficients = tf1.get_variable("coefficients", [*shape, width], tf.float32, start)
            parameters.append(coefficients * np.tri(width, k=-1, dtype=np.float32))
        return parameters

    def log_densities(self, tower: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `log N(h; mu_k, C_k)`: tower [B, H] and parameters [R, K, ...] -> [B, R, K]."""
        means, scales, *coefficients = parameters
        deviations = tower[:, tf.newaxis, tf.newaxis] - means
        for factor in coefficients:
            # (I - A) times the deviations: each dimension minus its prediction from previous
            # dimensions.
            deviations -= tf.einsum("rkij,brkj->brki", factor, deviations)
        densities = objectives.gaussian_log_density(deviations / scales, scales)
        if not self.noise:
            return densities
        penalty = 0.5 * self.noise**2 * _trace_precisions(scales, *coefficients)
        # The added difference is 0, but has the gradient of `-penalty`.
        return densities + (tf.stop_gradient(penalty) - penalty)

    def draw_size(self, width: int) -> int:
        """Return 2 H, as Box-Muller makes each of H Gaussian numbers from two uniform numbers."""
        return 2 * width

    def sample(
        self, chosen: tf.Tensor, drawn: tf.Tensor, parameters: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Return samples.

        One-hot components [B, S, K], uniform numbers [B, S, 2 H] and parameters [K, ...] each ->
        samples [B, S, H].
        """
        means, scales, *coefficients = parameters
        radius, turn = tf.split(drawn, 2, axis=-1)
        # G. E. P. Box, M. E. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
        normal = tf.sqrt(-2 * tf.math.log(radius)) * tf.cos(2 * math.pi * turn)
        noise = tf.einsum("bsk,kd->bsd", chosen, scales) * normal
        for factor in coefficients:
            # Adding zeros broadcasts the identity to [K, H, H].
            unit = tf.eye(factor.shape[-1]) + tf.zeros_like(factor)
            inverse = tf.linalg.triangular_solve(unit - factor, unit)
            noise = tf.einsum("bsk,kij,bsj->bsi", chosen, inverse, noise)
        return tf.einsum("bsk,kd->bsd", chosen, means) + noise


def _trace_precisions(scales: tf.Tensor, *coefficients: tf.Tensor) -> tf.Tensor:
    """Compute the trace of `C^-1`: scales [..., H], and A [..., H, H] if C is full -> [...].

    `C^-1 = L^-T L^-1`. The trace of `C^-1` is the sum of squares in `L^-1 = diag(1 / s) (I - A)`.
    """
    squares = tf.ones_like(scales)
    for factor in coefficients:  # A has a zero diagonal.
        squares += tf.reduce_sum(factor**2, axis=-1)
    return tf.reduce_sum(squares / scales**2, axis=-1)


def _invert_softplus(value: float) -> float:
    """Invert softplus for a value above 0; large values do not overflow."""
    return value + math.log(-math.expm1(-value))
