"""Gradients of expectations over what is drawn, where no gradient goes through the draw.

probabilities = tf.nn.softmax(logits)                            # [B, C]
action = tf.random.stateless_categorical(logits, 1, seed)[:, 0]
log_probability = -tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits)
loss = score_function.reinforce(log_probability, cost, baseline)            # [B]
loss = score_function.magic_box(log_probability) * cost                     # any derivative

The mean of the gradient over draws is that of the expected cost.
"""

import tensorflow as tf


def reinforce(
    log_probabilities: tf.Tensor, costs: tf.Tensor, baseline: tf.Tensor | float = 0.0
) -> tf.Tensor:
    """Return the costs, with a gradient whose mean over draws is that of the expected cost.

    `(cost - baseline) d log p + d cost`; no gradient goes through the first factor. R. J. Williams,
    "Simple Statistical Gradient-Following Algorithms" (REINFORCE), 1992. Second derivatives are not
    those of the expectation: see `magic_box`.

    Args:
      log_probabilities: of what was drawn, [...]; sums over the draws of a row, where there are
        several.
      costs: [...], which may depend on variables themselves.
      baseline: what the cost is compared with, [...] or a number. It takes noise off the gradient,
        and changes its mean nowhere as long as it does not depend on the draw.
    """
    gain = tf.stop_gradient(costs - baseline)
    return costs + gain * (log_probabilities - tf.stop_gradient(log_probabilities))


def magic_box(log_probabilities: tf.Tensor) -> tf.Tensor:
    """Return 1, whose derivatives of any order are those that the score function asks for.

    `exp(x - stop(x))`. A cost is multiplied by the box of all draws that it depends on, and a
    baseline b of a draw enters as `(1 - box) b`, which is 0.
    J. Foerster et al., "DiCE: The Infinitely Differentiable Monte Carlo Estimator", 2018,
    arXiv:1802.05098.
    """
    return tf.exp(log_probabilities - tf.stop_gradient(log_probabilities))
