"""Surrogates against exact expectations: the mean over all that can be drawn, by its probability.

The probability stands outside of the gradient, as the frequency of draws does.
"""

import numpy as np
import pytest
import tensorflow as tf

from mtl.layers import score_function

tf1 = tf.compat.v1

LOGITS = np.array([0.3, -1.0, 0.8, 0.1])
COSTS = np.array([2.0, -1.0, 0.5, 3.0])


def _cost(logits):
    """Return the costs of the four outcomes, which depend on the logits too."""
    return COSTS * tf.sin(logits[0] + tf.range(4, dtype=tf.float64))


def _evaluate(build):
    with tf.Graph().as_default(), tf1.Session() as session:
        logits = tf.constant(LOGITS)
        return session.run(build(logits, tf.nn.log_softmax(logits)))


def _hessian(value, logits):
    first = tf.gradients(value, logits)[0]
    return tf.stack([tf.gradients(first[n], logits)[0] for n in range(4)])


@pytest.mark.parametrize("baseline", [0.0, 7.0])
def test_reinforce_has_the_cost_and_the_gradient_of_the_expectation(baseline):
    def build(logits, logarithms):
        shares, costs = tf.exp(logarithms), _cost(logits)
        exact = tf.reduce_sum(shares * costs)
        surrogate = score_function.reinforce(logarithms, costs, baseline)
        drawn = tf.reduce_sum(tf.stop_gradient(shares) * surrogate)
        return surrogate, costs, tf.gradients(exact, logits)[0], tf.gradients(drawn, logits)[0]

    value, costs, exact, drawn = _evaluate(build)
    np.testing.assert_array_equal(value, costs)
    np.testing.assert_allclose(drawn, exact, rtol=1e-12)
    assert np.abs(exact).max() > 0.1


@pytest.mark.medium
def test_a_baseline_takes_noise_off():
    def build(logits, logarithms):
        noise = []
        for baseline in (0.0, float(np.mean(COSTS + 10))):
            each = score_function.reinforce(logarithms, tf.constant(COSTS + 10), baseline)
            gradients = tf.stack([tf.gradients(each[n], logits)[0] for n in range(4)])
            noise.append(tf.reduce_sum(tf.exp(logarithms)[:, tf.newaxis] * gradients**2))
        return noise

    without, with_baseline = _evaluate(build)
    assert with_baseline < 0.2 * without


@pytest.mark.medium
@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_dice_has_the_first_and_second_derivatives_of_the_expectation(baseline):
    def build(logits, logarithms):
        shares, costs = tf.exp(logarithms), _cost(logits)
        exact = tf.reduce_sum(shares * costs)
        box = score_function.magic_box(logarithms)
        held = tf.stop_gradient(shares)
        drawn = tf.reduce_sum(held * (box * costs + (1 - box) * baseline))
        plain = tf.reduce_sum(held * score_function.reinforce(logarithms, costs))
        values = (box, exact, drawn)
        return values, *(_hessian(value, logits) for value in (exact, drawn, plain))

    (box, exact, drawn), of_exact, of_drawn, of_plain = _evaluate(build)
    np.testing.assert_array_equal(box, np.ones(4))
    assert drawn == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(of_drawn, of_exact, atol=1e-12)
    assert np.abs(of_plain - of_exact).max() > 0.01  # As its docstring says.


@pytest.mark.medium
def test_dice_of_two_draws_in_a_row_equals_the_expectation():
    """The second draw depends on the first one, and the cost on both."""
    costs = np.random.default_rng(1).normal(size=[4, 4])
    joint = np.random.default_rng(2).normal(size=[4, 4])

    def build(logits, logarithms):
        second = tf.nn.log_softmax(joint * logits[:, tf.newaxis])
        paths = logarithms[:, tf.newaxis] + second
        exact = tf.reduce_sum(tf.exp(paths) * costs)
        box = score_function.magic_box(paths)
        drawn = tf.reduce_sum(tf.stop_gradient(tf.exp(paths)) * box * costs)
        return _hessian(exact, logits), _hessian(drawn, logits)

    exact, drawn = _evaluate(build)
    np.testing.assert_allclose(drawn, exact, atol=1e-12)


@pytest.mark.medium
def test_descent_by_draws_finds_the_cheapest_outcome():
    with tf.Graph().as_default(), tf1.Session() as session:
        logits = tf1.get_variable("logits", initializer=LOGITS)
        rows = tf.tile(logits[tf.newaxis], [64, 1])
        step = tf1.placeholder(tf.int64, [])
        drawn = tf.random.stateless_categorical(rows, 1, tf.stack([step, 1]))[:, 0]
        logarithms = -tf.nn.sparse_softmax_cross_entropy_with_logits(drawn, rows)
        loss = score_function.reinforce(logarithms, tf.gather(COSTS, drawn), COSTS.mean())
        gradient = tf.gradients(tf.reduce_mean(loss), logits)[0]
        move = logits.assign_sub(0.3 * gradient)
        session.run(tf1.global_variables_initializer())
        for number in range(100):
            session.run(move, {step: number})
        assert session.run(tf.nn.softmax(logits))[COSTS.argmin()] > 0.9
