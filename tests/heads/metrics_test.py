"""Totals over batches and replicas against NumPy: sums, moments, calibration, the first k."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.heads import metrics

tf1 = tf.compat.v1


def test_values_that_would_be_repeated_for_each_weight_are_refused():
    rows = tf.ones([3])
    for values, weights in ((rows, rows), (tf.ones([3, 2]), rows[:, tf.newaxis]), (rows, rows[0])):
        metrics.sum_weighted(values, weights)
    for values, weights in ((rows[:, tf.newaxis], rows), (rows, tf.ones([2, 3]))):
        with pytest.raises(checks.UserError, match="the values of a metric must have a shape to"):
            metrics.sum_weighted(values, weights)


def test_calibration_error():
    rng = np.random.default_rng(0)
    p = rng.random(500).astype("f")
    y = (rng.random(500) < p**2).astype("f")
    w = rng.random(500).astype("f")
    bins = np.minimum((p * 15).astype(int), 14)
    expected = sum(abs(np.sum((w * (p - y))[bins == b])) for b in range(15)) / np.sum(w)
    with tf.Graph().as_default(), tf1.Session() as session:
        error = metrics.calibration_error(
            metrics.calibration_sums(p, y, w), tf.constant(np.sum(w), tf.float64)
        )
        assert session.run(error) == pytest.approx(expected, rel=1e-5)


def test_ratio_and_mean_of_what_is_undefined():
    with tf.Graph().as_default(), tf1.Session() as session:
        ratios = metrics.ratio(tf.constant([1.0, 0.0, 3.0]), tf.constant([2.0, 0.0, 1.0]))
        mean = metrics.mean_defined(ratios)
        nothing = metrics.mean_defined(tf.constant([float("nan")]))
        ratios, mean, nothing = session.run([ratios, mean, nothing])
    np.testing.assert_array_equal(ratios, [0.5, np.nan, 3.0])
    assert mean == 1.75
    assert np.isnan(nothing)


def test_stream_adds_up_batches_and_does_not_lose_small_ones():
    with tf.Graph().as_default(), tf1.Session() as session:
        batch = tf1.placeholder(tf.float32, [])
        stream = metrics.stream_sums(
            {"sum": batch}, lambda sums: {"sum_less_1e8": sums["sum"] - 1e8}
        )
        value, update = stream["sum_less_1e8"]
        session.run(tf1.local_variables_initializer())
        for number in (1e8, 1, 1, 1):  # In float32, 1e8 + 1 == 1e8.
            session.run(update, {batch: number})
        assert session.run(value) == 3


@pytest.mark.medium
def test_stream_sums_over_replicas():
    with tf.Graph().as_default(), tf1.Session() as session:
        strategy = tf.distribute.MirroredStrategy(
            ["/cpu:0"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            stream = strategy.extended.call_for_each_replica(
                lambda: metrics.stream_sums({"n": tf.constant(2.0)}, lambda sums: {"n": sums["n"]})
            )
        value, update = stream["n"]
        session.run(tf1.local_variables_initializer())
        session.run(strategy.group(update))
        assert session.run(strategy.experimental_local_results(value)[0]) == 2


def moments(batches):
    """Mean and variance of [(values, weights)], streamed."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x, w = tf1.placeholder(tf.float64, [None]), tf1.placeholder(tf.float32, [None])
        stream = metrics.stream_sums(
            {"x": metrics.Moments(x, w), "w": metrics.sum_weighted(tf.ones_like(w), w)},
            lambda sums: {"mean": sums["x"].mean, "var": sums["x"].squares / sums["w"]},
        )
        session.run(tf1.local_variables_initializer())
        for values, weights in batches:
            session.run(stream["var"][1], {x: values, w: weights})
        return session.run([stream["mean"][0], stream["var"][0]])


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
def test_moments_are_those_of_numpy_however_far_from_zero(offset):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=300) + offset, rng.random(300).astype("f")
    w[::7] = 0
    batches = [(x[:0], w[:0]), (x[:1], w[:1]), (x[1:250], w[1:250]), (x[250:], 0 * w[250:])]
    mean, variance = moments(batches)
    kept, weights = x[:250], np.float64(w[:250])
    assert mean == pytest.approx(np.average(kept, weights=weights), rel=1e-6)
    expected = np.average((kept - np.average(kept, weights=weights)) ** 2, weights=weights)
    assert variance == pytest.approx(expected, rel=1e-4 if offset < -1e9 else 1e-6)


def test_equal_values_do_not_vary_and_nothing_has_no_mean():
    mean, variance = moments([(np.full(7, 0.1), np.full(7, 0.3, "f"))] * 3)
    assert mean == pytest.approx(0.1)
    assert variance == 0
    assert np.isnan(moments([(np.zeros(2), np.zeros(2, "f"))])[0])


def test_the_first_k_take_in_ties_by_their_chance():
    logits = np.random.default_rng(0).integers(0, 3, (40, 4)).astype("f")
    logits[0], logits[1] = 0, [np.inf, np.inf, -np.inf, 0]
    targets = np.arange(40) % 4
    orders = list(itertools.permutations(range(4)))
    for k in (1, 2, 3):
        hits = np.zeros(40)
        for order in orders:  # The first class in `order` wins a tie.
            ranked = [sorted(order, key=lambda c: -row[c])[:k] for row in logits]  # noqa: B023
            hits += [target in first for target, first in zip(targets, ranked, strict=True)]
        with tf.Graph().as_default(), tf1.Session() as session:
            found = session.run(metrics.in_top(tf.constant(logits), tf.constant(targets), k))
        np.testing.assert_allclose(found, hits / len(orders), rtol=1e-6)
        assert found[0] == pytest.approx(k / 4)
