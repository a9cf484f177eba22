"""Methods that find a direction in which every task improves.

from mtl.balancing import methods
surgery.Combine.method = @methods.MGDA()
surgery.Combine.method = @methods.CAGrad()
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf

NORMALIZERS = ("none", "l2", "loss", "loss+")


@checks.dataclass
class MGDA(method.Method):
    """`g = sum_t a_t g_t`, the shortest vector in the convex hull of the gradients.

    J.-A. Desideri, "Multiple-gradient descent algorithm (MGDA)", Comptes Rendus Mathematique 350,
    2012; Sener and Koltun, "Multi-Task Learning as Multi-Objective Optimization", 2018,
    arXiv:1810.04650. With `Combine.on = "representation"`, the method is MGDA-UB of Sener and
    Koltun. The shortest vector is computed exactly; the paper approximates it by Frank-Wolfe steps.

    Attributes:
      normalizer: the divisor of each gradient before the method: "none" for no divisor, "l2" for
        its norm, "loss" for the task's loss, "loss+" for the product of norm and loss. The divisors
        come from the authors' code; the paper does not divide gradients.
      normalize_update: True sums the divided gradients in the update. False (default) divides
        gradients only to find the weights a, and sums undivided gradients, as the authors' code
        does.
    """

    normalizer: Annotated[str, checks.OneOf(NORMALIZERS)] = "none"
    normalize_update: bool = False

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], at least 0, with sum 1 unless `normalize_update`."""
        divisor = self._find_divisor(tasks)
        # The new Gramian has the inner products of the divided gradients g_t / d_t.
        unit_tasks = dataclasses.replace(
            tasks, gramian=tasks.gramian / divisor[:, tf.newaxis] / divisor
        )
        weights = solvers.min_norm_weights(unit_tasks)
        return weights / divisor if self.normalize_update else weights

    def _find_divisor(self, tasks: method.Tasks) -> tf.Tensor:
        divisor = tf.ones_like(tasks.norms)
        if self.normalizer in ("l2", "loss+"):
            divisor *= tasks.norms
        if self.normalizer in ("loss", "loss+"):
            divisor *= tf.where(tasks.losses > 0, tasks.losses, tf.ones_like(tasks.losses))
        return divisor


@checks.dataclass
class CAGrad(method.Method):
    """`g = argmax_d min_t g_t'd` with `|d - g_0| <= c |g_0|`, where g_0 is the mean gradient.

    B. Liu, X. Liu, X. Jin, P. Stone, Q. Liu, "Conflict-Averse Gradient Descent for Multi-task
    Learning", 2021, arXiv:2110.14048. The solver in `cone` stops at a duality gap of about 1e-11
    times `|g_0| max_t |g_t|`, at any scale of the gradients.

    Attributes:
      c: the largest distance of the combined gradient g from the mean gradient g_0, relative to
        |g_0|, at least 0. With `c = 0`, g is the mean gradient. The paper proves convergence for
        values of c below 1, and uses 0.4 to 0.5 in its experiments.
      rescale: True divides the combined gradient g by `1 + c^2`, as the authors' code does by
        default. The paper does not divide g.
    """

    c: checks.NotNegative = 0.4
    rescale: bool = False

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T]."""
        mean = tf.ones_like(tasks.norms) / tf.cast(tf.size(tasks.norms), tf.float64)
        weights = mean + solvers.worst_case_ascent(tasks, mean, self.c) if self.c else mean
        return weights / (1 + self.c**2) if self.rescale else weights
