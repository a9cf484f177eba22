"""MultiClass against scikit-learn, its names and its table of many names."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from mtl import checks, features, heads
from mtl.heads import classifiers, shots, softmax, values
from tests.heads import harness

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.choice(4, 900, p=[0.6, 0.3, 0.1, 0.0])
    logits = rng.normal(size=(900, 5)).astype("f") + 2 * np.eye(5)[y].astype("f")
    w = rng.random(900).astype("f")
    labels = {"kind": np.where(rng.random(900) < 0.3, -1, y), "weight": w}
    head = heads.MultiClass(name="kind", classes=5, top_k=2, weight="weight")
    got = harness.evaluate(head, logits, labels)

    kept = labels["kind"] >= 0
    y, logits, w = y[kept], logits[kept], w[kept]
    predicted = logits.argmax(-1)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    recalls = [np.average(predicted[y == c] == c, weights=w[y == c]) for c in range(3)]
    expected = {
        "accuracy": np.average(predicted == y, weights=w),
        "accuracy_baseline": np.bincount(y, w).max() / w.sum(),
        "balanced_accuracy": np.mean(recalls),
        "top_2_accuracy": sklearn_metrics.top_k_accuracy_score(
            y, logits, k=2, sample_weight=w, labels=range(5)
        ),
        "average_loss": sklearn_metrics.log_loss(y, p, sample_weight=w, labels=range(5)),
        **{f"recall/{c}": recall for c, recall in enumerate(recalls)},
        "recall/3": np.nan,
        "recall/4": np.nan,
    }
    background = stats.entropy(np.bincount(y, w))
    expected["normalized_entropy"] = expected["average_loss"] / background
    assert set(got) == {*expected, "nan_predictions"}
    assert got["nan_predictions"] == 0
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_equal_logits_are_among_the_first_k_by_chance():
    head = heads.MultiClass(name="y", classes=10, top_k=3)
    got = harness.evaluate(head, np.zeros((30, 10), "f"), {"y": np.arange(30) % 10})
    assert got["top_3_accuracy"] == pytest.approx(0.3)


@pytest.mark.parametrize("count", [3, 1500])
def test_names_are_compared_or_looked_up(count):
    names = [f"name {i}" for i in range(count)]
    asked = ["name 2", "name 0", f"name {count - 1}", "", "name -1"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        labels = tf.constant(asked)
        outside, valid = values.class_ids(labels, names)
        _, inside = tf.while_loop(
            lambda step, _: step < 2,
            lambda step, ids: (step + 1, values.class_ids(labels, names)[0]),
            [tf.constant(0), tf.zeros([5], tf.int64)],
        )
        session.run(tf.compat.v1.tables_initializer())
        for ids in session.run([outside, inside]):
            assert ids.tolist() == [2, 0, count - 1, -1, -1]
        assert session.run(valid).tolist() == [True, True, True, False, False]


def test_class_weights_scale_the_loss_of_their_class():
    labels = {"pet": np.array(["dog", "cat"])}
    objective = softmax.CrossEntropy(class_weights={"dog": 3.0})
    head = heads.MultiClass(name="pet", classes=["cat", "dog"], objective=objective)
    loss, _ = harness.loss(head, np.zeros((2, 2)), labels)
    assert loss == pytest.approx((3 + 1) / 2 * np.log(2))


def test_shots_group_the_recalls_by_rows_in_training():
    y = np.array([0, 0, 1, 1, 2, 2, 3])
    logits = np.eye(5)[[0, 0, 1, 0, 2, 0, 0]]
    head = heads.MultiClass(
        name="y", classes=5, shots=shots.Shots(many=9, few=5), class_counts=[30, 10, 9, 5, 5]
    )
    got = harness.evaluate(head, logits.astype("f"), {"y": y}, num_batches=2)
    assert got["many_shot_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert got["medium_shot_accuracy"] == pytest.approx((0.5 + 0) / 2)
    assert np.isnan(got["few_shot_accuracy"])


def count(head, tmp_path, *batches):
    """The statistics of a training split with these labels."""
    made = [
        ({"x": tf.zeros([1])}, {name: tf.constant(values) for name, values in batch.items()})
        for batch in batches
    ]
    features.fit_columns([features.Numeric(names=["x"])], made, str(tmp_path / "fitted"), [head])
    return features.load_statistics(str(tmp_path / "fitted"))


def test_rows_of_the_classes_come_from_the_statistics(tmp_path):
    head = heads.MultiClass(name="pet", classes=["cat", "dog", "emu"], shots=shots.Shots())
    fitted = head.fitted(count(head, tmp_path, {"pet": ["dog", "cat", ""]}, {"pet": ["dog"]}))
    assert fitted.class_counts == [1, 2, 0]
    assert not fitted.accumulators() and fitted.fitted(None) is fitted


def test_ids_of_named_classes_are_counted_too(tmp_path):
    head = heads.MultiClass(name="y", classes=["b", "a"], shots=shots.Shots())
    assert head.fitted(count(head, tmp_path, {"y": [0, 0, 1, -1]})).class_counts == [2, 1]


def test_predictions_name_the_class():
    head = heads.MultiClass(name="pet", classes=["cat", "dog", "bird"])
    got = harness.predict(head, [[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    assert got["class"].tolist() == ["dog", "cat"]
    assert got["class_id"].tolist() == [1, 0]
    np.testing.assert_allclose(got["probabilities"].sum(-1), 1, rtol=1e-6)


def test_an_untrained_head_predicts_the_prior():
    logits = harness.untrained(heads.MultiClass(name="y", classes=3, prior=[0.2, 0.5, 0.3]))
    np.testing.assert_allclose(np.exp(logits), [0.2, 0.5, 0.3], rtol=1e-6)


def weigh(class_weights):
    return {"objective": softmax.CrossEntropy(class_weights=class_weights)}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"classes": 1}, r"MultiClass.classes of task 'y' must be at least 2, .*, got 1"),
        ({"classes": "abc"}, r"must be a number of classes or a list of names, got 'abc'"),
        ({"classes": ["a", "a"]}, r"must hold each name once, got \['a'\]"),
        ({"classes": ["a", ""]}, r"must hold no empty name"),
        ({"classes": ["a", 1]}, r"must hold names, got 1"),
        (weigh([1.0, 2.0]), r"CrossEntropy.class_weights must hold 3 numbers"),
        (weigh({"3": 2.0}), r"must be one of 0, 1, 2, got '3'"),
        (weigh([1.0, 0.0, 1.0]), r"CrossEntropy.class_weights must be above 0"),
        ({"objective": softmax.CrossEntropy}, r"objective of task 'y' must be a part such as"),
        ({"class_counts": [5, 3]}, r"class_counts of task 'y' must hold 3 numbers"),
        ({"class_counts": {"3": 2}}, r"class_counts of task 'y' must be one of 0, 1, 2, got '3'"),
        ({"class_counts": [5, 3, -1]}, r"class_counts of task 'y' must be at least 0, got -1"),
        (
            {"prior": [1, 1, 2], "classifier": classifiers.Cosine()},
            r"prior of task 'y' must be None, as the classifier has no bias",
        ),
        ({"prior": "even"}, r"prior of task 'y' must be a number, a list of numbers or a map"),
        ({"top_k": 3}, r"top_k of task 'y' must be in \[0, 3\), got 3"),
        ({"recall_limit": -1}, r"recall_limit of task 'y' must be at least 0, got -1"),
    ],
)
def test_wrong_settings(settings, error):
    with pytest.raises(checks.UserError, match=error):
        heads.MultiClass(**{"name": "y", "classes": 3, **settings})
