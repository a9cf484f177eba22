"""Weightings without state: the geometric mean of the losses, and their logarithms.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.LogLoss()
"""

from __future__ import annotations

import dataclasses

from mtl import checks, types
from mtl.balancing.weighting import base
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeometricLoss(base.Weighting):
    """The geometric mean of the losses: `L = (prod_t L_t)^(1/T)`, so `w_t = L / (T L_t)`.

    S. Chennupati, G. Sistu, S. Yogamani, S. A. Rawashdeh, "MultiNet++: Multi-Stream Feature
    Aggregation and Geometric Loss Strategy for Multi-Task Learning", 2019, arXiv:1904.08492. The
    mean covers only tasks in the batch, and T is their number. The weighted loss w_t L_t of each
    task is L / T, the geometric mean divided by T.
    """

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        del step
        values = base.require_nonnegative("GeometricLoss", losses)
        present = base.are_present(values)
        count = tf.reduce_sum(tf.cast(present, values.dtype))
        # The loss of an absent task is replaced by 1, whose logarithm is 0.
        logs = tf.math.log(tf.where(present, values, 1.0))
        mean = tf.exp(tf.math.divide_no_nan(tf.reduce_sum(logs), count))
        weights = tf.where(present, mean / count / tf.where(present, values, 1.0), 0.0)
        return base.scale_losses(weights, losses)


@checks.dataclass
class LogLoss(base.Weighting):
    """The logarithms of the losses: `L = sum_t log(L_t + epsilon)`, so `w_t = 1 / (L_t + epsilon)`.

    The paper is B. Lin, W. Jiang, F. Ye, Y. Zhang, P. Chen, Y. Chen, S. Liu, J. T. Kwok,
    "Dual-Balancing for Multi-Task Learning", 2023, arXiv:2308.12029. A constant factor of a loss
    does not change the gradient of its logarithm. The other half of the paper's method, gradients
    of equal norm, is `methods.DBMTL`.

    Attributes:
      epsilon: a number above 0 that bounds the weight of a small loss. The default comes from the
        paper's code.
    """

    epsilon: checks.Positive = 1e-8

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        del step
        present = base.are_present(base.require_nonnegative("LogLoss", losses))
        return {
            task: tf.where(present[t], tf.math.log(loss + self.epsilon), 0.0)
            for t, (task, loss) in enumerate(losses.items())
        }
