"""When weights are cut, and how many so far: pure functions of the global step.

from mtl.sparsity import pruning_schedules
pruning.Pruning.schedule = @pruning_schedules.Cubic()
pruning_schedules.Cubic.end_step = 2000
"""

import dataclasses

import tensorflow as tf

from mtl import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cubic:
    """`progress = 1 - (1 - (t - begin) / (end - begin)) ^ 3`, from 0 to 1, and 1 from then on.

    M. Zhu, S. Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model
    compression", 2017, arXiv:1710.01878, with an initial sparsity of 0. Weights are cut at
    `begin_step`, `every_steps` after it and so on, and at `end_step`.

    Attributes:
      end_step: the global step of the last cut, above `begin_step`; leave steps after it for the
        network to recover.
      begin_step: the global step of the first cut, which cuts nothing yet.
      every_steps: from one cut to the next; a network needs some steps to recover from each.
    """

    end_step: int
    begin_step: int = 0
    every_steps: int = 100

    def __post_init__(self):
        checks.whole("Cubic.begin_step", self.begin_step, 0)
        checks.whole("Cubic.end_step", self.end_step, 1)
        rule = f"be above begin_step, {self.begin_step}"
        checks.require(self.end_step > self.begin_step, "Cubic.end_step", rule, self.end_step)
        checks.whole("Cubic.every_steps", self.every_steps, 1)

    @property
    def first_step(self) -> int:
        """The global step of the first cut."""
        return self.begin_step

    @property
    def last_step(self) -> int:
        """The global step of the last cut."""
        return self.end_step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Return the share of the final sparsity at a step: int64 scalar -> float64 in [0, 1]."""
        passed = tf.cast(step - self.begin_step, tf.float64) / (self.end_step - self.begin_step)
        return 1 - (1 - tf.clip_by_value(passed, 0, 1)) ** 3

    def count_cuts(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many cuts are due up to a step: int64 scalar -> int64 scalar."""
        passed = tf.minimum(step, self.end_step) - self.begin_step
        regular = tf.maximum(passed // self.every_steps + 1, 0)
        # The last one, where it does not fall on a regular step.
        is_extra = (self.end_step - self.begin_step) % self.every_steps != 0
        return regular + tf.cast((step >= self.end_step) & is_extra, tf.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShot:
    """All is cut at one step; at step 0 by the gradients of the first batch, before any update.

    Attributes:
      step: the global step; 0 is pruning at initialisation.
    """

    step: int = 0

    def __post_init__(self):
        checks.whole("OneShot.step", self.step, 0)

    @property
    def first_step(self) -> int:
        """The global step of the cut."""
        return self.step

    @property
    def last_step(self) -> int:
        """The global step of the cut."""
        return self.step

    def progress(self, step: tf.Tensor) -> tf.Tensor:
        """Return the share of the final sparsity at a step: int64 scalar -> float64, 0 or 1."""
        return tf.cast(step >= self.step, tf.float64)

    def count_cuts(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many cuts are due up to a step: int64 scalar -> int64 scalar, 0 or 1."""
        return tf.cast(step >= self.step, tf.int64)
