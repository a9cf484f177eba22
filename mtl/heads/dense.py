"""The base class of heads over maps, which predict a value for each pixel.

networks.SharedBottom.trunk = @networks.UNet()               # towers that are maps
spec.Spec.labels = {"kind": ("int64", (32, 32)), "depth": ("float32", (32, 32))}

For losses, weights and metrics, height and width are flattened to a single axis, [B, H W]. In this
shape, the pixels of a map look like several labels of a row, so the code for rows with several
labels also works for maps. Towers, logits and predictions keep the shape of a map.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mtl import checks, layers, types
from mtl.deferred import compat, tf, tf1
from mtl.heads import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(base.Base):
    """A 1x1 convolution on the tower, with a loss for each pixel.

    A row has H W labels, one for each pixel; some of them may be missing. The loss is the weighted
    mean over all labelled pixels of the batch. A row with few labels thus contributes less than a
    row with many labels. All pixels of a row have the same `weight`.
    """

    is_dense: ClassVar[bool] = True

    @property
    def label_shape(self) -> tuple[int | None, ...]:
        """The shape of a label map of any size; `examples` checks the size of the map."""
        return (None, None)

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute logits: [B, H, W, C] -> [B, H, W, size]."""
        initializer = tf1.constant_initializer(self.initial_bias())
        return layers.conv(tower, self.size, "logits", size=1, bias_initializer=initializer)

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights, with height and width flattened to one axis.

        Args:
          logits: the logits of all pixels, [B, H, W, size].
          labels: {field: [B, ...]}; the head's label is [B, H, W] or [B, H, W, n].

        Returns:
          Logits [B, H W, size], targets [B, H W] or [B, H W, n], and weights [B, H W].

        Raises:
          UserError: the label map and the tower have different sizes.
        """
        size, label_size = tuple(logits.shape[1:3]), tuple(self.label_of(labels).shape[1:3])
        where = f"head {self.name!r}: label {self.field!r}"
        fix = "A tower of networks.UNet is as large as the image."
        checks.require(
            size == label_size, where, f"be a map of {size}, the size of its tower", label_size, fix
        )
        return super().examples(flatten_places(logits), labels)

    def _list_outputs(self, logits: tf.Tensor) -> list[tf.Tensor]:
        outputs = self.predictions(logits).values()
        return [flatten_places(value) for value in outputs if value.dtype.is_floating]

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export output "predict"; the other outputs of Estimator cannot hold maps."""
        return {"predict": compat.estimator.export.PredictOutput(self.predictions(logits))}


def flatten_places(maps: tf.Tensor) -> tf.Tensor:
    """Flatten height and width of maps to a single axis.

    Args:
      maps: [B, H, W, ...], with static sizes except for B.

    Returns:
      The values of all places, [B, H W, ...].
    """
    shape = maps.shape[1:].as_list()
    return tf.reshape(maps, [-1, math.prod(shape[:2]), *shape[2:]])


def list_places(
    given: Sequence[Any], size: int, is_missing: Callable[[Any], bool]
) -> list[Sequence[Any]]:
    """List the label values of each pixel, except for pixels with a missing value.

    Args:
      given: the values of a map, pixel by pixel.
      size: how many label values a pixel has.
      is_missing: a function that returns True for a value that marks a missing label.

    Returns:
      The `size` values of each pixel without a missing value.
    """
    places = [given[first : first + size] for first in range(0, len(given), size)]
    return [place for place in places if not any(map(is_missing, place))]
