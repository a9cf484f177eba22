"""A loss of one's own: the predictions of a task are to rise with a number.

from examples import auxiliary_losses
model.MultiTaskModel.auxiliary_losses = [@auxiliary_losses.Rising()]
auxiliary_losses.Rising.task = "income"
auxiliary_losses.Rising.column = "numeric_education_num"
"""

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from mtl import checks, types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rising(types.AuxiliaryLoss):
    """`max(0, -dz / dx)` with z the logit of a task and x an encoded column of one number."""

    task: str
    column: str
    name: str = "rising"

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the task exists."""
        checks.one_of("Rising.task", self.task, heads)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute by how much the logit falls, [B]."""
        checks.one_of("Rising.column", self.column, activations.inputs)
        logits = tf.reduce_sum(activations.logits[self.task])
        slope = tf.gradients(logits, activations.inputs[self.column])[0]
        return tf.reduce_sum(tf.nn.relu(-slope), axis=1)
