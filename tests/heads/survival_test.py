"""Survival: likelihood, mean time and concordance by loops over rows; censored rows; records."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from mtl import checks, heads
from tests.heads import harness

ENDS = [1.0, 2.5, 10.0]


def make(**settings):
    given = {"event": "seen", "boundaries": ENDS, **settings}
    return heads.Survival(name="y", **given)


def draw(num=50, seed=0):
    rng = np.random.default_rng(seed)
    times = rng.choice([0.0, 0.5, 1.0, 2.0, 2.5, 7.0, 10.0, 40.0], num).astype("f")
    labels = {"y": times, "seen": rng.integers(0, 2, num)}
    return rng.normal(size=(num, 3)).astype("f"), labels


def find_log_likelihood(logits, time, seen):
    hazards, total, before = special.expit(np.float64(logits)), 0.0, 0.0
    for hazard, end in zip(hazards, ENDS, strict=True):
        if seen and before < time <= end or (seen and time == 0 and before == 0):
            return total + np.log(hazard)
        if end <= time:
            total += np.log1p(-hazard)
        before = end
    return total


def test_the_loss_is_the_negative_log_likelihood_of_events_and_censored_rows():
    logits, labels = draw()
    wanted = [
        find_log_likelihood(*row) for row in zip(logits, labels["y"], labels["seen"], strict=True)
    ]
    loss, _ = harness.loss(make(), logits, labels)
    assert loss == pytest.approx(-np.mean(wanted), rel=1e-5)


def test_a_row_censored_before_the_first_boundary_says_nothing():
    labels = {"y": np.array([0.5], "f"), "seen": np.array([0])}
    loss, gradient = harness.loss(make(), [[1.0, 2.0, 3.0]], labels)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("logit", [-100.0, 100.0])
@pytest.mark.parametrize("time, seen", [(0.5, 1), (40.0, 1), (7.0, 0)])
def test_all_is_finite_far_away(logit, time, seen):
    labels = {"y": np.array([time], "f"), "seen": np.array([seen])}
    loss, gradient = harness.loss(make(), [[logit] * 3], labels)
    assert np.isfinite(loss) and np.isfinite(gradient).all()


def test_survival_and_the_mean_time_without_an_event():
    logits, _ = draw(5)
    found = harness.predict(make(), logits)
    survival = np.cumprod(1 - special.expit(np.float64(logits)), axis=1)
    np.testing.assert_allclose(found["survival"], survival, rtol=1e-5)
    for own, value in zip(survival, found["value"], strict=True):
        area = sum(
            (a + b) / 2 * w
            for a, b, w in zip([1, *own[:-1]], own, np.diff([0, *ENDS]), strict=True)
        )
        assert value == pytest.approx(area, rel=1e-5)


def find_interval(time, seen):
    """Return the interval of a row's time as the class counts it, and True if an event ends it."""
    if seen and time <= ENDS[-1]:
        return np.searchsorted(ENDS, time, side="left"), True
    return np.searchsorted(ENDS, time, side="right"), False


def test_concordance_is_the_share_of_pairs_in_order():
    logits, labels = draw(60)
    logits[10:14] = logits[9]  # Ties.
    labels["y"][3], labels["seen"] = np.nan, labels["seen"].astype("f")
    labels["seen"][5] = np.nan
    weights = np.random.default_rng(2).uniform(size=60).astype("f")
    found = harness.evaluate(make(weight="w"), logits, {**labels, "w": weights})
    value = harness.predict(make(), logits)["value"]
    rows = [row for row in range(60) if row not in (3, 5)]
    where = {row: find_interval(labels["y"][row], labels["seen"][row]) for row in rows}
    pairs = ordered = 0.0
    for one in rows:
        for other in rows:
            if where[one][1] and where[one][0] < where[other][0]:
                weight = float(weights[one]) * float(weights[other])
                pairs += weight
                ordered += weight * (
                    0.5 * (value[one] == value[other]) + (value[one] < value[other])
                )
    assert found["concordance"] == pytest.approx(ordered / pairs, rel=1e-6)
    assert found["concordance_error_bound"] == 0
    share = np.average([where[row][1] for row in rows], weights=weights[rows])
    assert found["event_share"] == pytest.approx(share, rel=1e-6)


def test_a_wrong_event_is_named():
    labels = {"y": np.array([2.0], "f"), "seen": np.array([2])}
    message = "head 'y': label 'seen' must be 0 or 1, got 2"
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        harness.loss(make(), [[0.0] * 3], labels)
    assert harness.label_error(caught.value) == message
    assert make().check({"y": 2.0, "seen": 2}) == message
    assert make().check({"y": 2.0, "seen": -1}) is None


@pytest.mark.parametrize("ignored", [{"y": np.nan}, {"w": 0.0}, {"open": 0}])
def test_an_event_of_a_row_that_does_not_count_may_be_anything(ignored):
    """Otherwise the row would be named as the cause of another row's error."""
    head = make(weight="w", within="open")
    record = {"y": 2.0, "w": 1.0, "open": 1, "seen": 2} | ignored
    assert head.check(record) is None
    labels = {
        name: np.array([value], np.int64 if isinstance(value, int) else np.float32)
        for name, value in record.items()
    }
    assert harness.loss(head, [[0.0] * 3], labels)[0] == 0


@pytest.mark.parametrize(
    "boundaries, error",
    [
        ([], "Survival.boundaries of task 'y' must hold a time, got []"),
        ([3, 2], "Survival.boundaries of task 'y' must be ascending and above 0, got [3, 2]"),
        ([0, 2], "must be ascending and above 0, got [0, 2]"),
        (["a"], "must be a number, got 'a'"),
    ],
)
def test_wrong_boundaries(boundaries, error):
    with pytest.raises((checks.UserError, checks.UserTypeError)) as caught:
        make(boundaries=boundaries)
    assert error in str(caught.value)


@pytest.mark.parametrize("end", [0.3, 0.7])
def test_a_boundary_is_the_number_that_the_label_holds(end):
    """0.3 of 32 bits lies above that of 64, and 0.7 below it."""
    head = make(boundaries=[end, 2 * end])
    time = np.array([end], "f")
    seen, _ = harness.loss(head, [[1.0, 2.0]], {"y": time, "seen": np.array([1])})
    assert seen == pytest.approx(np.logaddexp(0, -1.0), rel=1e-6)
    lasting, _ = harness.loss(head, [[1.0, 2.0]], {"y": time, "seen": np.array([0])})
    assert lasting == pytest.approx(np.logaddexp(0, 1.0), rel=1e-6)


def test_an_event_outside_of_the_space_is_a_mistake():
    head = make(within="open")
    labels = {"y": np.array([2.0], "f"), "seen": np.array([1]), "open": np.array([0])}
    message = "head 'y': label 'seen' must hold no outcome unless label 'open' is 1, got 1"
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        harness.loss(head, [[0.0] * 3], labels)
    assert harness.label_error(caught.value) == message
    assert head.check({"y": 2.0, "seen": 1, "open": 0}) == message
    loss, _ = harness.loss(head, [[0.0] * 3], {**labels, "seen": np.array([0])})
    assert loss == 0
