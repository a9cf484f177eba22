"""Clips the gradient of every task before another method balances the tasks.

surgery.Combine.method = @methods.Clipped()
methods.Clipped.max_norm = 1.0
methods.Clipped.method = @methods.PCGrad()          # None takes the sum
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mtl import checks
from mtl.balancing.methods import method as method_lib
from mtl.deferred import tf


@checks.dataclass
class Clipped(method_lib.Method):
    """Clips each task's gradient to the norm `max_norm`, then lets another method decide weights.

    The formula is `g_t <- g_t * min(1, max_norm / |g_t|)`, so that no task dominates the shared
    variables. Gradients of variables that only one task uses are not clipped. The method in the
    setting `method` gets the clipped gradients, and its weights multiply the clipped gradients.

    Attributes:
      max_norm: the largest norm of a task's gradient by the compared variables, above 0. The
        scalars `surgery/norm/<task>` show the norms before clipping.
      method: the method that decides the weights; None gives every task the weight 1.
    """

    max_norm: checks.Bound = 1.0
    method: method_lib.Method | None = None

    def __post_init__(self):
        if self.method is not None:
            example = "be a method that gives weights, such as @methods.PCGrad()"
            checks.is_a("Clipped.method", self.method, method_lib.Method, example)
            rule, fix = "read a whole batch", "This method multiplies gradients of different rows."
            checks.require(self.method.samples == 1, "Clipped.method", rule, self.method, fix)
            rule, fix = "keep no state of gradients", "The saved gradients would not be clipped."
            plain = self.method.tracking_rate == 1 and not self.method.preconditions
            checks.require(plain, "Clipped.method", rule, self.method, fix)

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the initial state of `method`."""
        return self.method.initial_state(num_tasks) if self.method else {}

    def __call__(self, tasks: method_lib.Tasks) -> tuple[tf.Tensor, method_lib.State]:
        """Return the weights [T] of the unclipped gradients, and the new state of `method`."""
        scales = tf.minimum(self.max_norm / tasks.norms, 1.0)
        if not self.method:
            return scales, {}
        gramian = tasks.gramian * scales[:, tf.newaxis] * scales
        weights, state = self.method(dataclasses.replace(tasks, gramian=gramian))
        # The caller multiplies weights by unclipped gradients, so the weights include the clipping.
        return weights * scales, state
