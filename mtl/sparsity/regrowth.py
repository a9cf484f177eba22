"""Regrowth: pruned weights come back, and the same number of other weights is pruned.

from mtl.sparsity import regrowth
pruning.Pruning.regrowth = @regrowth.Regrowth()
regrowth.Regrowth.until_step = 1500
"""

from __future__ import annotations

import math
from typing import Annotated

from mtl import checks
from mtl.deferred import tf
from mtl.sparsity import criteria
from mtl.sparsity import densities as densities_lib
from mtl.step import draws

GRADIENT, RANDOM = "gradient", "random"


@checks.dataclass
class Regrowth:
    """Every few steps, prunes the smallest weights of a layer, and lets pruned weights grow from 0.

    With `by = "gradient"`, the pruned weights with the largest gradients grow (RigL: Evci et al.,
    "Rigging the Lottery: Making All Tickets Winners", 2020, arXiv:1911.11134). RigL needs
    `Pruning.gradient = "dense"`. With `by = "random"`, random weights grow (SET: Mocanu et al.,
    "Scalable Training of Artificial Neural Networks with Adaptive Sparse Connectivity inspired by
    Network Science", 2018, arXiv:1707.04780). At step t, the share `share / 2 (1 + cos(pi t /
    until_step))` of a layer's remaining weights is swapped. A step that swaps also updates the
    weights; in RigL's code, a step that swaps does not update weights.

    Attributes:
      until_step: the global step from which no weights are swapped, such as 3/4 of the run's steps.
      every_steps: the number of steps from one swap to the next.
      share: the share of a layer's remaining weights that would be swapped at step 0, in (0, 1).
      by: the rule by which weights grow, "gradient" or "random".
    """

    until_step: checks.Count
    every_steps: checks.Count = 100
    share: Annotated[float, checks.In("(0, 1)")] = 0.3
    by: Annotated[str, checks.OneOf((GRADIENT, RANDOM))] = GRADIENT

    def is_due(self, step: tf.Tensor) -> tf.Tensor:
        """Decide whether weights are swapped at a step.

        Args:
          step: the global step, an int64 scalar.

        Returns:
          bool scalar: True at multiples of `every_steps`, above 0 and below `until_step`.
        """
        is_regular = tf.equal(step % self.every_steps, 0)
        return is_regular & (step > 0) & (step < self.until_step)

    def swap(self, mask: tf.Tensor, seen: criteria.Seen, step: tf.Tensor) -> tf.Tensor:
        """Return a mask with as many ones as `mask`, but some of the ones are at other weights.

        Args:
          mask: the present mask, zeros and ones in the shape of the weights.
          seen: the weights of a variable and, if `by` is "gradient", their gradient.
          step: the global step, an int64 scalar.
        """
        angle = math.pi / self.until_step * tf.cast(step, tf.float64)
        num_uncut = tf.reduce_sum(mask)
        share = tf.cast(self.share / 2 * (1 + tf.cos(angle)), tf.float32)
        # The number of weights that can grow is at most the number of pruned weights.
        count = tf.minimum(tf.round(share * num_uncut), tf.size(mask, tf.float32) - num_uncut)
        # -1 is below all magnitudes, so pruned weights come last.
        stay = self._keep_largest(tf.where(mask > 0, tf.abs(seen.weights), -1.0), num_uncut - count)
        if self.by == GRADIENT:
            growth = tf.abs(seen.gradient)
        else:
            growth = tf.random.stateless_uniform(mask.shape, draws.make_step_seed(seen.name))
        # As in RigL's code, a weight that this step prunes may grow again at once.
        return stay + self._keep_largest(tf.where(stay > 0, -1.0, growth), count)

    def _keep_largest(self, scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(scores, [-1])
        return tf.reshape(densities_lib.keep_largest(flat, tf.cast(count, tf.int32)), scores.shape)
