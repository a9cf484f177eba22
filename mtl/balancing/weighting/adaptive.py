"""Weights that depend on how fast each loss falls, with state from step to step.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.DynamicWeightAverage()
weighting.DynamicWeightAverage.period_steps = 500
"""

from __future__ import annotations

import numpy as np

from mtl import checks, types
from mtl.balancing.weighting import base
from mtl.deferred import tf
from mtl.step import step_state


@checks.dataclass
class DynamicWeightAverage(base.Weighting):
    """`w_t = T softmax_t(r / temperature)`, `r_t = L_t(k - 1) / L_t(k - 2)`, L(k) of period k.

    S. Liu, E. Johns, A. J. Davison, "End-to-End Multi-Task Learning with Attention", 2019,
    arXiv:1803.10704. L_t(k) is the average over the steps of a period that had the task; the
    paper's periods are epochs. r_t is 1 in the first two periods, and for a task that was not yet
    in two periods. The weights sum to T and change when a period ends.

    Attributes:
      period_steps: the length of a period: an epoch, as in the paper, or enough steps for a steady
        average loss. Periods start at multiples of it.
      temperature: above 0; large values level the weights. 2 as in the paper.
    """

    period_steps: checks.Count = 100
    temperature: checks.Positive = 2.0

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses: {task: scalar} -> {task: scalar}.

        Raises:
          InvalidArgumentError: when run, on a loss below 0.
        """
        values = base.require_nonnegative("DynamicWeightAverage", losses)
        latest, earlier = self._average_periods(values, step)
        has_earlier = earlier > 0
        ratios = tf.where(has_earlier, latest / tf.where(has_earlier, earlier, 1.0), 1.0)
        shares = tf.nn.softmax(ratios / self.temperature)
        return base.scale_losses(len(losses) * shares, losses)

    def _average_periods(self, values: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the losses [T] of the last two finished periods; 0 before a period has ended."""
        names = ("sums", "counts", "latest", "earlier")
        zeros = np.zeros(values.shape[0])
        states = [
            step_state.create_variable(f"dynamic_weight_average/{name}", zeros) for name in names
        ]
        sums, counts, latest, earlier = (state.read_value() for state in states)
        starts = tf.equal(step % self.period_steps, 0)
        # A period in which the task never came leaves its earlier losses as they are.
        has_ended = starts & (counts > 0)
        earlier = tf.where(has_ended, latest, earlier)
        latest = tf.where(has_ended, tf.math.divide_no_nan(sums, counts), latest)
        present = base.are_present(values)
        # 0 at the start of a period, which empties the sums.
        goes_on = tf.cast(~starts, tf.float64)
        sums = goes_on * sums + tf.where(present, values, 0.0)
        counts = goes_on * counts + tf.cast(present, tf.float64)
        for state, value in zip(states, (sums, counts, latest, earlier), strict=True):
            step_state.assign_with_update(state, value)
        return latest, earlier


@checks.dataclass
class FAMO(base.Weighting):
    """Fast adaptive multitask optimisation: all losses fall at the same rate, in one backward pass.

    `L = sum_t c z_t log(L_t)`, `z = softmax(xi)`, `c = 1 / sum_t (z_t / L_t)`; and then
    `xi <- xi - rate (J'd + decay xi)`, J the Jacobian of softmax at xi, `d_t = log(L_t before) -
    log(L_t after)` of the step. The weights `c z_t / L_t` sum to 1.

    B. Liu, Y. Feng, P. Stone, Q. Liu, "FAMO: Fast Adaptive Multitask Optimization", 2023,
    arXiv:2306.03792. Here "after" is the loss of the next batch that has the task; the authors'
    code takes a second forward pass on the same batch. The next batch costs nothing extra. Over
    many steps its differences sum to the fall of the loss, while differences on the same batch sum
    what the step learned of that batch only.

    Attributes:
      learning_rate: the learning rate of xi, above 0.
      decay: the decay of xi towards equal z, at least 0. The default comes from the paper's
        Algorithm 2.
      adam: True moves xi by Adam, with decay as an L2 penalty, as in Algorithm 2 and the authors'
        code. False takes the plain step above, Algorithm 1, which needs a far larger rate.
    """

    learning_rate: checks.Positive = 0.025
    decay: checks.NotNegative = 0.001
    adam: bool = True

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses: {task: scalar} -> {task: scalar}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when run, on a loss below 0.
        """
        del step
        values = base.require_nonnegative("FAMO", losses)
        present = base.are_present(values)
        shares = base.softmax(self._update_logits(values, present), present)
        # The summands of 1 / c in the formula, [T].
        inverses = tf.math.divide_no_nan(shares, tf.where(present, values, 0.0))
        scale = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), tf.reduce_sum(inverses))
        return base.scale_losses(scale * shares, base.take_logarithms(losses))

    def _update_logits(self, values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """Return the xi [T] of this step, after the losses of this batch judged the last step."""
        zeros = np.zeros(values.shape[0])
        state, last = (
            step_state.create_variable(f"famo/{name}", zeros) for name in ("logits", "last")
        )
        logits, before = state.read_value(), last.read_value()
        # An absent task keeps its last loss, so its next fall is measured from there.
        step_state.assign_with_update(last, tf.where(present, values, before))
        is_comparable = present & (before > 0)
        falls = tf.math.log(
            tf.where(is_comparable, before, 1.0) / tf.where(is_comparable, values, 1.0)
        )
        shares = base.softmax(logits, is_comparable)
        # J'd for the Jacobian of softmax, diag(z) - z z'.
        gradient = shares * (falls - tf.reduce_sum(shares * falls)) + self.decay * logits
        moves = tf.reduce_any(is_comparable)
        change = self._step_adam(gradient, moves) if self.adam else gradient
        logits -= self.learning_rate * tf.where(moves, change, 0.0)
        step_state.assign_with_update(state, logits)
        return logits

    def _step_adam(self, gradient: tf.Tensor, moves: tf.Tensor) -> tf.Tensor:
        """Return the direction of Adam with its usual constants.

        The state of Adam changes only if `moves` is true.
        """
        zeros = np.zeros(gradient.shape[0])
        means, squares = (
            step_state.create_variable(f"famo/adam_{name}", zeros) for name in ("means", "squares")
        )
        count = step_state.create_variable("famo/adam_count", np.zeros(1))
        new_count = count.read_value() + tf.cast(moves, tf.float64)
        estimates = []
        for state, rate, new in ((means, 0.9, gradient), (squares, 0.999, gradient**2)):
            old = state.read_value()
            value = tf.where(moves, rate * old + (1 - rate) * new, old)
            step_state.assign_with_update(state, value)
            estimates.append(tf.math.divide_no_nan(value, 1 - rate**new_count))
        step_state.assign_with_update(count, new_count)
        return estimates[0] / (tf.sqrt(estimates[1]) + 1e-8)
