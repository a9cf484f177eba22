"""Smooth Tchebycheff scalarisation: a smooth maximum of the losses, in two forms.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.SmoothTchebycheff()
weighting.SmoothTchebycheff.preferences = {"income": 0.7, "never_married": 0.3}

X. Lin, X. Zhang, Z. Yang, F. Liu, Z. Wang, Q. Zhang, "Smooth Tchebycheff Scalarization for
Multi-Objective Optimization", 2024, arXiv:2402.19078.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np

from mtl import checks, types
from mtl.balancing.weighting import base
from mtl.deferred import tf
from mtl.step import step_state


@checks.dataclass
class SmoothTchebycheff(base.Weighting):
    """A smooth maximum of the losses: `g = mu log sum_t exp(p_t (L_t - z_t) / mu)`.

    The formula of the smooth maximum g comes from the paper of the method. The weights of the
    losses are the derivatives of g, `w_t = p_t softmax_t(p (L - z) / mu)`. Therefore, the sum of
    the weighted losses w_t L_t has the gradient of the maximum g, but not its value. The sum in the
    formula is over the tasks in the batch. The losses should have the same scale, because the
    maximum compares their values.

    Attributes:
      smoothing: the smoothness mu of the maximum, above 0, in the unit of the losses. If mu is near
        0, only the largest loss counts; if mu is far above the differences of the losses, all tasks
        count. The authors use a mu of 0.01 for losses in [0, 1]. The default is ten times as large
        as the authors' value, because the losses of batches are noisy.
      preferences: {task: p_t}, the factor p_t above 0 of the task's loss, for every task; by
        default 1 / T for each of T tasks.
      ideal: {task: z_t}, the lowest loss that the task can reach, for every task; 0 each by
        default.
    """

    smoothing: checks.Positive = 0.1
    preferences: (
        Annotated[Mapping[str, Annotated[float, checks.number]], checks.Map("map tasks to numbers")]
        | None
    ) = None
    ideal: (
        Annotated[Mapping[str, Annotated[float, checks.number]], checks.Map("map tasks to numbers")]
        | None
    ) = None

    def __post_init__(self):
        for task, value in (self.preferences or {}).items():
            checks.positive(f"SmoothTchebycheff.preferences[{task!r}]", value)

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}.

        Raises:
          UserError: the tasks of a setting are not the tasks of the model.
        """
        del step
        values = base.stack_losses(losses)
        preferences = self._order_setting("preferences", losses, 1 / len(losses))
        distances = preferences * (values - self._order_setting("ideal", losses, 0.0))
        shares = base.softmax(distances / self.smoothing, base.are_present(values))
        return base.scale_losses(preferences * shares, losses)

    def _order_setting(self, name: str, losses: types.Tensors, default: float) -> tf.Tensor:
        """Return a setting {task: value} as a vector [T], in the order of the losses."""
        setting = getattr(self, name)
        if setting is None:
            return tf.fill([len(losses)], tf.constant(default, tf.float64))
        values = base.of_tasks(f"SmoothTchebycheff.{name}", setting, losses)
        return tf.constant(values, tf.float64)


@checks.dataclass
class SmoothTchebycheffMTL(base.Weighting):
    """A smooth maximum of log-losses: `g = T mu log sum_t exp(log(L_t / n_t) / mu)`.

    The formula comes from the authors' code for multi-task learning. The weights of the losses are
    the derivatives of the maximum g, `w_t = T softmax_t(log(L / n) / mu) / L_t`. The nadir n_t is
    the task's average loss over some steps after a warm-up. Before the nadir n_t is known, g is
    `sum_t log(L_t)`. The paper's formula lacks the logarithm, the division by n_t, the factor T and
    the warm-up. The authors' code has a warm-up of 4 epochs, and measures the nadir over 1 epoch;
    this class counts steps. The sum of the weighted losses has the gradient of the maximum g, but
    not its value. Tasks that are not in the batch are left out of the sum.

    Attributes:
      smoothing: the smoothness mu of the maximum, above 0, in units of log(L_t / n_t); 1 as in the
        authors' code.
      warmup_steps: the number of steps before the measurement of the nadir, at least 0.
      nadir_steps: the number of steps over which losses are averaged for the nadir, at least 1.
    """

    smoothing: checks.Positive = 1.0
    warmup_steps: checks.Natural = 400
    nadir_steps: checks.Count = 100

    def __call__(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Compute the weighted losses: {task: loss} -> {task: weighted loss}, 0 for absent tasks.

        Raises:
          InvalidArgumentError: when the graph runs, if a loss is below 0.
        """
        values = base.require_nonnegative("SmoothTchebycheffMTL", losses)
        present = base.are_present(values)
        nadir = self._find_nadir(values, present, step)
        ratios = tf.where(present, values, 1.0) / nadir
        shares = base.softmax(tf.math.log(ratios) / self.smoothing, present)
        # T is the number of tasks in the batch.
        count = tf.reduce_sum(tf.cast(present, tf.float64))
        has_nadir = step >= self.warmup_steps + self.nadir_steps
        weights = tf.where(has_nadir, count * shares, tf.ones_like(shares))
        return base.scale_losses(weights, base.take_logarithms(losses))

    def _find_nadir(self, values: tf.Tensor, present: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Return each task's nadir, [T]; 1 for tasks without a measured loss."""
        scope, zeros = "smooth_tchebycheff_mtl", np.zeros(values.shape[0])
        sums, counts = (
            step_state.create_variable(f"{scope}/{name}", zeros) for name in ("sums", "counts")
        )
        old_sums, old_counts = sums.read_value(), counts.read_value()
        is_measuring = (step >= self.warmup_steps) & (step < self.warmup_steps + self.nadir_steps)
        adds = is_measuring & present
        step_state.assign_with_update(sums, old_sums + tf.where(adds, values, 0.0))
        step_state.assign_with_update(counts, old_counts + tf.cast(adds, tf.float64))
        return tf.where(old_counts > 0, tf.math.divide_no_nan(old_sums, old_counts), 1.0)
