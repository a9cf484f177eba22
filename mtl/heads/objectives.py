"""Losses of single examples, as pure functions of logits and targets.

objectives.binary_cross_entropy(logits, targets, focal_gamma=2.0)         # [...], [...] -> [...]
objectives.softmax_cross_entropy(logits, class_ids, label_smoothing=0.1)  # [B, C], [B] -> [B]
objectives.weighted_mean(objectives.huber_loss(predictions, targets), weights)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mtl.deferred import tf

# Above this log-rate the Poisson rate grows along its tangent, to stay finite.
_MAX_LOG_RATE = 30.0
# Replaces a probability or a rate of 0, as log(0) is infinite.
LEAST = 1e-30


def weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Compute a weighted mean.

    Args:
      values: the values to average, of any shape.
      weights: numbers of at least 0, in the shape of `values`.

    Returns:
      The mean, a scalar; 0 if the weights sum to 0.
    """
    total = tf.reduce_sum(weights * values)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights))


def binary_cross_entropy(
    logits: tf.Tensor,
    targets: tf.Tensor,
    positive_weight: float | Sequence[float] = 1.0,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
) -> tf.Tensor:
    """Return `w_y (1 - p_y)^gamma CE(p, (1 - s) y + s / 2)` with p = sigmoid(logit).

    Logits, targets and losses have the same shape.

    The focal factor `(1 - p_y)^gamma` is from Lin, Goyal, Girshick, He and Dollár, "Focal Loss for
    Dense Object Detection", 2017, arXiv:1708.02002; the paper's alpha is `positive_weight` here.
    Label smoothing is from Szegedy et al., "Rethinking the Inception Architecture", 2015,
    arXiv:1512.00567. The weight `w_y` and the focal factor use the label itself, not its smoothed
    value.

    Args:
      logits: the log-odds of the label 1, floats of any shape.
      targets: 0.0 or 1.0, in the shape of `logits`.
      positive_weight: the factor of the loss of positives; a number, or a list with a number for
        each class on the last axis.
      label_smoothing: the strength s of label smoothing, in [0, 1).
      focal_gamma: the exponent gamma, at least 0; with 0, the loss is plain cross-entropy.

    Returns:
      Losses, in the same shape.
    """
    # The margin is the log-odds of the true class: cross-entropy is softplus(-margin).
    margin = (2 * targets - 1) * logits
    losses = tf.nn.softplus(-margin)
    if label_smoothing:  # (1 - s / 2) softplus(-m) + (s / 2) softplus(m).
        losses += label_smoothing / 2 * margin
    if focal_gamma:
        # 1 - p_y = e^-softplus(margin); the difference itself would round to 0 near p_y = 1.
        losses *= tf.exp(-focal_gamma * tf.nn.softplus(margin))
    if positive_weight != 1:
        losses *= 1 + (tf.constant(positive_weight, logits.dtype) - 1) * targets
    return losses


