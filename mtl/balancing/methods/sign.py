"""A method that keeps a single sign at each coordinate.

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
    """`g = sum_t (leak + (1 - leak) m_t) g_t`; the mask m_t keeps gradients with the drawn sign.

    The positive sign is kept with the probability `p = (1 + sum_t g_t / sum_t |g_t|) / 2`, at each
    coordinate independently.

    Z. Chen, J. Ngiam, Y. Huang, T. Luong, H. Kretzschmar, Y. Chai, D. Anguelov, "Just Pick a Sign:
    Optimizing Deep Multitask Models with Gradient Sign Dropout", 2020, arXiv:2010.06808. On the
    representation this is the paper's layer: gradients are multiplied by the sign of the activation
    and summed over the batch to find p. All examples share a draw, and the masks use the signs of
    these sums. On parameters it acts on every coordinate of every variable.

    Attributes:
      leak: in [0, 1), the share of the dropped gradients that passes; 0 in most of the paper.
    """

    leak: checks.Rate = 0.0

    def evidence(self, rows: tf.Tensor, at: tf.Tensor | None) -> tf.Tensor:
        """Return the gradients, or on the representation [S, 1, ...] sums over the examples."""
        return rows if at is None else tf.reduce_sum(rows * tf.sign(at), 1, keepdims=True)

    def __call__(self, rows: tf.Tensor, evidence: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Sum the gradients that the draw keeps: [S, ...] and their evidence -> [...]."""
        total = tf.reduce_sum(tf.abs(evidence), 0)
        chance = (1 + tf.math.divide_no_nan(tf.reduce_sum(evidence, 0), total)) / 2
        draws = tf.random.stateless_uniform(tf.shape(chance), seed, dtype=rows.dtype)
        winner = tf.where(draws < chance, tf.ones_like(chance), -tf.ones_like(chance))
        is_winner = tf.cast(evidence * winner > 0, rows.dtype)
        return tf.reduce_sum((self.leak + (1 - self.leak) * is_winner) * rows, 0)
