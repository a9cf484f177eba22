"""Regression and Poisson against scikit-learn."""

import numpy as np
import pytest

from mtl import checks, heads
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def expected_metrics(y, p, w):
    return {
        "rmse": np.sqrt(sklearn_metrics.mean_squared_error(y, p, sample_weight=w)),
        "mae": sklearn_metrics.mean_absolute_error(y, p, sample_weight=w),
        "r2": sklearn_metrics.r2_score(y, p, sample_weight=w),
        "label_mean": np.average(y, weights=w),
        "prediction_mean": np.average(p, weights=w),
    }


def assert_metrics(got, expected):
    assert set(got) == {*expected, "nan_predictions"}
    assert got["nan_predictions"] == 0
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_regression_metrics_are_those_of_scikit_learn(offset):
    rng = np.random.default_rng(0)
    y = (rng.normal(size=500) + offset).astype("f")
    p = (y + rng.normal(0, 0.5, 500)).astype("f")
    w = rng.random(500).astype("f")
    labels = {"price": np.where(rng.random(500) < 0.2, np.nan, y).astype("f"), "weight": w}
    got = harness.evaluate(heads.Regression(name="price", weight="weight"), p[:, None], labels)
    kept = ~np.isnan(labels["price"])
    y, p, w = (np.float64(value[kept]) for value in (y, p, w))
    expected = expected_metrics(y, p, w)
    assert_metrics(got, {**expected, "average_loss": expected["rmse"] ** 2})


def test_poisson_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.poisson(2, 500)
    logits = rng.normal(0.5, 0.5, 500).astype("f")
    w = rng.random(500).astype("f")
    head = heads.Poisson(name="visits", weight="weight")
    got = harness.evaluate(head, logits[:, None], {"visits": y, "weight": w})
    rates = np.exp(np.float64(logits))
    expected = {
        **expected_metrics(y, rates, w),
        "deviance": sklearn_metrics.mean_poisson_deviance(y, rates, sample_weight=w),
        "average_loss": np.average(rates - y * logits, weights=w),
    }
    assert_metrics(got, expected)


@pytest.mark.medium
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_perfect_predictions_explain_a_spread_of_a_millionth_of_the_mean(scale):
    y = (scale * (1e6 + np.arange(40) % 8)).astype("f")
    got = harness.evaluate(heads.Regression(name="price"), y[:, None], {"price": y})
    assert (got["r2"], got["rmse"], got["mae"]) == (1, 0, 0)
    worse = np.full((40, 1), np.mean(y, dtype=np.float64), "f")
    got = harness.evaluate(heads.Regression(name="price"), worse, {"price": y})
    expected = sklearn_metrics.r2_score(np.float64(y), np.float64(worse[:, 0]))
    assert got["r2"] == pytest.approx(expected, abs=1e-6)
    assert got["rmse"] == pytest.approx(np.std(np.float64(y)), rel=1e-3)


def test_the_deviance_of_great_counts_does_not_cancel():
    y = np.arange(10_000_000, 10_000_040)
    logits = np.log(y * 1.0001).astype("f")
    head = heads.Poisson(name="visits")
    got = harness.evaluate(head, logits[:, None], {"visits": y})
    rates = np.exp(np.float64(logits))
    expected = sklearn_metrics.mean_poisson_deviance(np.float64(y.astype("f")), rates)
    assert got["deviance"] == pytest.approx(expected, rel=1e-4)


def test_labels_that_do_not_vary_leave_r2_undefined():
    head = heads.Regression(name="price")
    got = harness.evaluate(head, np.ones((30, 1), "f"), {"price": np.full(30, 0.1, "f")})
    assert np.isnan(got["r2"])
    assert got["rmse"] == pytest.approx(0.9)


def test_numbers_of_a_vector_are_missing_on_their_own():
    head = heads.Regression(name="point", dimension=2)
    label = np.array([[1.0, np.nan], [3.0, 5.0]], "f")
    loss, gradient = harness.loss(head, np.zeros((2, 2)), {"point": label})
    assert loss == pytest.approx((1 + 9 + 25) / 3)
    np.testing.assert_allclose(gradient, np.array([[-2, 0], [-6, -10]]) / 3, rtol=1e-6)


def test_huber_follows_its_delta():
    labels = {"price": np.array([1.0, 10.0], "f")}
    head = heads.Regression(name="price", loss_type="huber", huber_delta=2.0)
    loss, _ = harness.loss(head, np.zeros((2, 1)), labels)
    assert loss == pytest.approx((0.5 + 2 * 9) / 2)


def test_whole_numbers_are_labels_too():
    loss, _ = harness.loss(
        heads.Regression(name="age"), np.zeros((2, 1)), {"age": np.array([3, -1])}
    )
    assert loss == 5


