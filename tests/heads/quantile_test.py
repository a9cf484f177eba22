"""Quantiles: the pinball loss against scikit-learn, their order, and how often they hold."""

import numpy as np
import pytest

from mtl import checks, heads
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")

LEVELS = [0.1, 0.5, 0.9]


def make(**settings):
    return heads.Quantile(
        name="y", **{"levels": LEVELS, "label_mean": 5.0, "label_stddev": 2.0, **settings}
    )


def draw(num=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num, 3)).astype("f"), rng.normal(5, 2, num).astype("f")


def test_the_loss_is_the_mean_pinball_loss_of_the_levels():
    logits, labels = draw()
    quantiles = harness.predict(make(), logits)["quantiles"]
    losses = [
        sklearn_metrics.mean_pinball_loss(labels, quantiles[:, place], alpha=level)
        for place, level in enumerate(LEVELS)
    ]
    loss, _ = harness.loss(make(), logits, {"y": labels})
    assert loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_the_gradient_of_the_loss_is_its_slope():
    logits, labels = draw(4)
    _, gradient = harness.loss(make(), logits, {"y": labels})
    for place in np.ndindex(logits.shape):
        ends = []
        for step in (-1e-2, 1e-2):
            moved = logits.copy()
            moved[place] += step
            ends.append(harness.loss(make(), moved, {"y": labels})[0])
        assert gradient[place] == pytest.approx((ends[1] - ends[0]) / 2e-2, rel=2e-2, abs=1e-4)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_quantiles_never_cross(scale):
    found = harness.predict(make(), scale * draw(200)[0])
    assert (np.diff(found["quantiles"], axis=1) >= 0).all()
    np.testing.assert_array_equal(found["value"], found["quantiles"][:, 1])


@pytest.mark.parametrize("levels", [[0.1, 0.9], [0.2, 0.45, 0.55, 0.8]])
def test_the_value_is_the_mean_of_two_quantiles_that_are_equally_near(levels):
    logits = np.random.default_rng(1).normal(size=(5, len(levels))).astype("f")
    found = harness.predict(make(levels=levels), logits)
    middle = found["quantiles"][:, len(levels) // 2 - 1 : len(levels) // 2 + 1]
    np.testing.assert_allclose(found["value"], middle.mean(1), rtol=1e-6)


def test_the_value_is_the_quantile_nearest_to_the_median():
    logits = draw()[0][:, :2]
    found = harness.predict(make(levels=[0.4, 0.9]), logits)
    np.testing.assert_array_equal(found["value"], found["quantiles"][:, 0])


def test_an_untrained_head_has_the_quantiles_of_a_gaussian():
    quantiles = harness.predict(make(), harness.untrained(make())[None])["quantiles"][0]
    np.testing.assert_allclose(quantiles, [5 - 2 * 1.28155, 5, 5 + 2 * 1.28155], rtol=1e-4)


def test_coverage_is_the_weighted_share_of_labels_at_or_below():
    logits, labels = draw(50)
    weights = np.random.default_rng(1).uniform(size=50).astype("f")
    labels[:5] = np.nan
    fields = {"y": labels, "w": weights}
    found = harness.evaluate(make(weight="w"), logits, fields)
    quantiles = harness.predict(make(), logits)["quantiles"]
    shares = [
        np.average(labels[5:] <= quantiles[5:, place], weights=weights[5:]) for place in range(3)
    ]
    for level, share in zip(LEVELS, shares, strict=True):
        assert found[f"coverage/{level}"] == pytest.approx(share, rel=1e-6)
    error = np.abs(np.array(shares) - LEVELS).mean()
    assert found["coverage_error"] == pytest.approx(error, rel=1e-5)
    assert found["mae"] == pytest.approx(
        np.average(np.abs(quantiles[5:, 1] - labels[5:]), weights=weights[5:]), rel=1e-5
    )


@pytest.mark.parametrize(
    "levels, error",
    [
        ([], "Quantile.levels of task 'y' must hold a level, got []"),
        ([0.5, 0.1], "Quantile.levels of task 'y' must be ascending, got [0.5, 0.1]"),
        ([0.5, 0.5], "must be ascending"),
        ([0.0, 0.5], "must be between 0 and 1, got 0.0"),
        ([90], "must be between 0 and 1, got 90"),
        (0.5, "must be a list of shares, got 0.5"),
    ],
)
def test_wrong_levels(levels, error):
    with pytest.raises((checks.UserError, checks.UserTypeError)) as caught:
        make(levels=levels)
    assert error in str(caught.value)
