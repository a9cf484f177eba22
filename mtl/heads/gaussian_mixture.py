"""A mixture of Gaussians of the tower: how usual a row is, and of which kind.

usual/heads.GaussianMixture.name = "usual"
usual/heads.GaussianMixture.num_components = 8
usual/heads.GaussianMixture.covariance = "full"
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mtl import checks
from mtl.heads import density, objectives

tf1 = tf.compat.v1

_COVARIANCES = ("diagonal", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianMixture(density.Density):
    """`p_k(h) = N(h; mu_k, C_k)`; see `density.Density` for what it predicts.

    With diagonal covariances the numbers of a component are independent of each other, with a scale
    `s = f + softplus(c)` each, where f is the floor. A full covariance is `C = L L^T` with
    `L = (I - A)^-1 diag(s)`, A below the diagonal: each number is a linear function of those before
    it, and s is the scale of what is left (M. Pourahmadi, "Joint Mean-Covariance Models with
    Applications to Longitudinal Data", 1999). So s is the diagonal of the Cholesky factor, and
    neither form has a density above `(2 pi f^2)^(-H/2)`, however few different rows there are.

    The scale of the tower is not known beforehand: means start at random with the standard
    deviation `initial_spread`, as suits inputs of `features.Numeric`. Other variables than
    `weights`: `means` and `scales` [R, K, H], and of full covariances `coefficients` [R, K, H, H].

    With `noise` e, components are fitted to rows with Gaussian noise of this standard deviation: a
    gradient is that of `log p_k`'s mean over the noise, `log p_k(h) - e^2 trace(C_k^-1) / 2`. So a
    covariance of the rows becomes one of `S + e^2 I`, as the M step of scikit-learn has it for
    `reg_covar = e^2` (C. M. Bishop, "Training with Noise is Equivalent to Tikhonov Regularization",
    1995). All values are those of `p_k` without noise, the loss too.

    Attributes:
      covariance: "diagonal" or "full", whose step costs up to H times as much.
      min_scale: f, above 0, in units of the tower. It decides much where values occur many times,
        such as a capital gain of 0: a component may sit on them with this scale.
      initial_spread: the standard deviation of the first means, above 0; the first scales are half
        of it.
      noise: e, at least 0, in units of the tower. It holds full covariances of few rows back, where
        `min_scale` bounds the scales alone.
    """

    covariance: str = "diagonal"
    min_scale: float = 0.01
    initial_spread: float = 1.0
    noise: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        checks.one_of(self._where("covariance"), self.covariance, _COVARIANCES)
        checks.positive(self._where("min_scale"), self.min_scale)
        checks.positive(self._where("initial_spread"), self.initial_spread)
        checks.at_least(self._where("noise"), self.noise, 0)
        rule = f"be above 2 min_scale, {2 * self.min_scale:g}"
        is_above = self.initial_spread / 2 > self.min_scale
        checks.require(is_above, self._where("initial_spread"), rule, self.initial_spread)

    def parameters(self, width: int) -> Sequence[tf.Tensor]:
        """Return means and scales, [R, K, H], and A [R, K, H, H] of full covariances."""
        shape = [self.num_starts, self.num_components, width]
        spread = tf1.random_normal_initializer(stddev=self.initial_spread)
        means = tf1.get_variable("means", shape, tf.float32, spread)
        first = tf1.constant_initializer(_invert_softplus(self.initial_spread / 2 - self.min_scale))
        scales = tf1.get_variable("scales", shape, tf.float32, first)
        found = [means, self.min_scale + tf.math.softplus(scales)]
        if self.covariance == "full":
            start = tf1.zeros_initializer()
            coefficients = tf1.get_variable("coefficients", [*shape, width], tf.float32, start)
            found.append(coefficients * np.tri(width, k=-1, dtype=np.float32))
        return found

    def log_densities(self, tower: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `log N(h; mu_k, C_k)`: [B, H] and [R, K, ...] each -> [B, R, K]."""
        means, scales, *coefficients = parameters
        deviations = tower[:, tf.newaxis, tf.newaxis] - means
        for below in coefficients:
            deviations -= tf.einsum("rkij,brkj->brki", below, deviations)
        found = objectives.gaussian_log_density(deviations / scales, scales)
        if not self.noise:
            return found
        lost = 0.5 * self.noise**2 * _trace_precisions(scales, *coefficients)
        return found + (tf.stop_gradient(lost) - lost)  # The difference is exactly 0.

    def draw_size(self, width: int) -> int:
        """Two uniform numbers make a Gaussian one."""
        return 2 * width

    def sample(
        self, chosen: tf.Tensor, drawn: tf.Tensor, parameters: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Return samples, [B, S, K], [B, S, 2 H] and [K, ...] each -> [B, S, H]."""
        means, scales, *coefficients = parameters
        radius, turn = tf.split(drawn, 2, axis=-1)
        # G. E. P. Box, M. E. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
        normal = tf.sqrt(-2 * tf.math.log(radius)) * tf.cos(2 * math.pi * turn)
        noise = tf.einsum("bsk,kd->bsd", chosen, scales) * normal
        for below in coefficients:
            unit = tf.eye(below.shape[-1]) + tf.zeros_like(below)
            inverse = tf.linalg.triangular_solve(unit - below, unit)
            noise = tf.einsum("bsk,kij,bsj->bsi", chosen, inverse, noise)
        return tf.einsum("bsk,kd->bsd", chosen, means) + noise


def _trace_precisions(scales: tf.Tensor, *coefficients: tf.Tensor) -> tf.Tensor:
    """Return the traces of `C^-1`, [..., H] and maybe [..., H, H] -> [...].

    `C^-1 = L^-T L^-1`, whose trace is the sum of the squares in `L^-1 = diag(1 / s) (I - A)`.
    """
    squares = tf.ones_like(scales)
    for below in coefficients:  # A has zeros where I has ones.
        squares += tf.reduce_sum(below**2, axis=-1)
    return tf.reduce_sum(squares / scales**2, axis=-1)


def _invert_softplus(value: float) -> float:
    """Return x with softplus(x) = value, above 0, however great."""
    return value + math.log(-math.expm1(-value))
