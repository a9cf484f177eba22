"""A method that keeps only gradients of the same sign at each coordinate.

from mtl.balancing import methods
surgery.Combine.method = @methods.GradDrop()
surgery.Combine.on = "representation"
"""

from __future__ import annotations

from mtl import checks
from mtl.balancing.methods import method
from mtl.deferred import tf


@checks.dataclass
class GradDrop(method.CoordinateMethod):
    """`g = sum_t (leak + (1 - leak) m_t) g_t`: m_t is 1 where g_t has the drawn sign, else 0.

    The sign is drawn independently at each coordinate. The probability of the positive sign is `p =
    (1 + sum_t g_t / sum_t |g_t|) / 2`.

    Z. Chen, J. Ngiam, Y. Huang, T. Luong, H. Kretzschmar, Y. Chai, D. Anguelov, "Just Pick a Sign:
    Optimizing Deep Multitask Models with Gradient Sign Dropout", 2020, arXiv:2010.06808. With
    `Combine.on = "representation"`, the method is the paper's layer: gradients are multiplied by
    the sign of the activation, and their sums over the batch determine the probability p and the
    m_t. All examples of a batch share the drawn signs. With `Combine.on = "parameters"`, a sign is
    drawn for every coordinate of every variable.

    Attributes:
      leak: the factor of gradients that do not have the drawn sign, in [0, 1); 0 in most
        experiments of the paper.
    """

    leak: checks.Rate = 0.0

    def evidence(self, rows: tf.Tensor, at: tf.Tensor | None) -> tf.Tensor:
        """Return the gradients [S, ...]; for a representation, sums over the batch [S, 1, ...]."""
        return rows if at is None else tf.reduce_sum(rows * tf.sign(at), 1, keepdims=True)

    def __call__(self, rows: tf.Tensor, evidence: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Sum the gradients that have the drawn sign, [S, ...] -> [...]."""
        total = tf.reduce_sum(tf.abs(evidence), 0)
        chance = (1 + tf.math.divide_no_nan(tf.reduce_sum(evidence, 0), total)) / 2
        draws = tf.random.stateless_uniform(tf.shape(chance), seed, dtype=rows.dtype)
        winner = tf.where(draws < chance, tf.ones_like(chance), -tf.ones_like(chance))
        is_winner = tf.cast(evidence * winner > 0, rows.dtype)
        return tf.reduce_sum((self.leak + (1 - self.leak) * is_winner) * rows, 0)
