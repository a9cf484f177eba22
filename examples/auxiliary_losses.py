"""An example of an auxiliary loss, which makes the predictions of a task rise with a number.

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
    """`max(0, -dz / dx)`, with z the logit of a task and x an encoded column with one number."""

    task: str
    column: str
    name: str = "rising"

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the task exists."""
        checks.one_of("Rising.task", self.task, heads)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the loss of each row, [B]: how fast the logit falls with the column."""
        checks.one_of("Rising.column", self.column, activations.inputs)
        logits = tf.reduce_sum(activations.logits[self.task])
        slope = tf.gradients(logits, activations.inputs[self.column])[0]
        return tf.reduce_sum(tf.nn.relu(-slope), axis=1)
