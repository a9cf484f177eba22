"""Methods with closed formulas that give every task the same influence on the update's direction.

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

# Eigenvalues below this share of the largest eigenvalue count as 0: if gradients are linearly
# dependent, rounding errors make such eigenvalues.
_DEPENDENT = 1e-13

SCALES = ("min", "median", "rmse")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IMTLG(method.Method):
    """`g = sum_t a_t g_t` has equal projections onto all gradients g_t; the weights a_t sum to 1.

    L. Liu, Y. Li, Z. Kuang, J. Xue, Y. Chen, W. Yang, Q. Liao, W. Zhang, "Towards Impartial
    Multi-task Learning", ICLR 2021. The weights a_t of tasks may be negative. If the sum of the
    weights is negative, the paper's division by the sum would make every task worse, so here the
    weights are divided by the absolute value of their sum. If gradients are linearly dependent,
    several weights may give equal projections. The method takes the weights for which the vector of
    the numbers `a_t |g_t|` has the least norm. If only the vector 0 has equal projections onto all
    gradients, as for opposite gradients, the combined gradient g is 0.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T]."""
        solution, rest = _equal_cosines(tasks.cosines)
        solvable = tf.reduce_sum(rest**2) < 1e-8
        weights = tf.where(solvable, solution, rest) / tasks.norms
        return tf.math.divide_no_nan(weights, tf.abs(tf.reduce_sum(weights)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConFIG(method.Method):
    """`g = (sum_t g_t'u) u`, with u the unit vector that has the same cosine to all gradients g_t.

    Q. Liu, M. Chu, N. Thuerey, "ConFIG: Towards Conflict-free Training of Physics Informed Neural
    Networks", 2024, arXiv:2408.11104. If gradients are linearly dependent and the vector u does not
    exist, u is the solution by least squares, as with the paper's pseudoinverse. For two opposite
    gradients, the vector u is 0.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T]."""
        solution, _ = _equal_cosines(tasks.cosines)
        products = tf.linalg.matvec(tasks.cosines, solution)
        square = tf.reduce_sum(solution * products)
        length = tf.math.divide_no_nan(tf.reduce_sum(tasks.norms * products), square)
        return solution / tasks.norms * length


@checks.dataclass
class AlignedMTL(method.Method):
    """`g = sum_t b_t`: replaces gradients by the nearest orthogonal vectors b_t of equal length.

    Let M [T, D] be the matrix of the gradients, with the eigendecomposition `M M' = V L V'`. The
    orthogonal vectors b_t are the rows of `s V L^(-1/2) V' M`, with their common length s.

    D. Senushkin, N. Patakin, A. Kuznetsov, A. Konushin, "Independent Component Alignment for
    Multi-Task Learning", 2023, arXiv:2305.19000. Directions whose singular value in the matrix M of
    the gradients is below 3e-7 of the largest singular value are left out. To give some tasks more
    weight than others, set `MultiTaskModel.weighting`.

    Attributes:
      scale: the common length s of the vectors b_t, from the singular values of M: "min", their
        minimum, as in the paper (stable); "median", their lower median; or "rmse", their root mean
        square. The scales "median" and "rmse" come from the authors' code, and lead to larger steps
        than "min".
    """

    scale: Annotated[str, checks.OneOf(SCALES)] = "min"

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T]."""
        largest = tf.reduce_max(tasks.norms)
        values, vectors = tf.linalg.eigh(tasks.gramian / largest**2)
        is_used = values > _DEPENDENT * values[-1]
        roots = tf.where(is_used, tf.math.rsqrt(tf.abs(values)), tf.zeros_like(values))
        direction = tf.linalg.matvec(vectors, roots * tf.reduce_sum(vectors, 0))
        return direction * tf.sqrt(self._square_length(tf.boolean_mask(values, is_used)))

    def _square_length(self, values: tf.Tensor) -> tf.Tensor:
        """Return s^2, the squared length of the aligned gradients, from ascending eigenvalues."""
        if self.scale == "rmse":
            return tf.reduce_mean(values)
        return values[0] if self.scale == "min" else values[(tf.size(values) - 1) // 2]


def _equal_cosines(cosines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Solve `U b = 1` by least squares, with cosines U; return the shortest b, and `1 - U b`.

    The remainder `1 - U b` is in the null space of U: if the entries of the remainder are weights,
    the weighted sum of the unit gradients is 0.
    """
    values, vectors = tf.linalg.eigh(cosines)
    parts = tf.reduce_sum(vectors, 0)
    is_used = values > _DEPENDENT * values[-1]
    solution = tf.where(is_used, parts / tf.where(is_used, values, tf.ones_like(values)), 0 * parts)
    rest = tf.where(is_used, 0 * parts, parts)
    return tf.linalg.matvec(vectors, solution), tf.linalg.matvec(vectors, rest)
