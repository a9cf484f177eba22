"""Schedules of pruning: the share of cut weights as a pure function of the global step.

from mtl.sparsity import pruning_schedules
pruning.Pruning.schedule = @pruning_schedules.Cubic()
pruning_schedules.Cubic.end_step = 2000
"""

from __future__ import annotations

from mtl import checks
from mtl.deferred import tf


@checks.dataclass
class Cubic:
    """`1 - (1 - (t - begin) / (end - begin)) ^ 3` of the final sparsity are cut at step t.

    M. Zhu, S. Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model
    compression", 2017, arXiv:1710.01878, with an initial sparsity of 0. Weights are cut at
    `begin_step`, then after every `every_steps` steps, and at `end_step`.

    Attributes:
      end_step: the global step of the last cut, above `begin_step`; leave steps after it for the
        network to recover.
      begin_step: the global step at which the share of cut weights begins to rise from 0.
      every_steps: the steps from one cut to the next; the network recovers during them.
    """

    end_step: checks.Count
    begin_step: checks.Natural = 0
    every_steps: checks.Count = 100

    def __post_init__(self):
        rule = f"be above begin_step, {self.begin_step}"
        checks.require(self.end_step > self.begin_step, "Cubic.end_step", rule, self.end_step)

    @property
    def first_step(self) -> int:
        """The global step of the first cut."""
        return self.begin_step

    @property
    def last_step(self) -> int:
        """The global step of the last cut."""
        return self.end_step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Return the share of the final sparsity that is cut up to a step.

        Args:
          step: the global step, an int64 scalar.

        Returns:
          A float64 scalar in [0, 1].
        """
        num_steps = tf.clip_by_value(step - self.begin_step, 0, self.end_step - self.begin_step)
        is_over = step >= self.end_step  # The last cut need not be a multiple of `every_steps`.
        num_steps = tf.where(is_over, num_steps, num_steps // self.every_steps * self.every_steps)
        elapsed_share = tf.cast(num_steps, tf.float64) / (self.end_step - self.begin_step)
        return 1 - (1 - elapsed_share) ** 3


@checks.dataclass
class OneShot:
    """Cuts the whole share at one step; step 0 uses gradients of the first batch, before updates.

    Attributes:
      step: the global step; 0 prunes at initialisation.
    """

    step: checks.Natural = 0

    @property
    def first_step(self) -> int:
        """The global step of the cut."""
        return self.step

    @property
    def last_step(self) -> int:
        """The global step of the cut."""
        return self.step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Return the share of the final sparsity that is cut up to a step.

        Args:
          step: the global step, an int64 scalar.

        Returns:
          A float64 scalar, 0 or 1.
        """
        # Also after the step: a process that shares its global step with others may miss the
        # number.
        return tf.cast(step >= self.step, tf.float64)