def join_log_odds(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return the log-odds that two events both happen.

    For events with the log-odds a and b, the result is `-log(e^-a + (1 + e^-a) e^-b)`, because 1 /
    odds is `(1 + e^-a) (1 + e^-b) - 1`. Unlike probabilities, log-odds do not round to 0 or 1:
    their value and gradient are finite if the sum a + b of the events' log-odds is finite.

    Args:
      first: the log-odds a of the first event.
      second: the log-odds b of the second event, given that the first event happens.

    Returns:
      The log-odds, in the shape of the arguments.
    """
    return -_log_of_sum(-first, tf.nn.softplus(-first) - second)


def branch_log_odds(chance: tf.Tensor, then: tf.Tensor, otherwise: tf.Tensor) -> tf.Tensor:
    """Return the log-odds of an event with the probability `p_c p_t + (1 - p_c) p_o`.

    As in `join_log_odds`, the code adds logarithms, because probabilities could round to 0 or 1.

    Args:
      chance: the log-odds of the condition, whose probability is p_c.
      then: the log-odds of the event if the condition holds; its probability is then p_t.
      otherwise: the log-odds of the event if the condition does not hold; its probability is then
        p_o.

    Returns:
      The log-odds, in the shape of the arguments.
    """

    def log_chance(sign: float) -> tf.Tensor:
        then_cost = tf.nn.softplus(-chance) + tf.nn.softplus(-sign * then)
        otherwise_cost = tf.nn.softplus(chance) + tf.nn.softplus(-sign * otherwise)
        return _log_of_sum(-then_cost, -otherwise_cost)

    return log_chance(1.0) - log_chance(-1.0)


def _log_of_sum(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return log(e^x + e^y) for each pair, without overflow."""
    # Add the softplus term to the greater of x and y, so that the softplus term is at most log 2.
    from_first, from_second = (
        first + tf.nn.softplus(second - first),
        second + tf.nn.softplus(first - second),
    )
    return tf.where(first > second, from_first, from_second)


def softmax_cross_entropy(
    logits: tf.Tensor,
    class_ids: tf.Tensor,
    class_weights: tf.Tensor | Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
) -> tf.Tensor:
    """Return `w_y (1 - p_y)^gamma CE(p, (1 - s) onehot(y) + s / C)` with p = softmax(logits).

    For two classes with the logits (0, x), the loss equals `binary_cross_entropy` of the logit x.

    Args:
      logits: the logits of the classes, [B, C], with C >= 2.
      class_ids: the class ids of the labels, ints [B] in [0, C).
      class_weights: the factor of the loss of each class, C numbers.
      label_smoothing: the strength s of label smoothing, in [0, 1).
      focal_gamma: the exponent gamma, at least 0; with 0, the loss is plain cross-entropy.

    Returns:
      The losses of the rows, [B].
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=class_ids, logits=logits)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform
    if focal_gamma:
        losses *= tf.exp(focal_gamma * _log_other(logits, class_ids))
    if class_weights is not None:
        losses *= tf.gather(tf.convert_to_tensor(class_weights, logits.dtype), class_ids)
    return losses


def _log_other(logits: tf.Tensor, class_ids: tf.Tensor) -> tf.Tensor:
    """Return log(1 - p_y) from the logits of other classes, as 1 - p rounds to 0 near p = 1."""
    is_target = tf.one_hot(
        class_ids, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool
    )
    other_logits = tf.where(is_target, logits.dtype.min, logits)
    return tf.reduce_logsumexp(other_logits, axis=-1) - tf.reduce_logsumexp(logits, axis=-1)


def _compute_error(predictions: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return `p - y` in the type of p, but compute it in the type of y, which may be float64."""
    return tf.cast(tf.cast(predictions, targets.dtype) - targets, predictions.dtype)


def squared_error(predictions: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Compute `(p - y)^2`.

    Args:
      predictions: p, of any shape.
      targets: the labels y, in the shape of `predictions`; their type may be float64.

    Returns:
      Losses, in the shape and type of `predictions`.
    """
    return tf.square(_compute_error(predictions, targets))


def absolute_error(predictions: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Compute `|p - y|`.

    Args:
      predictions: p, of any shape.
      targets: the labels y, in the shape of `predictions`; their type may be float64.

    Returns:
      Losses, in the shape and type of `predictions`.
    """
    return tf.abs(_compute_error(predictions, targets))


def huber_loss(predictions: tf.Tensor, targets: tf.Tensor, delta: float = 1.0) -> tf.Tensor:
    """Compute `(p - y)^2 / 2` up to an error of delta, then `delta (|p - y| - delta / 2)`.

    Args:
      predictions: p, of any shape.
      targets: the labels y, in the shape of `predictions`.
      delta: the error from which the loss is linear, above 0.

    Returns:
      Losses, in the same shape.
    """
    error = absolute_error(predictions, targets)
    inner = tf.minimum(error, delta)
    return 0.5 * inner**2 + delta * (error - inner)


def log_cosh(predictions: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Compute `log(cosh(p - y))`.

    The loss is about `e^2 / 2` for small errors e, and `|e| - log 2` for large errors.

    Args:
      predictions: p, of any shape.
      targets: the labels y, in the shape of `predictions`; their type may be float64.

    Returns:
      Losses, in the shape and type of `predictions`.
    """
    error = absolute_error(predictions, targets)
    # log((e^x + e^-x) / 2), without overflow.
    return error + tf.nn.softplus(-2.0 * error) - math.log(2)


def pinball_loss(quantiles: tf.Tensor, targets: tf.Tensor, levels: Sequence[float]) -> tf.Tensor:
    """Compute the pinball loss `mean_k max(l_k e_k, (l_k - 1) e_k)` of the errors `e_k = y - q_k`.

    Args:
      quantiles: q, the predicted quantiles, [B, Q].
      targets: y, the labels, [B].
      levels: the levels l of the Q quantiles, numbers in (0, 1).

    Returns:
      The losses of the rows, [B].
    """
    errors = -_compute_error(quantiles, targets[:, tf.newaxis])
    shares = tf.constant(list(levels), errors.dtype)
    return tf.reduce_mean(tf.maximum(shares * errors, (shares - 1) * errors), axis=-1)


REGRESSION: dict[str, Callable[..., tf.Tensor]] = {
    "squared": squared_error,
    "absolute": absolute_error,
    "huber": huber_loss,
    "log_cosh": log_cosh,
}


def poisson_rate(log_rates: tf.Tensor) -> tf.Tensor:
    """Compute exp(x); above 30, the tangent of exp at 30 replaces exp.

    The tangent of exp at 30 keeps the rate and its derivative finite even for a large log rate x.

    Args:
      log_rates: x, of any shape.

    Returns:
      Rates, in the same shape.
    """
    inner = tf.minimum(log_rates, _MAX_LOG_RATE)
    return tf.exp(inner) * (1 + tf.nn.relu(log_rates - _MAX_LOG_RATE))


def poisson_loss(log_rates: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Compute `rate - count log(rate)`, the negative log-likelihood without log(count!).

    Args:
      log_rates: the logarithms of the rates, in any shape.
      counts: the labels, in the shape of `log_rates`.

    Returns:
      Losses, in the same shape.
    """
    counts = tf.cast(counts, log_rates.dtype)
    # For a count of 0, this product is 0 even if the log rate is infinite.
    return poisson_rate(log_rates) - tf.math.multiply_no_nan(log_rates, counts)


def poisson_deviance(log_rates: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Compute the Poisson deviance, `2 (count log(count / rate) - (count - rate))`.

    Args:
      log_rates: the logarithms of the rates, in any shape.
      counts: the labels, at least 0, in the shape of `log_rates`.

    Returns:
      Deviances, in the shape and type of `log_rates`; 0 if the rate equals the count.
    """
    counts = tf.cast(counts, log_rates.dtype)
    surprise = tf.math.xlogy(counts, counts) - tf.math.multiply_no_nan(log_rates, counts)
    return 2 * (surprise - counts + poisson_rate(log_rates))


def tweedie_loss(log_rates: tf.Tensor, targets: tf.Tensor, power: float) -> tf.Tensor:
    """Compute the Tweedie loss `r^(2 - p) / (2 - p) + y r^(1 - p) / (p - 1)` for rates r.

    The loss is the negative log-likelihood without terms that depend only on y and the dispersion.

    Args:
      log_rates: the logarithms of the rates r, in any shape.
      targets: the labels y, at least 0, in the shape of `log_rates`.
      power: p, in (1, 2).

    Returns:
      Losses, in the same shape.
    """
    targets = tf.cast(targets, log_rates.dtype)
    of_rates = poisson_rate((2 - power) * log_rates) / (2 - power)
    return of_rates + targets * poisson_rate((1 - power) * log_rates) / (power - 1)


def tweedie_deviance(log_rates: tf.Tensor, targets: tf.Tensor, power: float) -> tf.Tensor:
    """Return twice the difference between `tweedie_loss` and the loss of a perfect rate.

    Args:
      log_rates: the logarithms of the rates, in any shape.
      targets: the labels, at least 0, in the shape of `log_rates`.
      power: the power of the Tweedie distribution, in (1, 2).

    Returns:
      Deviances, in the same shape.
    """
    targets = tf.cast(targets, log_rates.dtype)
    perfect = tf.pow(targets, 2 - power) / ((2 - power) * (power - 1))
    return 2 * (tweedie_loss(log_rates, targets, power) - perfect)


def categorical_divergence(logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Compute the Kullback-Leibler divergence of classes, `sum_c p_c log(p_c / q_c)`.

    Args:
      logits: the logits of the probabilities p, [B, C].
      others: the logits of the probabilities q, [B, C].

    Returns:
      The divergences of the rows, [B].
    """
    surprise = tf.nn.log_softmax(logits) - tf.nn.log_softmax(others)
    return tf.reduce_sum(tf.nn.softmax(logits) * surprise, -1)


def bernoulli_divergence(logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Compute the Kullback-Leibler divergence `p log(p / q) + (1 - p) log((1 - p) / (1 - q))`.

    Args:
      logits: the log-odds of the probabilities p, in any shape.
      others: the log-odds of the probabilities q, in the shape of `logits`.

    Returns:
      The divergences in nats, in the shape of `logits`.
    """
    of_ones = tf.nn.softplus(-others) - tf.nn.softplus(-logits)
    of_zeros = tf.nn.softplus(others) - tf.nn.softplus(logits)
    return tf.sigmoid(logits) * of_ones + tf.sigmoid(-logits) * of_zeros


def categorical_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Compute the entropy `-sum_c p_c log(p_c)` with p = softmax(logits).

    Args:
      logits: [..., C] with a static number of classes C.

    Returns:
      Entropies in nats, [...], from 0 to log(C).
    """
    # The divergence from equal shares is log(C) minus the entropy.
    return math.log(logits.shape[-1]) - categorical_divergence(logits, tf.zeros_like(logits))


def bernoulli_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Compute the entropy `-p log(p) - (1 - p) log(1 - p)` with p = sigmoid(logit).

    Args:
      logits: the log-odds of the probabilities p, in any shape.

    Returns:
      Entropies in nats, in the shape of `logits`, from 0 to log(2).
    """
    return math.log(2) - bernoulli_divergence(logits, tf.zeros_like(logits))


def gaussian_divergence(means: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Compute `(m - n)^2 / 2`, the divergence of two normal distributions of variance 1.

    Args:
      means: the means m of the first distributions, in any shape.
      others: the means n of the other distributions, in the shape of `means`.

    Returns:
      The divergences in nats, in the shape of `means`.
    """
    return 0.5 * squared_error(means, others)


def poisson_divergence(log_rates: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Compute `r log(r / s) - r + s`, the divergence of two Poisson distributions.

    Args:
      log_rates: the logarithms of the rates r, in any shape.
      others: the logarithms of the rates s, in the shape of `log_rates`.

    Returns:
      The divergences in nats, in the shape of `log_rates`.
    """
    rates, other_rates = poisson_rate(log_rates), poisson_rate(others)
    return rates * (log_rates - others) - rates + other_rates


def recover_log_odds(probabilities: tf.Tensor) -> tf.Tensor:
    """Compute `log(p / (1 - p))`, clipped because of the precision of float32.

    Args:
      probabilities: the probabilities p, in [0, 1], in any shape.

    Returns:
      Log-odds in [-16, 16], in the shape of `probabilities`.
    """
    logits = tf.math.log(tf.maximum(probabilities, LEAST)) - tf.math.log1p(
        -tf.minimum(probabilities, 1 - 1e-7)
    )
    return tf.clip_by_value(logits, -16.0, 16.0)


def mixture_loss(log_joint: tf.Tensor) -> tf.Tensor:
    """Compute the loss of a mixture, `-log sum_k exp(j_k)` with `j_k = log(pi_k p_k(x))`.

    The gradient follows the M step of EM (Dempster, Laird and Rubin, "Maximum Likelihood from
    Incomplete Data via the EM Algorithm", 1977): the gradient of `-sum_k r_k j_k` with constant
    responsibilities `r = softmax(j)`. At the current parameters, the gradient of `-sum_k r_k j_k`
    equals the gradient of the loss.

    Args:
      log_joint: the numbers j_k of the K components, [..., K].

    Returns:
      Losses in nats, [...].
    """
    likelihood = tf.reduce_logsumexp(log_joint, axis=-1)
    surrogate = tf.reduce_sum(tf.stop_gradient(tf.nn.softmax(log_joint)) * log_joint, axis=-1)
    # `surrogate` minus its constant copy is exactly 0, so the value is the likelihood, and the
    # gradient comes from `surrogate`.
    return -(tf.stop_gradient(likelihood) + (surrogate - tf.stop_gradient(surrogate)))


def gaussian_log_density(deviations: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """Return the log density of independent Gaussians.

    Args:
      deviations: distances from the mean, in units of the scales, [..., D].
      scales: standard deviations, above 0, [..., D].

    Returns:
      Log densities in nats, [...].
    """
    terms = 0.5 * deviations**2 + tf.math.log(scales) + 0.5 * math.log(2 * math.pi)
    return -tf.reduce_sum(terms, axis=-1)
