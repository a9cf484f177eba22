"""ZILN: the likelihood against SciPy, the mean, and amounts far from 1."""

import numpy as np
import pytest
from scipy import special, stats

from mtl import checks, heads
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def make(**settings):
    return heads.ZeroInflatedLogNormal(name="y", **settings)


def draw(num=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.uniform(size=num) < 0.6, 0, np.exp(rng.normal(2, 1, num))).astype("f")
    return rng.normal(size=(num, 3)).astype("f"), labels


def read(logits):
    positive, mean, scale = np.float64(logits).T
    return special.expit(positive), mean, 0.01 + np.log1p(np.exp(scale))


def test_the_loss_is_the_negative_log_likelihood():
    logits, labels = draw()
    share, mean, scale = read(logits)
    density = stats.lognorm.pdf(np.where(labels > 0, labels, 1), s=scale, scale=np.exp(mean))
    likelihood = np.where(labels > 0, share * density, 1 - share)
    loss, _ = harness.loss(make(), logits, {"y": labels})
    assert loss == pytest.approx(-np.log(likelihood).mean(), rel=1e-5)


def test_the_value_is_the_mean_of_the_distribution():
    logits, _ = draw()
    share, mean, scale = read(logits)
    found = harness.predict(make(), logits)
    wanted = share * stats.lognorm.mean(s=scale, scale=np.exp(mean))
    np.testing.assert_allclose(found["value"], wanted, rtol=1e-4)
    np.testing.assert_allclose(found["positive_probability"], share, rtol=1e-5)


@pytest.mark.parametrize("logits", [[100, 0, 0], [-100, 0, 0], [0, 100, 50], [0, -100, -100]])
@pytest.mark.parametrize("label", [0.0, 1e-30, 1e30])
def test_all_is_finite_far_away(logits, label):
    given = np.array([logits], "f")
    loss, gradient = harness.loss(make(), given, {"y": np.array([label], "f")})
    assert np.isfinite(loss) and np.isfinite(gradient).all()
    assert np.isfinite(harness.predict(make(), given)["value"]).all()


def test_metrics_tell_amounts_from_nothing():
    logits, labels = draw()
    found = harness.evaluate(make(), logits, {"y": labels})
    area = sklearn_metrics.roc_auc_score(labels > 0, logits[:, 0])
    assert found["positive_auc"] == pytest.approx(area, rel=1e-6)
    assert found["positive_auc_error_bound"] == 0
    assert found["label_mean"] == pytest.approx(labels.mean(), rel=1e-5)


def test_an_untrained_head_starts_from_its_priors():
    head = make(prior=0.2, prior_value=50.0)
    found = harness.predict(head, harness.untrained(head)[None])
    assert found["positive_probability"][0] == pytest.approx(0.2, rel=1e-5)
    assert np.exp(found["log_mean"][0]) == pytest.approx(50, rel=1e-4)
    assert found["log_scale"][0] == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"prior": 1.0}, "ZeroInflatedLogNormal.prior of task 'y' must be between 0 and 1"),
        ({"prior_value": 0.0}, "ZeroInflatedLogNormal.prior_value of task 'y' must be"),
        ({"min_scale": -1.0}, "ZeroInflatedLogNormal.min_scale of task 'y' must be"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        make(**settings)
