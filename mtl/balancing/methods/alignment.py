"""Methods in closed form that give every task the same influence on the direction.

from mtl.balancing import methods
surgery.Combine.method = @methods.IMTLG()
surgery.Combine.method = @methods.AlignedMTL()
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from mtl import checks
from mtl.balancing.methods import method
from mtl.deferred import tf

# Smaller eigenvalues, relative to the largest, come from dependent gradients and rounding.
_DEPENDENT = 1e-13

SCALES = ("min", "median", "rmse")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IMTLG(method.Method):
    """`g = sum_t a_t g_t` whose projections onto all gradients are equal, with `sum_t a_t = 1`.

    L. Liu, Y. Li, Z. Kuang, J. Xue, Y. Chen, W. Yang, Q. Liao, W. Zhang, "Towards Impartial
    Multi-task Learning", ICLR 2021. Weights may be negative. If their sum is negative, the paper's
    normalisation makes every task worse; here the absolute value of the sum is 1. If dependent
    gradients leave several solutions, this is the solution of least norm in unit gradients. If only
    0 has equal projections, as for opposite gradients, g is 0.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the weights [T]."""
        solution, rest = _equal_cosines(tasks.cosines)
        solvable = tf.reduce_sum(rest**2) < 1e-8
        weights = tf.where(solvable, solution, rest) / tasks.norms
        return tf.math.divide_no_nan(weights, tf.abs(tf.reduce_sum(weights)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConFIG(method.Method):
    """`g = (sum_t g_t'u) u`, u the unit vector that has the same cosine to all gradients.

    Q. Liu, M. Chu, N. Thuerey, "ConFIG: Towards Conflict-free Training of Physics Informed Neural
    Networks", 2024, arXiv:2408.11104. If dependent gradients leave no such u, u is the solution by
    least squares, as with the paper's pseudoinverse; for two opposite gradients, it is 0.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the weights [T]."""
        solution, _ = _equal_cosines(tasks.cosines)
        products = tf.linalg.matvec(tasks.cosines, solution)
        square = tf.reduce_sum(solution * products)
        length = tf.math.divide_no_nan(tf.reduce_sum(tasks.norms * products), square)
        return solution / tasks.norms * length


@checks.dataclass
class AlignedMTL(method.Method):
    """`g = sum_t b_t`, b the nearest orthogonal vectors of equal length to the gradients.

    `B = s V L^(-1/2) V' M` for gradients M [T, D] with `M M' = V L V'`; s is the common length.

    D. Senushkin, N. Patakin, A. Kuznetsov, A. Konushin, "Independent Component Alignment for
    Multi-Task Learning", 2023, arXiv:2305.19000. Directions in which the gradients extend by less
    than 3e-7 of the longest direction are left out. Weights of the tasks come from `weighting`.

    Attributes:
      scale: s, from the singular values of M: their "min" (the paper; stable), their lower "median"
        or their root mean square "rmse" (options of the authors' code; larger steps).
    """

    scale: Annotated[str, checks.OneOf(SCALES)] = "min"

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the weights [T]."""
        largest = tf.reduce_max(tasks.norms)
        values, vectors = tf.linalg.eigh(tasks.gramian / largest**2)
        is_used = values > _DEPENDENT * values[-1]
        roots = tf.where(is_used, tf.math.rsqrt(tf.abs(values)), tf.zeros_like(values))
        direction = tf.linalg.matvec(vectors, roots * tf.reduce_sum(vectors, 0))
        return direction * tf.sqrt(self._square_length(tf.boolean_mask(values, is_used)))

    def _square_length(self, values: tf.Tensor) -> tf.Tensor:
        """Return the squared length s^2, from the ascending eigenvalues."""
        if self.scale == "rmse":
            return tf.reduce_mean(values)
        return values[0] if self.scale == "min" else values[(tf.size(values) - 1) // 2]


def _equal_cosines(cosines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the shortest b with `U b = 1`, or with `U b` nearest to 1, and the remainder of 1.

    The remainder is in the null space of U: used as weights, it sums unit gradients to zero.
    """
    values, vectors = tf.linalg.eigh(cosines)
    parts = tf.reduce_sum(vectors, 0)
    is_used = values > _DEPENDENT * values[-1]
    solution = tf.where(is_used, parts / tf.where(is_used, values, tf.ones_like(values)), 0 * parts)
    rest = tf.where(is_used, 0 * parts, parts)
    return tf.linalg.matvec(vectors, solution), tf.linalg.matvec(vectors, rest)
