"""Surface normals: the direction of the visible surface at each pixel.

normal/heads.Normals.name = "normal"                     # float32 [H, W, 3]; zeros if unknown
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mtl import types
from mtl.deferred import tf
from mtl.heads import base, dense, metrics

# The thresholds of Fouhey, Gupta and Hebert, 2013, in degrees.
_WITHIN = {"within_11_25": 11.25, "within_22_5": 22.5, "within_30": 30.0}
# The median of angles comes from bins of 0.01 degree.
_BINS = 18_000
_LEAST = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normals(dense.Dense):
    """Predicts a unit vector for each pixel: `loss = 1 - cos(logits, label)`.

    Labels are maps [H, W, 3] of vectors of any length above 0. A vector that is zero or has a NaN
    marks a pixel without a label. Predicts `normal` [B, H, W, 3], of length 1; shorter only if the
    logits are shorter than 1e-6. The angle of logits of zeros counts as 90 degrees.

    `mean_angle` and `median_angle` describe the angles between prediction and label, in degrees.
    `within_<d>` is the share of angles below d (Fouhey, Gupta and Hebert, "Data-Driven 3D
    Primitives for Single Image Understanding", ICCV 2013). The median of the angles is weighted by
    the weights of labels. A histogram of 18,000 bins of 0.01 degrees approximates the median in
    constant memory, with an error of at most 0.01 degrees.
    """

    size: ClassVar[int] = 3
    label_types: ClassVar[tuple[str, ...]] = ("float32",)
    label_shape: ClassVar[tuple[int | None, ...]] = (None, None, 3)
    directions: ClassVar[Mapping[str, bool]] = {
        "mean_angle": False,
        "median_angle": False,
        **dict.fromkeys(_WITHIN, True),
        **base.Base.directions,
    }

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse maps of vectors.

        Args:
          label: float32 [B, H, W, 3].

        Returns:
          Unit vectors, float32 [B, H W, 3], with zeros for missing labels, and a mask of present
          labels, bool [B, H W].

        Raises:
          InvalidArgumentError: when the op runs, if a component of a label vector is infinite.
        """
        label = dense.flatten_places(label)
        is_set = tf.reduce_all(self.are_present(label), -1, keepdims=True)
        vectors = tf.where(is_set, label, 0.0)
        vectors = self.checked(vectors, tf.math.is_finite(vectors), label, self.rule(label.dtype))
        # Without this division, the square of a large component could overflow.
        vectors = tf.math.divide_no_nan(vectors, tf.reduce_max(tf.abs(vectors), -1, keepdims=True))
        return _normalise_vectors(vectors), tf.reduce_any(tf.not_equal(vectors, 0), -1)

    def find_present(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the components of all label vectors that have no missing component and are not 0.

        Args:
          given: the components of a map's vectors, pixel by pixel.
        """
        vectors = dense.list_places(given, 3, self.is_missing)
        return [value for vector in vectors if any(vector) for value in vector]

    def accepts(self, value: Any) -> bool:
        """Return True if the value is finite."""
        return math.isfinite(value)

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: each component must be finite."""
        del dtype
        return "be a finite number"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every pixel: [B, n, 3], [B, n, 3] -> [B, n]."""
        return 1 - tf.reduce_sum(_normalise_vectors(logits) * targets, -1)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Compute the mean over all pixels of `1 - cos` of the angle between two vectors.

        Args:
          logits: vectors of any length, [B, H, W, 3].
          others: the vectors of the prediction to compare with, [B, H, W, 3].

        Returns:
          The means, [B], from 0 for equal directions to 2 for opposite directions.
        """
        return tf.reduce_mean(self.losses(logits, _normalise_vectors(others)), [1, 2])

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the predicted `normal`, which serves as logits: [B, H, W, 3] -> [B, H, W, 3]."""
        return predictions["normal"]

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, H, W, 3] -> normal float32 [B, H, W, 3], unit vectors."""
        return {"normal": _normalise_vectors(logits)}

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the angles between predictions and labels, and the weights of pixels for each angle.

        Returns:
          `angles`, the weighted sum of the angles in degrees; `by_angle` [18000], the weights of
          the pixels in bins of 0.01 degrees; and `within_<d>`, the weight of the pixels with an
          angle below d. All returned sums are float64; all except `by_angle` are scalars.
        """
        logits, targets, weights = examples
        angles = _compute_angles(_normalise_vectors(logits), targets)
        bins = tf.cast(tf.reshape(angles, [-1]) * (_BINS / 180), tf.int32)
        return {
            "angles": metrics.sum_weighted(angles, weights),
            "by_angle": metrics.count_in_bins(bins, tf.reshape(weights, [-1]), _BINS),
            **{
                name: metrics.sum_weighted(tf.cast(angles < limit, tf.float32), weights)
                for name, limit in _WITHIN.items()
            },
        }

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Returns:
          `mean_angle` and `median_angle` in degrees, and `within_<d>`, the share of the angles
          below d. All metrics are NaN without labelled pixels.
        """
        weight = sums["weight"]
        return {
            "mean_angle": metrics.ratio(sums["angles"], weight),
            "median_angle": _read_median(sums["by_angle"]) * (180 / _BINS),
            **{name: metrics.ratio(sums[name], weight) for name in _WITHIN},
        }


def _normalise_vectors(vectors: tf.Tensor) -> tf.Tensor:
    """Scale vectors [..., 3] to length 1; zero vectors stay zero."""
    return tf.math.l2_normalize(vectors, -1, epsilon=_LEAST)


def _compute_angles(vectors: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Return the angles between unit vectors in degrees, [..., 3] twice -> [...].

    The angle comes from sine and cosine, because the arc cosine of a float32 near 1 has an error of
    1/50 degree.
    """
    sine = tf.norm(tf.linalg.cross(vectors, others), axis=-1)
    cosine = tf.reduce_sum(vectors * others, -1)
    angles = tf.math.atan2(sine, cosine) * (180 / math.pi)
    # For a vector of zeros, `atan2` returns 0, the best angle, although its cosine is that of 90.
    return tf.where((sine > 0) | tf.not_equal(cosine, 0), angles, 90.0)


def _read_median(counts: tf.Tensor) -> tf.Tensor:
    """Return the median of a histogram as a number of bins; NaN if all counts are 0."""
    ends, total = tf.cumsum(counts), tf.reduce_sum(counts)
    place = tf.searchsorted(ends, [total / 2])[0]
    before, bin_weight = tf.gather(ends, place) - tf.gather(counts, place), tf.gather(counts, place)
    # Interpolate linearly within the bin of the median.
    share = tf.math.divide_no_nan(total / 2 - before, bin_weight)
    median = tf.cast(place, counts.dtype) + share
    return tf.where(total > 0, median, tf.constant(float("nan"), counts.dtype))
