"""Mixture density: loss, gradient, quantiles and samples against SciPy."""

import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from mtl import checks, heads
from mtl.heads import objectives
from mtl.step import draws
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")
tf1 = tf.compat.v1


def make(**settings):
    given = {"num_components": 3, "label_mean": 5.0, "label_stddev": 2.0, **settings}
    return heads.MixtureDensity(name="y", **given)


def components(head, logits):
    """Weights, means and scales of [B, 3 K] logits, by the formula of the class, [B, K] each."""
    weights, means, scales = np.split(np.float64(logits), 3, axis=1)
    unit = head.label_stddev
    return (
        special.softmax(weights, axis=1),
        head.label_mean + unit * means,
        unit * (head.min_scale + np.log1p(np.exp(scales))),
    )


def random_logits(num=6, k=3, seed=0):
    return np.random.default_rng(seed).normal(size=(num, 3 * k)).astype("f")


def test_the_loss_is_minus_the_log_density_in_the_unit_of_the_label():
    head, logits = make(), random_logits()
    labels = np.array([5.0, 4.0, 8.5, -3.0, 5.5, 0.0], "f")
    weights, means, scales = components(head, logits)
    density = np.sum(weights * stats.norm.pdf(labels[:, None], means, scales), axis=1)
    loss, _ = harness.loss(head, logits, {"y": labels})
    assert loss == pytest.approx(-np.log(density).mean(), rel=1e-5)


def gradients(function, values):
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(values, tf.float64)
        loss = function(x)
        return session.run([loss, tf.gradients(loss, x)[0]])


def test_the_stopped_gradient_is_that_of_the_likelihood():
    joint = np.random.default_rng(0).normal(0, 20, [50, 4])
    stopped = gradients(objectives.mixture_loss, joint)
    plain = gradients(lambda x: -tf.reduce_logsumexp(x, axis=-1), joint)
    np.testing.assert_array_equal(stopped[0], plain[0])
    np.testing.assert_allclose(stopped[1], plain[1], rtol=1e-6, atol=1e-12)


