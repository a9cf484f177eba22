"""Binary against scikit-learn, and its label values."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from mtl import checks, heads
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")


@pytest.mark.medium
def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = (rng.random(3000) < 0.1).astype(np.int64)
    logits = rng.normal(-2, 1, 3000).astype("f") + y
    p = 1 / (1 + np.exp(-logits))
    w = rng.random(3000).astype("f")
    labels = {"click": np.where(rng.random(3000) < 0.2, -1, y), "weight": w}
    head = heads.Binary(name="click", weight="weight", threshold=0.3)
    got = harness.evaluate(head, logits[:, None], labels)

    kept = labels["click"] >= 0
    y, p, w, flagged = y[kept], p[kept], w[kept], p[kept] >= 0.3
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(y, flagged, sample_weight=w),
        "accuracy_baseline": 1 - np.average(y, weights=w),
        "precision": sklearn_metrics.precision_score(y, flagged, sample_weight=w),
        "recall": sklearn_metrics.recall_score(y, flagged, sample_weight=w),
        "auc": sklearn_metrics.roc_auc_score(y, p, sample_weight=w),
        "pr_auc": sklearn_metrics.average_precision_score(y, p, sample_weight=w),
        "label_mean": np.average(y, weights=w),
        "prediction_mean": np.average(p, weights=w),
        "calibration": np.sum(w * p) / np.sum(w * y),
        "average_loss": sklearn_metrics.log_loss(y, p, sample_weight=w),
    }
    share = expected["label_mean"]
    background = stats.entropy([share, 1 - share])
    expected["normalized_entropy"] = expected["average_loss"] / background
    assert set(got) - set(expected) == {"calibration_error", *harness.ZERO_WITH_AREAS}
    harness.assert_zero(got, harness.ZERO_WITH_AREAS)
    for name, value in expected.items():
        tolerance = 1e-6 if name.endswith(("auc", "entropy")) else 1e-5
        assert got[name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.medium
def test_metrics_of_one_class_are_undefined_where_they_need_two():
    labels = {"click": np.zeros(3, np.int64)}
    got = harness.evaluate(heads.Binary(name="click"), np.full((3, 1), -1.0, "f"), labels)
    undefined = {name for name, value in got.items() if np.isnan(value)}
    bounds = {"auc_error_bound", "pr_auc_error_bound"}
    bounds |= {"normalized_entropy"}
    assert undefined == {"auc", "pr_auc", "precision", "recall", "calibration", *bounds}
    assert got["accuracy"] == 1


def test_normalized_entropy_knows_nothing_of_the_weights_of_the_loss():
    labels, share = {"click": np.array([1, 0, 0, 0, -1])}, 0.25
    rate = np.full((5, 1), np.log(share / (1 - share)), "f")
    head = heads.Binary(name="click", positive_weight=5.0, focal_gamma=2.0, label_smoothing=0.1)
    assert harness.evaluate(head, rate, labels)["normalized_entropy"] == pytest.approx(1, abs=1e-6)


def test_positive_names_count_as_one_and_other_names_as_zero():
    head = heads.Binary(name="income", positive=[">50K", ">50K."])
    labels = {"income": np.array([">50K", "<=50K", ">50K.", "", "other"])}
    _, gradient = harness.loss(head, np.zeros((5, 1)), labels)
    np.testing.assert_allclose(gradient[:, 0], np.array([-1, 1, -1, 0, 1]) / 8)


def test_values_other_than_zero_and_one():
    head = heads.Binary(name="vote", positive=[1], negative=[-1])
    _, gradient = harness.loss(head, np.zeros((3, 1)), {"vote": np.array([1, -1, np.nan], "f")})
    np.testing.assert_allclose(gradient[:, 0], [-0.25, 0.25, 0])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["0", "1"]),
        ({"positive": ["yes", "y"], "negative": ["no"]}, ["no", "yes"]),
        ({"positive": ["yes"]}, ["not yes", "yes"]),
        ({"positive": [2], "negative": [1]}, ["1", "2"]),
    ],
)
def test_predictions_name_the_class(settings, names):
    got = harness.predict(heads.Binary(name="task", threshold=0.3, **settings), [[-1.0], [-0.5]])
    np.testing.assert_allclose(got["probability"], 1 / (1 + np.exp([1.0, 0.5])), rtol=1e-6)
    assert got["class_id"].tolist() == [0, 1]
    assert got["class"].tolist() == names


def test_an_untrained_head_predicts_the_prior():
    logit = harness.untrained(heads.Binary(name="click", prior=0.02))
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "a b"}, r"Binary.name must consist of .*, got 'a b'."),
        ({"positive": ">50K"}, r"Binary.positive of task 'y' must be a list of label values"),
        ({"positive": [1], "negative": [1]}, r"must hold each name once, got \['1'\]"),
        (
            {"positive": [""]},
            r"positive and negative of task 'y' must hold no missing value, got ''",
        ),
        ({"negative": [float("nan")]}, r"must hold no missing value, got nan"),
        ({"positive_weight": 0}, r"Binary.positive_weight of task 'y' must be above 0, got 0"),
        ({"label_smoothing": 1.0}, r"label_smoothing of task 'y' must be in \[0, 1\), got 1.0"),
        ({"focal_gamma": -1}, r"focal_gamma of task 'y' must be at least 0, got -1"),
        ({"threshold": 1.0}, r"threshold of task 'y' must be between 0 and 1, got 1.0"),
        ({"prior": 0}, r"prior of task 'y' must be between 0 and 1, got 0"),
        ({"weight": 3}, r"weight of task 'y' must name a label field, got 3"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        heads.Binary(**{"name": "y", **settings})


@pytest.mark.parametrize(
    ("settings", "label"),
    [({}, np.array(["a"])), ({"positive": ["yes"]}, np.array([1]))],
)
def test_settings_that_do_not_fit_the_label_field(settings, label):
    with pytest.raises(checks.UserError, match="hold values of (int64|string), the type of label"):
        harness.loss(heads.Binary(name="y", **settings), np.zeros((1, 1)), {"y": label})


def test_scores_of_both_classes_are_precise_however_small():
    logits = np.float32([-80, -20, 0, 20, 80])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = heads.Binary(name="click").export_outputs(tf.constant(logits[:, None]))
        scores = session.run(outputs["classify"].scores)
    expected = [np.exp(-np.logaddexp(0, sign * logits.astype(np.float64))) for sign in (1, -1)]
    np.testing.assert_allclose(scores, np.stack(expected, 1), rtol=1e-5)


@pytest.mark.parametrize("positive", [[1], [1.0], [True]])
@pytest.mark.parametrize("negative", [[], [0], [0.0], [False]])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_one_can_be_written_as_a_fraction_or_a_bool(positive, negative, dtype):
    head = heads.Binary(name="vote", positive=positive, negative=negative)
    _, gradient = harness.loss(head, np.zeros((3, 1)), {"vote": np.array([1, 0, 1], dtype)})
    np.testing.assert_allclose(gradient[:, 0], np.array([-1, 1, -1]) / 6)
    assert head.check({"vote": 1}) is None and head.check({"vote": 1.0}) is None


@pytest.mark.parametrize(("dtype", "value"), [(np.int64, 1.5), (np.int64, "1"), (object, True)])
def test_what_the_label_field_cannot_hold_is_one_line(dtype, value):
    head = heads.Binary(name="vote", positive=[value])
    labels = {"vote": np.array(["a", "b"] if dtype is object else [0, 1], dtype)}
    kind = "string" if dtype is object else "int64"
    with pytest.raises(checks.UserError, match=f"must hold values of {kind}, the type of label"):
        harness.loss(head, np.zeros((2, 1)), labels)


@pytest.mark.parametrize("twice", [(1, 1.0), (True, 1), (0, False), (1.0, "1")])
def test_one_value_under_two_names_is_refused(twice):
    with pytest.raises(checks.UserError, match=r"must hold each name once, got \['[01]'\]"):
        heads.Binary(name="vote", positive=[twice[0]], negative=[twice[1]])
