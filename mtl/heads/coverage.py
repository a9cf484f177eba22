"""Checks and metrics of predicted quantiles.

`coverage/<level>` is the share of labels at or below the quantile. `coverage_error` is the mean
over levels of |share - level|.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtl import checks
from mtl.deferred import tf
from mtl.heads import base, metrics

_LEAST = 0.001


def check_levels(where: str, levels: Sequence[float]) -> None:
    """Check that the levels of predicted quantiles are in [0.001, 0.999].

    Args:
      where: the name of the setting, for error messages.
      levels: the levels of the quantiles, such as 0.5 for the median.

    Raises:
      UserError: `levels` is not a list, or a level is not a number in [0.001, 0.999].
    """
    checks.is_a(where, levels, (list, tuple), "be a list of shares")
    for level in levels:
        base.check_share(where, level)
        checks.require(_LEAST <= level <= 1 - _LEAST, where, "be in [0.001, 0.999]", level)


def sum_below(quantiles: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Sum the weights of labels at or below each quantile.

    Args:
      quantiles: the predicted quantiles, [B, Q].
      targets: the labels, [B].
      weights: the weights of the labels, [B].

    Returns:
      The sum of weights for each quantile, float64 [Q].
    """
    below = tf.cast(targets, tf.float64)[:, tf.newaxis] <= tf.cast(quantiles, tf.float64)
    return metrics.sum_weighted(tf.cast(below, tf.float64), weights[:, tf.newaxis], 0)


def compare_shares(
    levels: Sequence[float], below: tf.Tensor, weight: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Compare the share of labels at or below each quantile with the level of the quantile.

    Args:
      levels: the levels of the Q quantiles, in (0, 1).
      below: the sum of the weights of labels at or below each quantile, [Q].
      weight: the sum of the weights of all labels, a scalar.

    Returns:
      `coverage/<level>`, the share of labels at or below each quantile, and `coverage_error`, the
      mean distance between share and level.
    """
    shares = metrics.ratio(below, weight)
    errors = tf.abs(shares - tf.constant(list(levels), shares.dtype))
    coverages = {
        f"coverage/{level:g}": share
        for level, share in zip(levels, tf.unstack(shares), strict=True)
    }
    return {**coverages, "coverage_error": tf.reduce_mean(errors)}
