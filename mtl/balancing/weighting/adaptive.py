"""Weightings by the speed at which each loss falls, with state that lasts from step to step.

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
    """Weights `w_t = T softmax_t(r / temperature)`, `r_t = L_t(k - 1) / L_t(k - 2)` in period k.

    S. Liu, E. Johns, A. J. Davison, "End-to-End Multi-Task Learning with Attention", 2019,
    arXiv:1803.10704. L_t(k) is the average loss of task t over the steps of period k whose batch
    has the task; the paper's periods are epochs. In the first two periods, and until the task has
    been in batches of two periods, the ratio r_t is 1. The weights w_t sum to the number of tasks
    T, and change only at the end of a period.

    Attributes:
      period_steps: the length of a period in steps: an epoch, as in the paper, or enough steps for
        an average loss with little noise. Periods start at the steps that are multiples of
        `period_steps`, or later with several workers and parameter servers.
      temperature: the temperature of the softmax, above 0; large values make the weights equal. The
        paper takes a temperature of 2.
    """

    period_steps: checks.Count = 100
    temperature: checks.Positive = 2.0

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        values = base.require_nonnegative("DynamicWeightAverage", losses)
        latest, earlier = self._average_periods(values, step)
        has_earlier = earlier > 0
        ratios = tf.where(has_earlier, latest / tf.where(has_earlier, earlier, 1.0), 1.0)
        shares = tf.nn.softmax(ratios / self.temperature)
        return base.scale_losses(len(losses) * shares, losses)

    def _average_periods(self, values: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return average losses [T] of the last two complete periods; 0 for missing periods."""
        names = ("sums", "counts", "latest", "earlier")
        zeros = np.zeros(values.shape[0])
        states = [
            step_state.create_variable(f"dynamic_weight_average/{name}", zeros) for name in names
        ]
        sums, counts, latest, earlier = (state.read_value() for state in states)
        starts = tf.equal(step % self.period_steps, 0)
        # A period without any batch of the task does not change its average losses.
        has_ended = starts & (counts > 0)
        earlier = tf.where(has_ended, latest, earlier)
        latest = tf.where(has_ended, tf.math.divide_no_nan(sums, counts), latest)
        present = base.are_present(values)
        # `goes_on` is 0 at the start of a period, and resets the sums.
        goes_on = tf.cast(~starts, tf.float64)
        sums = goes_on * sums + tf.where(present, values, 0.0)
        counts = goes_on * counts + tf.cast(present, tf.float64)
        for state, value in zip(states, (sums, counts, latest, earlier), strict=True):
            step_state.assign_with_update(state, value)
        return latest, earlier


@checks.dataclass
class FAMO(base.Weighting):
    """Fast adaptive multitask optimisation: lets all losses fall at the same rate.

    A step minimises `L = sum_t c z_t log(L_t)`, with `z = softmax(xi)` and `c = 1 / sum_t (z_t /
    L_t)`; after the step, `xi <- xi - rate (J'd + decay xi)`. J is the Jacobian of softmax at xi,
    and `d_t = log(L_t before) - log(L_t after)` of the step. The weights of the tasks' gradients,
    `c z_t / L_t`, sum to 1.

    B. Liu, Y. Feng, P. Stone, Q. Liu, "FAMO: Fast Adaptive Multitask Optimization", 2023,
    arXiv:2306.03792. The authors' code computes the loss "L_t after" a step by a second forward
    pass on the same batch. Here, "L_t after" a step is the loss of the next batch that has the
    task, which takes no further pass. Over many steps, the differences between one batch and the
    next add up to the fall of the loss. A difference of losses on the same batch, before and after
    a step, would also include progress that helps only this batch.

    Attributes:
      learning_rate: the learning rate of the logits xi, above 0.
      decay: the decay of the logits xi, at least 0, which moves the shares z towards equal values.
        The default decay comes from the paper's Algorithm 2.
      adam: True updates the logits xi by Adam, with `decay` as an L2 penalty, as in Algorithm 2 and
        the authors' code. With `adam = False`, the update of the logits is `xi <- xi - rate (J'd +
        decay xi)`, as in Algorithm 1, which needs a far larger learning rate.
    """

    learning_rate: checks.Positive = 0.025
    decay: checks.NotNegative = 0.001
    adam: bool = True

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        del step
        values = base.require_nonnegative("FAMO", losses)
        present = base.are_present(values)
        shares = base.softmax(self._update_logits(values, present), present)
        # The summands z_t / L_t of 1 / c, [T].
        inverses = tf.math.divide_no_nan(shares, tf.where(present, values, 0.0))
        scale = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), tf.reduce_sum(inverses))
        return base.scale_losses(scale * shares, base.take_logarithms(losses))

    def _update_logits(self, values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """Update the logits xi [T] by the changes of the losses since the last step."""
        zeros = np.zeros(values.shape[0])
        state, last = (
            step_state.create_variable(f"famo/{name}", zeros) for name in ("logits", "last")
        )
        logits, before = state.read_value(), last.read_value()
        # The last loss of an absent task does not change. In the task's next batch, the fall of the
        # loss is measured from the task's last loss.
        step_state.assign_with_update(last, tf.where(present, values, before))
        is_comparable = present & (before > 0)
        falls = tf.math.log(
            tf.where(is_comparable, before, 1.0) / tf.where(is_comparable, values, 1.0)
        )
        shares = base.softmax(logits, is_comparable)
        # The gradient's first term is J'd, where J = diag(z) - z z' is the Jacobian of softmax.
        gradient = shares * (falls - tf.reduce_sum(shares * falls)) + self.decay * logits
        moves = tf.reduce_any(is_comparable)
        change = self._step_adam(gradient, moves) if self.adam else gradient
        logits -= self.learning_rate * tf.where(moves, change, 0.0)
        step_state.assign_with_update(state, logits)
        return logits

    def _step_adam(self, gradient: tf.Tensor, moves: tf.Tensor) -> tf.Tensor:
        """Return Adam's step for xi, with Adam's usual constants and a learning rate of 1.

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