def test_the_gradient_of_the_loss_is_its_slope():
    head, logits = make(), random_logits()
    labels = np.array([5.0, 4.0, 8.5, -3.0, 5.5, 0.0])

    def total(x):
        return tf.reduce_sum(head.losses(x, tf.constant(labels)))

    _, gradient = gradients(total, logits)
    # One run for all: the losses of rows do not depend on each other.
    step = 1e-6 * np.eye(9)[:, np.newaxis]
    moved = np.concatenate([logits + step, logits - step]).reshape(-1, 9)
    with tf.Graph().as_default(), tf1.Session() as session:
        losses = head.losses(tf.constant(moved), tf.constant(np.tile(labels, 18)))
        above, below = session.run(losses).reshape(2, 9, 6)
    np.testing.assert_allclose(gradient, ((above - below) / 2e-6).T, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("distance", [1e4, -1e4])
def test_loss_and_gradient_are_finite_far_away(distance):
    head = make()
    loss, gradient = harness.loss(head, random_logits(1), {"y": np.array([distance * 2.0], "f")})
    assert np.isfinite(loss)
    assert loss > 1e6
    assert np.all(np.isfinite(gradient))


def test_a_distant_unit_of_the_label_costs_no_digits():
    """Seconds since 1970: float32 holds every 128th of them."""
    head = make(label_mean=1.7e9, label_stddev=10.0)
    logits, near = random_logits(3), np.array([-4, 0, 7])
    found, _ = harness.loss(head, logits, {"y": 1_700_000_000 + near})
    expected, _ = harness.loss(
        make(label_mean=0.0, label_stddev=10.0), logits, {"y": near.astype("f")}
    )
    assert found == pytest.approx(expected, rel=1e-6)


def test_predictions_are_in_the_unit_of_the_label():
    head, logits = make(quantiles=[0.01, 0.5, 0.9]), random_logits()
    found = harness.predict(head, logits)
    weights, means, scales = components(head, logits)
    np.testing.assert_allclose(found["weights"], weights, rtol=1e-5)
    np.testing.assert_allclose(found["means"], means, rtol=1e-5)
    np.testing.assert_allclose(found["scales"], scales, rtol=1e-5)
    np.testing.assert_allclose(found["value"], np.sum(weights * means, axis=1), rtol=1e-5)
    below = [
        np.sum(weights * stats.norm.cdf(numbers[:, None], means, scales), axis=1)
        for numbers in found["quantiles"].T
    ]
    np.testing.assert_allclose(np.stack(below, 1), np.tile([[0.01, 0.5, 0.9]], [6, 1]), atol=1e-5)


def test_samples_have_the_density_of_their_row():
    head = make(num_samples=4000)
    with tf.Graph().as_default(), tf1.Session() as session:
        with draws.know_rows({"x": tf.constant([1.0, 2.0, 3.0])}):
            logits = head.logits(tf.random.stateless_normal([3, 5], [0, 1], stddev=2.0))
        predictions = head.predictions(logits)
        session.run(tf1.global_variables_initializer())
        found = session.run({"logits": logits, **predictions})
    assert found["samples"].shape == (3, 4000)
    for row in range(3):
        weights, means, scales = (
            found[name][row].astype(np.float64) for name in ("weights", "means", "scales")
        )

        def share(y, weights=weights, means=means, scales=scales):
            return np.sum(weights * stats.norm.cdf(y[:, None], means, scales), axis=1)

        assert stats.kstest(found["samples"][row], share).pvalue > 1e-3
    assert abs(np.corrcoef(found["samples"][:2])[0, 1]) < 0.06


@pytest.mark.medium
def test_the_floor_holds_over_20_seeds_of_equal_labels():
    """Without it the likelihood has no bound: all labels of a group are the same number."""
    head = make(num_components=4, label_mean=0.0, label_stddev=1.0, min_scale=0.02)
    labels = np.repeat([-1.0, 0.0, 2.0], 8).astype("f")
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tower = tf.constant(np.repeat(np.eye(3), 8, axis=0), tf.float32)
        logits = head.logits(tower)
        loss = head.loss(logits, {"y": tf.constant(labels)})
        step = tf1.train.AdamOptimizer(0.1).minimize(loss)
        scales = head.predictions(logits)["scales"]
        best = np.log(0.02 * np.sqrt(2 * np.pi))
        for _ in range(20):
            session.run(tf1.global_variables_initializer())
            for _ in range(150):
                session.run(step)
            ended, least = session.run([loss, tf.reduce_min(scales)])
            assert best - 1e-4 < ended < best + 1.5
            assert least >= 0.02


def test_metrics_are_those_of_the_mean():
    head, rng = make(), np.random.default_rng(0)
    logits, labels = random_logits(200), rng.normal(5, 2, 200).astype("f")
    got = harness.evaluate(head, logits, {"y": labels})
    value = harness.predict(head, logits)["value"]
    assert got["rmse"] == pytest.approx(
        np.sqrt(sklearn_metrics.mean_squared_error(labels, value)), rel=1e-4
    )
    assert got["r2"] == pytest.approx(sklearn_metrics.r2_score(labels, value), rel=1e-4)
    loss, _ = harness.loss(head, logits, {"y": labels})
    assert got["average_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "moments"),
    [
        (np.array([1.0, np.nan, 5.0, 3.0], "f"), (3.0, np.std([1, 3, 5]))),
        (np.array([7, -(2**63), 5]), (6.0, 1.0)),
        (np.array([7, -1, 7, -1]), (3.0, 4.0)),
    ],
)
def test_moments_are_learned_of_the_labels_that_are_there(labels, moments):
    head = heads.MixtureDensity(name="y", label="field")
    ((name, accumulator),) = head.accumulators().items()
    accumulator.update({"field": tf.constant(labels)})
    entry = accumulator.save("", name)
    statistics = types.SimpleNamespace(for_column={name: entry}.__getitem__)
    fitted = head.fitted(statistics)
    assert (fitted.label_mean, fitted.label_stddev) == pytest.approx(moments)
    assert make().accumulators() == {}
    assert make().fitted(statistics) == make()


def test_an_untrained_head_spreads_over_the_label():
    head = make(num_components=4)
    logits = harness.untrained(head)
    found = harness.predict(head, logits[None])
    assert found["value"][0] == pytest.approx(5.0)
    expected = 5 + 2 * stats.norm.ppf([1 / 8, 3 / 8, 5 / 8, 7 / 8])
    np.testing.assert_allclose(found["means"][0], expected, rtol=1e-4)
    np.testing.assert_allclose(found["scales"][0], 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"num_components": 0}, r"num_components of task 'y' must be at least 1, got 0"),
        ({"min_scale": 0}, r"min_scale of task 'y' must be between 0 and 1, got 0"),
        ({"quantiles": 0.5}, r"quantiles of task 'y' must be a list of shares, got 0.5"),
        ({"quantiles": [0.0001]}, r"quantiles of task 'y' must be in \[0.001, 0.999\], got"),
        ({"num_samples": -1}, r"num_samples of task 'y' must be at least 0, got -1"),
        ({"label_stddev": 0}, r"label_stddev of task 'y' must be above 0, got 0"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        make(**settings)
