"""Gradients of expected costs over discrete random draws (REINFORCE, DiCE).

probabilities = tf.nn.softmax(logits)                            # [B, C]
action = tf.random.stateless_categorical(logits, 1, seed)[:, 0]
log_probability = -tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits)
loss = score_function.reinforce(log_probability, cost, baseline)            # [B]
loss = score_function.magic_box(log_probability) * cost                     # any derivative

Over many draws, the mean gradient is the gradient of the expected cost.
"""

from __future__ import annotations

from mtl.deferred import tf


def reinforce(
    log_probabilities: tf.Tensor, costs: tf.Tensor, baseline: tf.Tensor | float = 0.0
) -> tf.Tensor:
    """Return the costs, with an unbiased gradient of the expected cost.

    The gradient of the result is `(cost - baseline) d log p + d cost`, with the log probability log
    p and the constant `cost - baseline`. R. J. Williams, "Simple Statistical Gradient-Following
    Algorithms" (REINFORCE), 1992. Second derivatives are biased, unlike second derivatives of
    `magic_box`.

    Args:
      log_probabilities: the log probabilities of the draws, [...]; for a row with several draws,
        the sum of log probabilities.
      costs: the costs of the draws, [...]; costs may depend on variables.
      baseline: a baseline that is subtracted from the costs, [...] or a number. A baseline reduces
        the variance of the gradient, which stays unbiased if the baseline does not depend on the
        draws.

    Returns:
      The costs, [...].
    """
    gain = tf.stop_gradient(costs - baseline)
    return costs + gain * (log_probabilities - tf.stop_gradient(log_probabilities))


def magic_box(log_probabilities: tf.Tensor) -> tf.Tensor:
    """Return 1, with a gradient that makes estimates of derivatives of any order unbiased.

    The result is `exp(x - stop(x))` for the log probabilities x; `stop` stops the gradient.
    Multiply a cost by the magic box of all draws on which the cost depends. To use a baseline b for
    a draw with the magic box `box`, add `(1 - box) b` to the loss; this term has the value 0, and
    changes only the gradient. J. Foerster et al., "DiCE: The Infinitely Differentiable Monte Carlo
    Estimator", 2018, arXiv:1802.05098.

    Args:
      log_probabilities: x, the log probabilities of the draws, [...]; for a row with several draws,
        the sum of log probabilities.

    Returns:
      Ones, [...].
    """
    return tf.exp(log_probabilities - tf.stop_gradient(log_probabilities))
