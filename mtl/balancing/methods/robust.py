"""Methods that ignore outlying gradients.

from mtl.balancing import methods
surgery.Combine.method = @methods.Krum()
surgery.Combine.method = @methods.TrimmedMean()
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from mtl import checks
from mtl.balancing.methods import method
from mtl.deferred import tf


@checks.dataclass
class Krum(method.Method):
    """`g` is the mean of the `selected` gradients that are nearest to their neighbours.

    The score of a gradient is the sum of squared distances to its `T - outliers - 2` nearest
    neighbours.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", 2017, arXiv:1703.02757. If tasks are absent from a batch,
    a score still counts at least one neighbour, and the mean covers no more gradients than the
    batch has.

    Attributes:
      outliers: the assumed number of outlying gradients, at least 0. The paper requires at least `2
        outliers + 3` tasks.
      selected: the number of gradients to average, at least 1. With `selected = 1`, the method is
        Krum; with larger numbers, the method is Multi-Krum.
    """

    outliers: checks.Natural = 1
    selected: checks.Count = 1

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], 1 / min(selected, T) for chosen gradients, else 0."""
        size = tf.size(tasks.norms)
        squares = tf.linalg.diag_part(tasks.gramian)
        # |g_s - g_t|^2 = |g_s|^2 + |g_t|^2 - 2 g_s'g_t, [T, T].
        distances = squares[:, tf.newaxis] + squares - 2 * tasks.gramian
        distances = tf.sort(tf.linalg.set_diag(distances, tf.zeros_like(squares)))
        neighbours = tf.maximum(size - self.outliers - 2, 1)
        # The first distance is left out: the distance of the gradient to itself, 0.
        scores = tf.reduce_sum(distances[:, 1 : 1 + neighbours], 1)
        num_winners = tf.minimum(self.selected, size)
        winners = tf.argsort(scores, stable=True)[:num_winners]
        counts = tf.reduce_sum(tf.one_hot(winners, size, dtype=tf.float64), 0)
        return counts / tf.cast(num_winners, tf.float64)


@checks.dataclass
class TrimmedMean(method.CoordinateMethod):
    """The mean of the gradients at each coordinate, without the `trim` least and greatest values.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates", 2018, arXiv:1803.01498. If tasks are absent from a batch, fewer
    values are dropped, so that at least one value remains.

    Attributes:
      trim: the number of least values, and also of greatest values, to drop at each coordinate; at
        least 0.
    """

    trim: checks.Natural = 1

    def __call__(self, rows: tf.Tensor, evidence: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        """Average the gradients without the extremes at each coordinate, [S, ...] -> [...]."""
        del evidence, seed
        if rows.shape[0] is not None:
            values = tf.unstack(rows)
            for _ in range(min(self.trim, (len(values) - 1) // 2)):
                values = _drop(tf.minimum, tf.maximum, _drop(tf.maximum, tf.minimum, values))
            return tf.add_n(values) / len(values)
        for _ in range(self.trim):
            # Each call of `_cut` drops two rows, and at least one row must remain.
            is_enough = tf.shape(rows)[0] > 2
            rows = tf.cond(is_enough, functools.partial(_cut, rows), lambda values=rows: values)
        return tf.math.divide_no_nan(tf.reduce_sum(rows, 0), tf.cast(tf.shape(rows)[0], rows.dtype))


_Choice = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def _drop(choose: _Choice, leave: _Choice, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Drop the greatest (or least) value at each coordinate, in a third of the time of sorting.

    Args:
      choose: the function that chooses the value to drop, `tf.maximum` or `tf.minimum`.
      leave: the opposite of `choose`, `tf.minimum` or `tf.maximum`.
      values: tensors of the same shape.
    """
    winner, losers = values[0], list[tf.Tensor]()
    for value in values[1:]:
        losers.append(leave(winner, value))
        winner = choose(winner, value)
    return losers


def _cut(rows: tf.Tensor) -> tf.Tensor:
    """Drop the greatest and the least value at each coordinate, [S, ...] -> [S - 2, ...].

    The function works like `_drop`, but the number of rows may be unknown while the graph is built.
    """
    rows = tf.minimum(tf.scan(tf.maximum, rows)[:-1], rows[1:])
    return tf.maximum(tf.scan(tf.minimum, rows)[:-1], rows[1:])
