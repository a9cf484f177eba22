"""Schedules of pruning: the share of pruned weights as a function of the global step.

from mtl.sparsity import pruning_schedules
pruning.Pruning.schedule = @pruning_schedules.Cubic()
pruning_schedules.Cubic.end_step = 2000
"""

from __future__ import annotations

from mtl import checks
from mtl.deferred import tf


@checks.dataclass
class Cubic:
    """Prunes the share `1 - (1 - (t - begin) / (end - begin)) ^ 3` of the final sparsity by step t.

    M. Zhu, S. Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model
    compression", 2017, arXiv:1710.01878, with an initial sparsity of 0. Weights are pruned at
    `begin_step`, then after every `every_steps` steps, and at `end_step`.

    Attributes:
      end_step: the global step of the last pruning, above `begin_step`. The run should continue
          after `end_step`, so that the network can recover.
      begin_step: the global step at which pruning begins.
      every_steps: the number of steps from one pruning to the next, in which the network recovers.
    """

    end_step: checks.Count
    begin_step: checks.Natural = 0
    every_steps: checks.Count = 100

    def __post_init__(self):
        rule = f"be above begin_step, {self.begin_step}"
        checks.require(self.end_step > self.begin_step, "Cubic.end_step", rule, self.end_step)

    @property
    def first_step(self) -> int:
        """The global step at which pruning begins."""
        return self.begin_step

    @property
    def last_step(self) -> int:
        """The global step of the last pruning."""
        return self.end_step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Compute the share of the final sparsity that is reached at a step.

        Args:
          step: the global step, an int64 scalar.

        Returns:
          The share, a float64 scalar in [0, 1].
        """
        num_steps = tf.clip_by_value(step - self.begin_step, 0, self.end_step - self.begin_step)
        is_over = step >= self.end_step  # `end_step` need not be a multiple of `every_steps`.
        num_steps = tf.where(is_over, num_steps, num_steps // self.every_steps * self.every_steps)
        elapsed_share = tf.cast(num_steps, tf.float64) / (self.end_step - self.begin_step)
        return 1 - (1 - elapsed_share) ** 3


@checks.dataclass
class OneShot:
    """Reaches the final sparsity in one step; at step 0, weights are chosen before any update.

    Attributes:
      step: the global step at which weights are pruned.
    """

    step: checks.Natural = 0

    @property
    def first_step(self) -> int:
        """The global step at which all weights are pruned at once."""
        return self.step

    @property
    def last_step(self) -> int:
        """The global step at which all weights are pruned at once."""
        return self.step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Compute the share of the final sparsity that is reached at a step.

        Args:
          step: the global step, an int64 scalar.

        Returns:
          The share, a float64 scalar: 0 before the step of the pruning, then 1.
        """
        # The comparison is >=, because a process that shares its global step with others may miss a
        # step.
        return tf.cast(step >= self.step, tf.float64)
