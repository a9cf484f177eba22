"""Depth: the distance to the visible surface at each pixel.

depth/heads.Depth.name = "depth"                         # float32 [H, W]; 0 or NaN if unknown
depth/heads.Depth.loss_type = "huber"
depth/heads.Depth.scale = "log"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, dense, metrics, objectives

_SCALES = ("linear", "log")


@checks.dataclass
class Depth(dense.Dense):
    """Predicts a number above 0, such as a depth, for each pixel.

    Labels are maps [H, W] of depths, or of disparities, in any unit. 0 and NaN mark pixels without
    a label. Predicts `depth` [B, H, W] in the unit of the labels.

    Over all labelled pixels of a split, `abs_error` is the mean of `|p - y|`, `rel_error` the mean
    of `|p - y| / y`, and `rmse` the root of the mean of `(p - y)^2` (Eigen, Puhrsch and Fergus,
    "Depth Map Prediction from a Single Image using a Multi-Scale Deep Network", 2014,
    arXiv:1406.2283).

    Attributes:
      loss_type: the loss of an error e: absolute (|e|), squared (e^2), huber (e^2 / 2 up to delta,
        then delta (|e| - delta / 2)) or log_cosh (log cosh e).
      huber_delta: the error delta from which the Huber loss is linear, above 0. With scale
        "linear", delta is in the unit of the labels; with scale "log", delta is a difference of
        logarithms.
      scale: the meaning of the logit: "linear" for the depth, or "log" for its logarithm. With
        scale "linear", a predicted depth may be below 0. With scale "log", errors are differences
        of logarithms, so an error of 10% costs the same for near and far pixels.
      prior: the depth, above 0, that the initial bias predicts. The mean of the labels is a good
        choice of the prior.
    """

    loss_type: Annotated[str, checks.OneOf(objectives.REGRESSION)] = "absolute"
    huber_delta: checks.Positive = 1.0
    scale: Annotated[str, checks.OneOf(_SCALES)] = "linear"
    prior: checks.Positive = 1.0

    has_ids: ClassVar[bool] = False
    size: ClassVar[int] = 1
    directions: ClassVar[Mapping[str, bool]] = {
        "abs_error": False,
        "rel_error": False,
        "rmse": False,
        **base.Base.directions,
    }

    def initial_bias(self) -> float:
        """Return the initial bias: the prior, or its logarithm if `scale` is "log"."""
        return math.log(self.prior) if self.scale == "log" else float(self.prior)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B, H, W] -> float32 [B, H W], and a mask of present labels."""
        label = dense.flatten_places(label)
        is_set = self.are_present(label)
        depths = tf.where(is_set, tf.cast(label, tf.float32), 0.0)
        valid = tf.math.is_finite(depths) & (depths >= 0)
        depths = self.checked(depths, valid, label, self.rule(label.dtype))
        present = depths > 0
        # Pixels without a label get a depth of 1, whose logarithm is finite.
        return tf.where(present, depths, 1.0), present

    def find_present(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the label values of a record that are neither missing nor 0."""
        return [value for value in super().find_present(given) if value != 0]

    def accepts(self, value: Any) -> bool:
        """Return True if the value is finite and above 0."""
        return 0 < value < math.inf

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a depth or 0."""
        del dtype
        return "be finite and at least 0"

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights, with height and width flattened to one axis.

        Args:
          logits: the logits of all pixels, [B, H, W, 1].
          labels: {field: [B, ...]}; the head's label is [B, H, W].

        Returns:
          Logits, targets and weights, [B, H W] each.
        """
        map_logits, targets, weights = super().examples(logits, labels)
        return types.LossInputs(tf.squeeze(map_logits, -1), targets, weights)

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every pixel: [B, n], [B, n] -> [B, n]."""
        settings = {"delta": self.huber_delta} if self.loss_type == "huber" else {}
        goals = tf.math.log(targets) if self.scale == "log" else targets
        return objectives.REGRESSION[self.loss_type](logits, goals, **settings)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Average `objectives.gaussian_divergence` over pixels: [B, H, W, 1] twice -> [B]."""
        return tf.reduce_mean(objectives.gaussian_divergence(logits, others), [1, 2, 3])

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logits that lead to the predicted `depth`: [B, H, W] -> [B, H, W, 1]."""
        depth = predictions["depth"][..., tf.newaxis]
        minimum = objectives.LEAST
        return tf.math.log(tf.maximum(depth, minimum)) if self.scale == "log" else depth

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, H, W, 1] -> depth float32 [B, H, W]."""
        return {"depth": self._compute_depth(tf.squeeze(logits, -1))}

    def _compute_depth(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.exp(logits) if self.scale == "log" else logits

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return the weighted sums of absolute, relative and squared errors."""
        logits, targets, weights = examples
        errors = objectives.absolute_error(self._compute_depth(logits), targets)
        return {
            "absolute_errors": metrics.sum_weighted(errors, weights),
            "relative_errors": metrics.sum_weighted(errors / targets, weights),
            "squared_errors": metrics.sum_weighted(tf.cast(errors, tf.float64) ** 2, weights),
        }

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the means of the errors over the labelled pixels."""
        weight = sums["weight"]
        return {
            "abs_error": metrics.ratio(sums["absolute_errors"], weight),
            "rel_error": metrics.ratio(sums["relative_errors"], weight),
            "rmse": tf.sqrt(metrics.ratio(sums["squared_errors"], weight)),
        }
