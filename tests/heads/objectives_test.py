"""Losses against their textbook form in float64, and gradients against finite differences."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl.heads import objectives

LOGITS = np.array([-100.0, -20.0, -3.0, -0.1, 0.0, 0.1, 3.0, 20.0, 100.0])
SETTINGS = list(itertools.product([0.0, 0.1], [0.0, 0.5, 2.0]))


def evaluate(objective, logits, *args):
    """The losses and the gradient of their sum, as NumPy."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(logits, tf.float32)
        losses = objective(x, *args)
        (gradient,) = tf.gradients(losses, x)
        return session.run([losses, gradient])


def finite_differences(reference, logits, step=1e-5):
    """The gradient of sum(reference(logits)), one coordinate at a time."""
    gradient = np.zeros_like(logits)
    for index in np.ndindex(logits.shape):
        bump = np.zeros_like(logits)
        bump[index] = step
        gradient[index] = np.sum(reference(logits + bump) - reference(logits - bump)) / (2 * step)
    return gradient


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def reference_binary(logits, targets, weight, smoothing, gamma):
    own = np.where(targets == 1, log_sigmoid(logits), log_sigmoid(-logits))
    other = np.where(targets == 1, log_sigmoid(-logits), log_sigmoid(logits))
    loss = -(1 - smoothing / 2) * own - smoothing / 2 * other
    return np.where(targets == 1, weight, 1) * np.exp(gamma * other) * loss


def reference_softmax(logits, ids, weights, smoothing, gamma):
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    rows = np.arange(len(ids))
    own = log_p[rows, ids]
    others = np.where(np.eye(logits.shape[1])[ids] == 1, -np.inf, log_p)
    log_rest = np.logaddexp.reduce(others, -1)
    loss = -(1 - smoothing) * own - smoothing * log_p.mean(-1)
    return np.asarray(weights)[ids] * np.exp(gamma * log_rest) * loss


@pytest.mark.parametrize(("smoothing", "gamma"), SETTINGS)
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_binary_cross_entropy_and_its_gradient(target, smoothing, gamma):
    targets = np.full_like(LOGITS, target)
    losses, gradient = evaluate(
        objectives.binary_cross_entropy, LOGITS, targets.astype("f"), 3.0, smoothing, gamma
    )

    def reference(x):
        return reference_binary(x, targets, 3.0, smoothing, gamma)

    np.testing.assert_allclose(losses, reference(LOGITS), rtol=2e-5, atol=1e-6)
    expected = finite_differences(reference, LOGITS)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_positive_weight_of_every_class_scales_its_column():
    logits, targets = np.zeros((2, 3)), np.array([[1, 0, 1], [0, 1, 1]], "f")
    losses, _ = evaluate(objectives.binary_cross_entropy, logits, targets, [1.0, 2.0, 5.0])
    expected = np.log(2) * np.array([[1, 1, 5], [1, 2, 5]])
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize(("smoothing", "gamma"), SETTINGS)
def test_softmax_cross_entropy_and_its_gradient(smoothing, gamma):
    rng = np.random.default_rng(0)
    logits = np.concatenate([rng.normal(size=(6, 4)), 100 * np.eye(4), -100 * np.eye(4)])
    ids = np.array([0, 1, 2, 3, 0, 1, *range(4), *range(4)])
    weights = [0.5, 1.0, 2.0, 3.0]
    losses, gradient = evaluate(
        objectives.softmax_cross_entropy, logits, ids, weights, smoothing, gamma
    )

    def reference(x):
        return reference_softmax(x, ids, weights, smoothing, gamma)

    np.testing.assert_allclose(losses, reference(logits), rtol=2e-5, atol=1e-6)
    expected = finite_differences(reference, logits)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("smoothing", "gamma"), SETTINGS)
def test_two_classes_are_the_binary_case(smoothing, gamma):
    ids = (np.arange(len(LOGITS)) % 2).astype(np.int64)
    pairs = np.stack([np.zeros_like(LOGITS), LOGITS], -1)
    binary, _ = evaluate(
        objectives.binary_cross_entropy, LOGITS, ids.astype("f"), 1.0, smoothing, gamma
    )
    softmax, _ = evaluate(objectives.softmax_cross_entropy, pairs, ids, None, smoothing, gamma)
    np.testing.assert_allclose(softmax, binary, rtol=1e-4, atol=1e-6)


ERRORS = np.array([-300.0, -2.0, -1.0, -0.3, 0.2, 1.5, 300.0])
REGRESSION = {
    "squared": lambda e: e**2,
    "absolute": np.abs,
    "huber": lambda e: np.where(np.abs(e) <= 1.2, e**2 / 2, 1.2 * (np.abs(e) - 0.6)),
    "log_cosh": lambda e: np.logaddexp(e, -e) - np.log(2),
}


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_losses_and_their_gradients(name):
    settings = [1.2] if name == "huber" else []
    targets = np.full_like(ERRORS, 0.5)
    losses, gradient = evaluate(
        objectives.REGRESSION[name], ERRORS + 0.5, targets.astype("f"), *settings
    )
    np.testing.assert_allclose(losses, REGRESSION[name](ERRORS), rtol=1e-5, atol=1e-6)
    expected = finite_differences(REGRESSION[name], ERRORS)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", REGRESSION)
def test_no_error_has_neither_loss_nor_gradient(name):
    losses, gradient = evaluate(objectives.REGRESSION[name], np.ones(2), np.ones(2, "f"))
    np.testing.assert_allclose(losses, 0, atol=1e-7)
    np.testing.assert_array_equal(gradient, 0)


def test_poisson_and_its_gradient():
    log_rates, counts = np.array([-100.0, -2.0, 0.0, 1.5, 10.0]), np.array([0.0, 3, 1, 0, 20000])
    losses, gradient = evaluate(objectives.poisson_loss, log_rates, counts.astype("f"))
    expected = np.exp(log_rates) - counts * log_rates
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(gradient, np.exp(log_rates) - counts, rtol=1e-5, atol=1e-6)


def test_poisson_stays_finite_and_keeps_its_slope_at_any_rate():
    losses, gradient = evaluate(objectives.poisson_loss, np.array([31.0, 100.0]), np.zeros(2, "f"))
    np.testing.assert_allclose(losses, np.exp(30.0) * np.array([2, 71]), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.exp(30.0), rtol=1e-5)


def test_poisson_deviance():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    counts, log_rates = rng.poisson(2.0, 200).astype("f"), rng.normal(size=200)
    losses, _ = evaluate(objectives.poisson_deviance, log_rates, counts)
    expected = metrics.mean_poisson_deviance(counts, np.exp(log_rates))
    np.testing.assert_allclose(losses.mean(), expected, rtol=1e-5)


def test_weighted_mean_divides_by_the_weights_and_is_zero_without_any():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.constant([1.0, 4.0, 100.0])
        some = objectives.weighted_mean(values, tf.constant([1.0, 3.0, 0.0]))
        none = objectives.weighted_mean(values, tf.zeros(3))
        assert session.run([some, none, tf.gradients(none, values)[0][0]]) == [3.25, 0.0, 0.0]
