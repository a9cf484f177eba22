"""Methods that divide the improvement of a step fairly among the tasks.

from mtl.balancing import methods
surgery.Combine.method = @methods.NashMTL()
surgery.Combine.method = @methods.FairGrad()
"""

from __future__ import annotations

import dataclasses

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class NashMTL(method.Method):
    """The Nash bargaining solution: `g = sum_t a_t g_t` with `G a = 1 / a`, for the Gramian G.

    A. Navon, A. Shamsian, I. Achituve, H. Maron, K. Kawaguchi, G. Chechik, E. Fetaya, "Multi-Task
    Learning as a Bargaining Game", 2022, arXiv:2202.01017. Newton's method solves the equation `G a
    = 1 / a`. The authors' code approximates the solution by a sequence of convex problems, and
    clips the combined gradient g to norm 1; here, `Update.clipping` can clip g.

    For T tasks, the length of the combined gradient g is sqrt(T), whatever the scale of the
    gradients. At a Pareto-stationary point, the equation `G a = 1 / a` has no solution, and the
    weights of Newton's method grow without bound. To bound the weights there, they are divided by
    the largest `a_t |g_t|`, and the combined gradient g is about 0.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], above 0."""
        return solvers.fair_weights(tasks.cosines, tf.ones_like(tasks.norms), 1) / tasks.norms


@checks.dataclass
class FairGrad(method.Method):
    """Alpha-fair improvement: `g = sum_t w_t g_t` with `G w = w^(-1 / alpha)`, for the Gramian G.

    H. Ban, K. Ji, "Fair Resource Allocation in Multi-Task Learning", 2024, arXiv:2402.15638.
    Newton's method solves the equation of the weights; the authors' least-squares solver leaves
    residuals of a few percent. At Pareto-stationary points, the weights are scaled as by `NashMTL`.

    Attributes:
      alpha: the exponent of alpha-fairness, above 0. An alpha of 1 gives `NashMTL`, 2 (default)
        minimises the total potential delay, and large values approach max-min fairness.
    """

    alpha: checks.Positive = 2.0

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], above 0."""
        power = 1 / self.alpha
        # With b = w |g|, the weights w multiplied by the gradients' norms, and the matrix U of
        # their cosines, the equation for the weights is U b = |g|^(power - 1) b^-power. A common
        # factor of the right side only scales b, so the code removes this factor before it solves
        # the equation.
        scales = (power - 1) * tf.math.log(tasks.norms)
        common = tf.reduce_mean(scales)
        solution = solvers.fair_weights(tasks.cosines, tf.exp(scales - common), self.alpha)
        return solution * tf.exp(common / (1 + power)) / tasks.norms
