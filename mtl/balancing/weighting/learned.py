"""Weights that the optimizer trains with the network, one scalar variable for each task.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.UncertaintyWeighting()
weighting.UncertaintyWeighting.gaussian = ["age"]

The gradient of a task's variable comes from the task's weighted loss. To prevent overflow, the
variables of the tasks stay within [-50, 50], and the weights between 2e-22 and 5e21. If a task is
not in the batch, the gradient of its variable is 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl import checks, types
from mtl.balancing.weighting import base
from mtl.deferred import tf, tf1

# exp(50) is 5e21, and its product with a usual loss is finite in float32.
_LIMIT = 50.0


@checks.dataclass
class UncertaintyWeighting(base.Weighting):
    """Homoscedastic uncertainty: `L = sum_t c_t exp(-s_t) L_t + s_t / 2`, `s_t = log sigma_t^2`.

    A. Kendall, Y. Gal, R. Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene
    Geometry and Semantics", 2018, arXiv:1705.07115, in its log-variance form. The constant factor
    c_t of a task's loss is 1 for the cross-entropy of a scaled softmax, and 1/2 for the squared
    error of a Gaussian. If the loss L_t stays constant, its weight `c_t exp(-s_t)` converges to `1
    / (2 L_t)` for both values of c_t; so c_t changes only the initial weight, and the meaning of
    sigma_t. The initial s_t is 0.

    Attributes:
      gaussian: the tasks whose loss is a squared error; their factor c_t is 1/2.
    """

    gaussian: Sequence[str] = ()

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          UserError: `gaussian` names a task that the model does not have.
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        del step
        for task in self.gaussian:
            checks.one_of("UncertaintyWeighting.gaussian", task, losses)
        weighted = {}
        for task, (loss, present) in _check_losses("UncertaintyWeighting", losses).items():
            factor = 0.5 if task in self.gaussian else 1.0
            log_variance = _create_trained(f"log_variance/{task}")
            value = factor * tf.exp(-log_variance) * loss + log_variance / 2
            weighted[task] = tf.where(present, value, 0.0)
        return weighted


@dataclasses.dataclass(frozen=True, kw_only=True)
class IMTLL(base.Weighting):
    """IMTL-L: `L = sum_t exp(s_t) L_t - s_t`, which moves every `exp(s_t) L_t` towards 1.

    L. Liu, Y. Li, Z. Kuang, J. Xue, Y. Chen, W. Yang, Q. Liao, W. Zhang, "Towards Impartial
    Multi-Task Learning", ICLR 2021 (no arXiv id). The base of the exponential is e, and the trained
    s_t start at 0. The paper's IMTL combines IMTL-L with IMTL-G, which balances gradients:
    `methods.IMTLG`.
    """

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        del step
        weighted = {}
        for task, (loss, present) in _check_losses("IMTLL", losses).items():
            scale = _create_trained(f"scale/{task}")
            weighted[task] = tf.where(present, tf.exp(scale) * loss - scale, 0.0)
        return weighted


def _check_losses(where: str, losses: types.Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Return {task: (loss, is present)}; absent tasks have the loss 0, and negative losses fail."""
    present = tf.unstack(base.are_present(base.require_nonnegative(where, losses)))
    return {
        task: (tf.where(is_present, loss, 0.0), is_present)
        for (task, loss), is_present in zip(losses.items(), present, strict=True)
    }


def _create_trained(name: str) -> tf.Variable:
    return tf1.get_variable(
        name,
        [],
        tf.float32,
        tf1.zeros_initializer(),
        # The optimizer applies a variable's `constraint` after each update. A clip in the loss
        # would have no gradient beyond the limit, so the variable would never come back.
        constraint=lambda value: tf.clip_by_value(value, -_LIMIT, _LIMIT),
    )
