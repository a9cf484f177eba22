"""Ordinal: its likelihood in NumPy, its thresholds and its metrics."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import heads
from tests.heads import harness

tf1 = tf.compat.v1


def test_loss_is_the_sum_over_thresholds():
    logits = np.array([[2.0, 0.5, -1.0], [1.0, 0.0, -3.0], [0.0, 0.0, 0.0]])
    y = np.array([3, 0, -1])
    above = y[:2, None] > np.arange(3)
    expected = np.logaddexp(0, np.where(above, -logits[:2], logits[:2])).sum(-1).mean()
    loss, _ = harness.loss(heads.Ordinal(name="stars", classes=4), logits, {"stars": y})
    assert loss == pytest.approx(expected, rel=1e-6)


def test_an_untrained_head_predicts_the_prior():
    head = heads.Ordinal(name="stars", classes=["bad", "fair", "good"], prior=[0.2, 0.7, 0.1])
    got = harness.predict(head, [harness.untrained(head)])
    np.testing.assert_allclose(got["probabilities"], [[0.2, 0.7, 0.1]], rtol=1e-5)
    assert got["class"].tolist() == ["fair"]
    assert got["value"][0] == pytest.approx(0.9)
    even = heads.Ordinal(name="stars", classes=5)
    got = harness.predict(even, [harness.untrained(even)])
    np.testing.assert_allclose(got["probabilities"], [[0.2] * 5], rtol=1e-5)


@pytest.mark.parametrize("prior", [[1e20, 1, 1], [1, 1e-20, 1], [1, 1, 1e20]])
def test_a_tiny_share_has_a_threshold(prior):
    head = heads.Ordinal(name="stars", classes=3, prior=prior)
    got = harness.predict(head, [harness.untrained(head)])
    expected = np.array([prior]) / sum(prior)
    np.testing.assert_allclose(got["probabilities"], expected, rtol=1e-4)


def test_metrics_count_how_far_off_it_is():
    logits = np.array([[3, 2, 1], [3, -1, -2], [-1, -2, -3], [-1, -2, -3]], "f")  # 3, 1, 0, 0
    labels = {"stars": np.array([3, 3, 0, -1])}
    got = harness.evaluate(heads.Ordinal(name="stars", classes=4), logits, labels, num_batches=2)
    assert got["accuracy"] == pytest.approx(2 / 3)
    assert got["accuracy_baseline"] == pytest.approx(2 / 3)
    assert got["mae"] == pytest.approx(2 / 3)
    assert got["rmse"] == pytest.approx(np.sqrt(4 / 3))


def test_training_recovers_ordered_thresholds():
    rng = np.random.default_rng(0)
    score = rng.normal(size=4000)
    noise = np.log(1 / rng.random(4000) - 1)
    y = np.searchsorted([-2.0, 0.5, 1.0], 1.5 * score + noise)
    head = heads.Ordinal(name="stars", classes=4)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        logits = head.logits(tf.constant(score[:, None], tf.float32))
        loss = head.loss(logits, {"stars": tf.constant(y)})
        train = tf1.train.AdamOptimizer(0.1).minimize(loss)
        session.run(tf1.global_variables_initializer())
        for _ in range(150):
            session.run(train)
        kernel, raw = session.run(tf1.trainable_variables())
    thresholds = np.cumsum([raw[0], *np.logaddexp(0, raw[1:])])
    np.testing.assert_allclose(kernel[0, 0], 1.5, atol=0.15)
    np.testing.assert_allclose(thresholds, [-2.0, 0.5, 1.0], atol=0.15)


# From where all fits into float32 to both of its ends; close thresholds, equal ones, one alone.
LOGITS = np.array([[s, s - 0.001, s - 7] for s in (-80, -30, -17, -3, 0, 3.5, 8, 17, 40, 90)])


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_probabilities_are_precise_however_small(kept):
    logits = np.float32(LOGITS[:, :kept])
    ends = np.full([len(logits), 1], np.inf)
    edges = np.concatenate([ends, logits.astype(np.float64), -ends], 1)
    upper, lower = edges[:, :-1], edges[:, 1:]
    # In logarithms: log sigmoid(a) + log sigmoid(-b) + log(1 - exp(b - a)).
    gaps = np.where(np.isfinite(upper - lower), upper - lower, np.inf)
    expected = np.exp(-np.logaddexp(0, -upper) - np.logaddexp(0, lower) + np.log(-np.expm1(-gaps)))
    head = heads.Ordinal(name="stars", classes=kept + 1)
    got = harness.predict(head, logits)["probabilities"]
    least = np.finfo(np.float32).tiny
    assert (expected[:, 0] < 6e-8).any() and (expected[:, -1] < 6e-8).any()
    there = expected > 10 * least
    np.testing.assert_allclose(got[there], expected[there], rtol=1e-5)
    assert (got[~there] <= 20 * least).all()
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(-1, None)], ids=str)
def test_loss_is_precise_at_both_ends(rows):
    logits = np.float32(LOGITS[rows])
    for label in range(4):
        margin = np.where(label > np.arange(3), logits, -logits).astype(np.float64)
        expected = np.logaddexp(0, -margin).sum(-1).mean()
        labels = {"stars": np.full(len(logits), label)}
        loss, _ = harness.loss(heads.Ordinal(name="stars", classes=4), logits, labels)
        np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=3e-38)


def test_equal_infinite_and_missing_logits():
    inf, nan = np.inf, np.nan
    logits = [[0, 0, 0], [inf, inf, inf], [-inf, -inf, -inf], [inf, 0, -inf], [nan, nan, nan]]
    head = heads.Ordinal(name="stars", classes=4)
    got = harness.predict(head, np.float32(logits))["probabilities"]
    expected = [[0.5, 0, 0, 0.5], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0.5, 0.5, 0], [nan] * 4]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
