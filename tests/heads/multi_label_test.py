"""MultiLabel against scikit-learn, and its three kinds of labels."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from mtl import checks, heads
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")
NAMES = ["sport", "politics", "film"]


@pytest.mark.medium
def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = (rng.random((2000, 3)) < [0.5, 0.1, 0.0]).astype(np.int64)
    logits = (rng.normal(-1, 1, (2000, 3)) + 2 * y).astype("f")
    w = rng.random(2000).astype("f")
    head = heads.MultiLabel(name="topics", classes=NAMES, weight="weight")
    got = harness.evaluate(head, logits, {"topics": y, "weight": w})

    p, flagged = 1 / (1 + np.exp(-logits)), (logits >= 0).astype(int)
    cells = np.repeat(w, 3)
    ranked = [
        (y[:, c], p[:, c], {"sample_weight": w}) for c in range(2)
    ]  # The third class never applies: its AUC is undefined and left out of the mean.
    expected = {
        "accuracy": np.average((flagged == y).ravel(), weights=cells),
        "precision": sklearn_metrics.precision_score(
            y.ravel(), flagged.ravel(), sample_weight=cells
        ),
        "recall": sklearn_metrics.recall_score(y.ravel(), flagged.ravel(), sample_weight=cells),
        "exact_match": sklearn_metrics.accuracy_score(y, flagged, sample_weight=w),
        "auc": np.mean([sklearn_metrics.roc_auc_score(a, b, **c) for a, b, c in ranked]),
        "pr_auc": np.mean(
            [sklearn_metrics.average_precision_score(a, b, **c) for a, b, c in ranked]
        ),
        "label_mean": np.average(y.ravel(), weights=cells),
        "average_loss": sklearn_metrics.log_loss(y.ravel(), p.ravel(), sample_weight=cells),
    }
    shares = np.average(y, axis=0, weights=w)
    background = np.mean([stats.entropy([share, 1 - share]) for share in shares])
    expected["normalized_entropy"] = expected["average_loss"] / background
    assert set(got) == {*expected, *harness.ZERO_WITH_AREAS}
    harness.assert_zero(got, harness.ZERO_WITH_AREAS)
    for name, value in expected.items():
        tolerance = 1e-6 if name.endswith("auc") else 1e-5
        assert got[name] == pytest.approx(value, abs=tolerance), name


def targets(head, label):
    """The targets and where they are present."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        if isinstance(label, list):
            label = tf.ragged.constant(label, ragged_rank=1, row_splits_dtype=tf.int64)
        else:
            label = tf.constant(label)
        return [value.tolist() for value in session.run(head.targets(label))]


def test_lists_of_names_become_multi_hot():
    head = heads.MultiLabel(name="topics", classes=NAMES)
    labels = [["film", "sport", "film"], [], ["politics"], [""]]
    values, present = targets(head, labels)
    assert values == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert present == [[True] * 3, [True] * 3, [True] * 3, [False] * 3]


def test_an_empty_list_may_mean_a_missing_label():
    head = heads.MultiLabel(name="topics", classes=NAMES, empty_is_missing=True)
    assert targets(head, [["film"], []])[1] == [[True] * 3, [False] * 3]


def test_single_classes_of_a_multi_hot_label_may_be_missing():
    head = heads.MultiLabel(name="topics", classes=3)
    label = np.array([[1, np.nan, 0]], "f")
    assert targets(head, label) == [[[1, 0, 0]], [[True, False, True]]]
    loss, gradient = harness.loss(head, np.zeros((1, 3)), {"topics": label})
    assert loss == pytest.approx(np.log(2))
    np.testing.assert_allclose(gradient, [[-0.25, 0, 0.25]])


def test_check_tells_multi_hot_from_a_list():
    head = heads.MultiLabel(name="topics", classes=3)
    assert head.check({"topics": [0, 2, 1]}) is None
    assert head.check({"topics": np.array([1, -1, 1])}) is None
    assert head.check({"topics": [2, 0, 2]}).endswith("must be 1, 0 or missing, got 2")
    assert head.check({"topics": [2, 4]}).endswith("must be in [0, 3), got 4")
    # A list holds no floats, so these values are multi-hot even if they all differ.
    assert head.check({"topics": [0.0, 1.0, 2.0]}).endswith("must be 1, 0 or missing, got 2")
    assert head.check({"topics": [0.0, float("nan"), 1.0]}) is None


def test_predictions_follow_the_threshold():
    got = harness.predict(
        heads.MultiLabel(name="topics", classes=3, threshold=0.2), [[-2.0, -1.0, 3.0]]
    )
    assert got["multi_hot"].tolist() == [[0, 1, 1]]


def test_an_untrained_head_predicts_the_prior():
    logits = harness.untrained(heads.MultiLabel(name="y", classes=2, prior=[0.1, 0.6]))
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), [0.1, 0.6], rtol=1e-6)


def test_ranking_of_many_classes_stays_within_its_memory():
    head = heads.MultiLabel(name="y", classes=5000)
    with tf.Graph().as_default():
        head.metrics(tf.zeros([2, 5000]), {"y": tf.zeros([2, 5000], tf.int64)})
        sizes = [variable.shape.num_elements() for variable in tf.compat.v1.local_variables()]
    assert sum(sizes) * 8 < 2**24 + 16 * 5000 + 2**10


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"prior": 1.5}, r"MultiLabel.prior of task 'y' must be between 0 and 1, got 1.5"),
        ({"positive_weight": [1.0]}, r"positive_weight of task 'y' must hold 3 numbers"),
        ({"empty_is_missing": 1}, r"empty_is_missing of task 'y' must be True or False, got 1"),
        ({"threshold": 0}, r"threshold of task 'y' must be between 0 and 1, got 0"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        heads.MultiLabel(name="y", classes=3, **settings)


@pytest.mark.parametrize("label", [np.array([["film"]]), np.zeros((1, 4), np.int64)])
def test_labels_that_are_neither_lists_nor_multi_hot(label):
    with pytest.raises(checks.UserError, match="head 'y': label 'y' must"):
        harness.loss(heads.MultiLabel(name="y", classes=3), np.zeros((1, 3)), {"y": label})
