"""Heat maps: the chance of a point of each kind at each place of a map.

joints/heads.HeatMap.name = "joints"                     # float32 [H, W, 14] in [0, 1]
joints/heads.HeatMap.num_maps = 14
joints/heads.HeatMap.loss_type = "squared"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, dense, metrics

_LOSSES = ("cross_entropy", "squared")


@checks.dataclass
class HeatMap(dense.Dense):
    """`p = sigmoid(logits)` at each place for each of K maps, such as one map a joint.

    Labels are [H, W, K], or [H, W] for one map, in [0, 1]. Most often they are Gaussians of height
    1 around the points (J. Tompson, A. Jain, Y. LeCun, C. Bregler, "Joint Training of a
    Convolutional Network and a Graphical Model for Human Pose Estimation", 2014, arXiv:1406.2984).
    A place with a NaN in any map is missing. Predicts `heat` [B, H, W, K], and `peak` int64
    [B, K, 2], the row and the column of the largest value of each map.

    `peak_distance` is the mean distance in pixels between the predicted peak and the label's peak.
    It covers maps with a label above 0 somewhere and without missing places. `mse` is the mean
    squared error of the heat.

    Attributes:
      num_maps: K, the number of maps, at least 1.
      loss_type: the loss of a place: "cross_entropy" between p and the label, or "squared" for
        their squared difference, as a mean over the maps.
      prior: the heat, in (0, 1), from which training starts, as bias.
    """

    num_maps: checks.Count = 1
    loss_type: Annotated[str, checks.OneOf(_LOSSES)] = "cross_entropy"
    prior: Annotated[float, base.check_share] = 0.01

    label_types: ClassVar[tuple[str, ...]] = ("float32",)
    directions: ClassVar[Mapping[str, bool]] = {
        "peak_distance": False,
        "mse": False,
        **base.Base.directions,
    }

    @property
    def size(self) -> int:
        """One logit per map."""
        return self.num_maps

    @property
    def label_shape(self) -> tuple[int | None, ...]:
        """[H, W] for one map, else [H, W, K]."""
        return (None, None) if self.num_maps == 1 else (None, None, self.num_maps)

    def initial_bias(self) -> float:
        """Return the logit of the prior."""
        return base.logit(self.prior)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B, H, W] or [B, H, W, K] -> [B, H W, K], and a mask of present places."""
        heat = dense.flatten_places(label if self.num_maps > 1 else label[..., tf.newaxis])
        present = tf.reduce_all(self.are_present(heat), -1)
        heat = tf.where(present[..., tf.newaxis], heat, 0.0)
        return self.checked(heat, (heat >= 0) & (heat <= 1), heat, self.rule(heat.dtype)), present

    def find_present(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the heat of the places without a missing value."""
        places = dense.list_places(given, self.size, self.is_missing)
        return [value for place in places for value in place]

    def accepts(self, value: Any) -> bool:
        """Return True if the value is in [0, 1]."""
        return 0 <= value <= 1

    def rule(self, dtype: Any) -> str:
        """Return that a label must be in [0, 1]."""
        del dtype
        return "be in [0, 1]"

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every place: [B, n, K], [B, n, K] -> [B, n]."""
        if self.loss_type == "squared":
            return tf.reduce_mean((tf.sigmoid(logits) - targets) ** 2, -1)
        map_losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
        return tf.reduce_mean(map_losses, -1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, H, W, K] -> heat [B, H, W, K] and peak [B, K, 2]."""
        return {"heat": tf.sigmoid(logits), "peak": _find_peaks(logits)}

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Return the weighted sum of squared errors."""
        logits, targets, weights = examples
        errors = tf.reduce_mean((tf.sigmoid(logits) - targets) ** 2, -1)
        return {"squared_errors": metrics.sum_weighted(errors, weights)}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the mean squared error."""
        return {"mse": metrics.ratio(sums["squared_errors"], sums["weight"])}

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics of places, and the distance of the peaks, one for each map."""
        place_metrics = super().metrics(logits, labels)
        _, heat, weights = self.examples(logits, labels)
        size = tuple(logits.shape[1:3])
        heat = tf.reshape(heat, [-1, *size, self.num_maps])
        counts = tf.reduce_min(weights, 1)[:, tf.newaxis] * tf.cast(
            tf.reduce_max(heat, [1, 2]) > 0, tf.float32
        )
        offsets = tf.cast(_find_peaks(logits) - _find_peaks(heat), tf.float32)
        sums = {
            "distances": metrics.sum_weighted(tf.norm(offsets, axis=-1), counts),
            "maps": metrics.sum_weighted(tf.ones_like(counts), counts),
        }
        nan = place_metrics[base.NAN_PREDICTIONS][0]
        ((distance, update),) = metrics.stream_sums(
            sums, lambda sums: {"peak": metrics.ratio(sums["distances"], sums["maps"])}
        ).values()
        distance = tf.where(nan > 0, float("nan"), distance)
        return {
            **place_metrics,
            "peak_distance": (distance, tf.group(update, place_metrics["mse"][1])),
        }


def _find_peaks(maps: tf.Tensor) -> tf.Tensor:
    """Return the row and column of the largest value of each map: -> int64 [B, K, 2]."""
    # In int32, as TensorFlow Lite cannot divide int64.
    places = tf.argmax(dense.flatten_places(maps), 1, tf.int32)
    coordinates = tf.stack([places // maps.shape[2], places % maps.shape[2]], -1)
    return tf.cast(coordinates, tf.int64)