def test_untrained_heads_predict_the_prior():
    assert harness.untrained(heads.Regression(name="price", prior=20.0)) == pytest.approx(20)
    logits = harness.untrained(heads.Poisson(name="visits", prior=3.5))
    assert harness.predict(heads.Poisson(name="visits"), [logits])["value"] == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"loss_type": "hubber"}, r"must be one of squared, .*Did you mean 'huber'\?"),
        ({"huber_delta": 0}, r"Regression.huber_delta of task 'y' must be above 0, got 0"),
        ({"dimension": 0}, r"dimension of task 'y' must be at least 1, got 0"),
        ({"dimension": 1.5}, r"dimension of task 'y' must be a whole number, got 1.5"),
        ({"prior": "mean"}, r"prior of task 'y' must be a number, got 'mean'"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        heads.Regression(name="y", **settings)


def test_wrong_prior_of_counts():
    with pytest.raises(checks.UserError, match="Poisson.prior of task 'y' must be above 0"):
        heads.Poisson(name="y", prior=0)


@pytest.mark.parametrize("loss_type", ["squared", "absolute", "huber", "log_cosh"])
def test_the_error_of_a_large_integer_is_exact(loss_type):
    """A float32 cannot hold 2^24 + 1: the error would be 0, or one too large."""
    labels = np.array([2**24 + 1, 2**24 + 3, -(2**63), 2**30 + 33], np.int64)
    logits = np.array([2**24, 2**24 + 4, 5, 2**30], "f")
    head = heads.Regression(name="price", loss_type=loss_type)
    errors = np.array([-1.0, 1.0, -33.0])
    expected = {
        "squared": errors**2,
        "absolute": np.abs(errors),
        "huber": np.array([0.5, 0.5, 32.5]),
        "log_cosh": np.logaddexp(errors, -errors) - np.log(2),
    }[loss_type]
    loss, gradient = harness.loss(head, logits[:, None], {"price": labels})
    assert loss == pytest.approx(expected.mean(), rel=1e-6)
    assert np.sign(gradient[:, 0]).tolist() == [-1, 1, 0, -1]
    got = harness.evaluate(head, logits[:, None], {"price": labels})
    assert got["mae"] == pytest.approx(35 / 3, rel=1e-6)
    assert got["rmse"] == pytest.approx(np.sqrt(1091 / 3), rel=1e-6)


def test_counts_above_what_float32_holds():
    head, count = heads.Poisson(name="visits"), 2**25 + 3
    logits = np.array([[np.log(count)]], "f")
    loss, gradient = harness.loss(head, logits, {"visits": np.array([count])})
    rate = np.exp(np.float64(logits[0, 0]))
    assert loss == pytest.approx(rate - count * np.float64(logits[0, 0]), rel=1e-6)
    assert gradient[0, 0] == pytest.approx(rate - count, abs=16)


@pytest.mark.parametrize("power", [1.1, 1.5, 1.9])
def test_tweedie_deviance_is_that_of_scikit_learn(power):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 1)).astype("f")
    labels = np.where(rng.uniform(size=40) < 0.5, 0, rng.gamma(2, 3, 40)).astype("f")
    head = heads.Tweedie(name="y", power=power)
    found = harness.evaluate(head, logits, {"y": labels})
    means = np.exp(np.float64(logits[:, 0]))
    wanted = sklearn_metrics.mean_tweedie_deviance(labels, means, power=power)
    assert found["deviance"] == pytest.approx(wanted, rel=1e-5)
    # The loss differs from half the deviance by terms of the labels alone.
    other = rng.normal(size=(40, 1)).astype("f")
    losses = [harness.loss(head, given, {"y": labels})[0] for given in (logits, other)]
    deviances = [
        sklearn_metrics.mean_tweedie_deviance(labels, np.exp(np.float64(x[:, 0])), power=power)
        for x in (logits, other)
    ]
    assert losses[0] - losses[1] == pytest.approx((deviances[0] - deviances[1]) / 2, rel=1e-4)


@pytest.mark.parametrize("logit", [-100.0, 100.0])
@pytest.mark.parametrize("label", [0.0, 1.0, 1e6])
def test_tweedie_is_finite_far_away(logit, label):
    head = heads.Tweedie(name="y")
    loss, gradient = harness.loss(head, [[logit]], {"y": np.array([label], "f")})
    assert np.isfinite(loss) and np.isfinite(gradient).all()


def test_the_power_of_tweedie_lies_between_its_ends():
    with pytest.raises(checks.UserError, match="power of task 'y' must be between 1 and 2, got 2"):
        heads.Tweedie(name="y", power=2)


@pytest.mark.medium
@pytest.mark.parametrize("loss_type", ["squared", "huber"])
def test_a_unit_is_the_one_in_which_a_number_is_learnt(loss_type):
    rng = np.random.default_rng(0)
    y = rng.normal(300, 50, 200).astype("f")
    logits = (y / 50 + rng.normal(0, 0.5, 200)).astype("f")[:, None]
    scaled = heads.Regression(name="price", loss_type=loss_type, unit=50.0, huber_delta=50.0)
    got = harness.evaluate(scaled, logits, {"price": y})
    plain = heads.Regression(name="price", loss_type=loss_type)
    expected = harness.evaluate(plain, logits, {"price": y / 50})
    assert got["average_loss"] == pytest.approx(expected["average_loss"], rel=1e-4)
    assert got["r2"] == pytest.approx(expected["r2"], rel=1e-4)
    for metric in ("rmse", "mae", "label_mean", "prediction_mean"):
        assert got[metric] == pytest.approx(50 * expected[metric], rel=1e-4)


@pytest.mark.parametrize("negatives", ["unwatched", "all"])
def test_watch_time_is_a_weighted_logistic_regression(negatives):
    rng = np.random.default_rng(0)
    times = np.where(rng.random(200) < 0.5, 0, rng.gamma(2, 3, 200)).astype("f")
    logits = rng.normal(size=200).astype("f")
    head = heads.WeightedLogistic(name="secs", negatives=negatives)
    got = harness.evaluate(head, logits[:, None], {"secs": times})
    z, t = np.float64(logits), np.float64(times)
    counts = t == 0 if negatives == "unwatched" else np.ones_like(t)
    losses = t * np.log1p(np.exp(-z)) + counts * np.log1p(np.exp(z))
    assert got["average_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    predicted = harness.predict(head, logits[:, None])["value"]
    np.testing.assert_allclose(np.ravel(predicted), np.exp(z), rtol=1e-5)
