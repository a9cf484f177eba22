"""Divergences of predictions agree with SciPy; logits are recovered from predictions."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from mtl import heads, types

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(3)


def _draw(*shape):
    return RANDOM.normal(size=shape, scale=2.0)


def _entropy(p, q):
    return scipy.special.rel_entr(p, q)


_SIGMOID, _SOFTMAX = scipy.special.expit, scipy.special.softmax


def _of_bernoulli(z, w):
    p, q = _SIGMOID(z), _SIGMOID(w)
    return _entropy(p, q) + _entropy(1 - p, 1 - q)


def _of_poisson(z, w):
    counts = np.arange(20_000)[:, None]
    log_p, log_q = (scipy.stats.poisson(np.exp(x[:, 0])).logpmf(counts) for x in (z, w))
    return (np.exp(log_p) * (log_p - log_q)).sum(0)


ROWS = [
    (heads.Binary(name="y"), 1, lambda z, w: _of_bernoulli(z, w)[:, 0]),
    (
        heads.MultiClass(name="y", classes=4),
        4,
        lambda z, w: _entropy(_SOFTMAX(z, -1), _SOFTMAX(w, -1)).sum(-1),
    ),
    (heads.MultiLabel(name="y", classes=3), 3, lambda z, w: _of_bernoulli(z, w).mean(-1)),
    (heads.Ordinal(name="y", classes=4), 3, lambda z, w: _of_bernoulli(z, w).sum(-1)),
    (heads.Regression(name="y"), 1, lambda z, w: 0.5 * (z - w)[:, 0] ** 2),
    (heads.Regression(name="y", dimension=3), 3, lambda z, w: 0.5 * ((z - w) ** 2).mean(-1)),
    (heads.Poisson(name="y"), 1, _of_poisson),
]


@pytest.mark.parametrize("head, size, expected", ROWS, ids=lambda x: type(x).__name__)
def test_a_divergence_is_that_of_the_distributions(head, size, expected):
    logits, others = _draw(50, size), _draw(50, size)
    assert isinstance(head, types.ComparableHead)
    with tf.Graph().as_default(), tf1.Session() as session:
        given, other = tf.constant(logits), tf.constant(others)
        found, same = session.run([head.divergence(given, other), head.divergence(given, given)])
    np.testing.assert_allclose(found, expected(logits, others), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(same, np.zeros(50), atol=1e-12)
    assert found.min() >= 0


@pytest.mark.parametrize("head, size, _", ROWS, ids=lambda x: type(x).__name__)
def test_divergences_stay_finite_where_predictions_are_sure(head, size, _):
    logits = np.array([[80.0], [-80.0], [25.0]], np.float32) * np.ones([1, size], np.float32)
    if isinstance(head, heads.Poisson):
        logits = logits / 4
    with tf.Graph().as_default(), tf1.Session() as session:
        given, other = tf.constant(logits), tf.constant(logits[::-1].copy())
        divergence = head.divergence(given, other)
        values = session.run([divergence, *tf.gradients(divergence, [given, other])])
    assert all(np.isfinite(value).all() for value in values)


@pytest.mark.parametrize("head, size, _", ROWS, ids=lambda x: type(x).__name__)
def test_logits_are_recovered_from_predictions(head, size, _):
    logits = _draw(50, size).astype(np.float32)
    if isinstance(head, heads.Ordinal):
        logits = -np.sort(-logits, -1)
    with tf.Graph().as_default(), tf1.Session() as session:
        predicted = head.predictions(tf.constant(logits))
        again = head.recover_logits(predicted)
        found, distance = session.run([again, head.divergence(tf.constant(logits), again)])
    assert found.shape == logits.shape
    np.testing.assert_allclose(distance, np.zeros(50), atol=1e-5)
    if not isinstance(head, heads.MultiClass):  # Its logits have a free constant.
        np.testing.assert_allclose(found, logits, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_logits_of_a_map_are_recovered_from_its_depth(scale):
    head = heads.Depth(name="y", scale=scale)
    logits = np.random.default_rng(0).normal(size=[2, 3, 4, 1]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        again = session.run(head.recover_logits(head.predictions(tf.constant(logits))))
    np.testing.assert_allclose(again, logits, rtol=1e-5, atol=1e-6)
