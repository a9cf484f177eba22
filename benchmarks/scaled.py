"""Scales the loss of a binary task, as if the task had another unit.

So balancing gets scaled losses and gradients.

model.MultiTaskModel.heads = [@scaled.ScaledBinary(), @never_married/heads.Binary()]
scaled.ScaledBinary.name = "income"
scaled.ScaledBinary.scale = 0.001
"""

import dataclasses

import tensorflow as tf

from mtl import checks, heads, types


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledBinary(heads.Binary):
    """A `Binary` head with `loss = scale * loss`; metrics do not change.

    Attributes:
      scale: the factor of the loss, above 0.
    """

    scale: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        checks.positive(self._where("scale"), self.scale)

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Return the scaled loss, a scalar, of logits [B, 1] and labels {field: [B]}."""
        return self.scale * super().loss(logits, labels)
