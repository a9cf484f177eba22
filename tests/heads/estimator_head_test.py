"""Heads of the tf.estimator API: the same loss, metrics and predictions as in an Estimator."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, heads
from mtl.compat import keras
from mtl.step import whole_batch
from tests.heads import harness

tf1 = tf.compat.v1
pytestmark = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


@pytest.mark.medium
def test_binary_agrees_with_the_head_of_this_project():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 1)).astype("f")
    y = np.where(rng.random(300) < 0.2, -1, rng.random(300) < 0.4).astype(np.int64)
    theirs = heads.EstimatorHead(name="click", head=compat.estimator.BinaryClassHead())
    ours = heads.Binary(name="click")
    for mine, other in zip(
        harness.loss(ours, logits, {"click": y}),
        harness.loss(theirs, logits, {"click": y}),
        strict=True,
    ):
        np.testing.assert_allclose(other, mine, rtol=1e-5, atol=1e-8)
    mine, other = (harness.evaluate(head, logits, {"click": y}) for head in (ours, theirs))
    for name in ("accuracy", "accuracy_baseline", "average_loss", "precision", "recall"):
        assert other[name] == pytest.approx(mine[name], abs=1e-5), name
    assert other["auc"] == pytest.approx(mine["auc"], abs=0.01)
    assert other["label/mean"] == pytest.approx(mine["label_mean"], abs=1e-5)
    predicted = harness.predict(theirs, logits)["logistic"][:, 0]
    np.testing.assert_allclose(predicted, harness.predict(ours, logits)["probability"], rtol=1e-6)


@pytest.mark.medium
def test_weights_come_from_a_label_field():
    head = heads.EstimatorHead(
        name="price", label="cost", head=compat.estimator.RegressionHead(weight_column="weight")
    )
    labels = {
        "cost": np.array([1.0, np.nan, 3.0], "f"),
        "weight": np.array([1.0, 5.0, 3.0], "f"),
        "other": np.array(["a", "b", "c"]),
    }
    loss, gradient = harness.loss(head, np.zeros((3, 1)), labels)
    assert loss == pytest.approx((1 * 1 + 3 * 9) / 2)  # Divided by rows: see the docstring.
    np.testing.assert_allclose(gradient, [[-1], [0], [-9]])
    got = harness.evaluate(head, np.zeros((3, 1), "f"), labels, num_batches=3)
    assert got["average_loss"] == pytest.approx((1 * 1 + 3 * 9) / 4)


@pytest.mark.medium
def test_a_batch_without_labels_weighs_nothing():
    head = heads.EstimatorHead(name="kind", head=compat.estimator.MultiClassHead(3))
    loss, gradient = harness.loss(head, np.ones((2, 3)), {"kind": np.array([-1, -1])})
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(6, 3)).astype("f"), np.array([-1, -1, -1, 2, 1, 0])
    streamed = harness.evaluate(head, logits, {"kind": y}, num_batches=2)
    alone = harness.evaluate(head, logits[3:], {"kind": y[3:]}, num_batches=1)
    assert streamed == pytest.approx(alone)


@pytest.mark.parametrize(
    ("make", "width", "kinds"),
    [
        (lambda: compat.estimator.BinaryClassHead(), 1, "classify predict regress"),
        (lambda: compat.estimator.MultiClassHead(3), 3, "classify predict"),
        (lambda: compat.estimator.MultiLabelHead(3), 3, "classify predict"),
        (lambda: compat.estimator.RegressionHead(), 1, "predict regress"),
        (lambda: compat.estimator.PoissonRegressionHead(), 1, "predict regress"),
    ],
)
def test_logits_and_signatures(make, width, kinds):
    head = heads.EstimatorHead(name="task", head=make())
    with tf.Graph().as_default():
        logits = head.logits(tf.zeros([2, 5]))
        assert logits.shape == [2, width]
        assert " ".join(sorted(head.export_outputs(logits))) == kinds
    assert head.check({"task": 1}) is None


def test_heads_that_are_none_or_several():
    with pytest.raises(checks.UserError, match="EstimatorHead.head of task 'y' must be a tf.esti"):
        heads.EstimatorHead(name="y", head=heads.Binary(name="y"))
    several = compat.estimator.MultiHead([compat.estimator.BinaryClassHead(name="a")])
    with pytest.raises(checks.UserError, match="must be a single head, got 'a MultiHead'"):
        heads.EstimatorHead(name="y", head=several)
    head = heads.EstimatorHead(name="y", head=compat.estimator.BinaryClassHead())
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="label field must be one"):
        head.loss(tf.zeros([1, 1]), {"x": tf.zeros([1])})


def test_the_field_of_weights_must_be_a_label_field():
    head = heads.EstimatorHead(name="y", head=compat.estimator.BinaryClassHead("weights"))
    with pytest.raises(checks.UserError, match="weight_column must be one of y, weight, got 'we"):
        head.loss(tf.zeros([1, 1]), {"y": tf.zeros([1]), "weight": tf.ones([1])})


@pytest.mark.medium
def test_it_trains_and_evaluates_in_an_estimator(tmp_path):
    head = heads.EstimatorHead(name="y", head=compat.estimator.BinaryClassHead())
    ours = heads.Binary(name="y")

    def model_fn(features, labels, mode):
        with tf1.variable_scope("head/y"):
            logits = head.logits(features["x"])
        loss = head.loss(logits, labels)
        step = tf1.train.get_or_create_global_step()
        train_op = tf1.train.AdamOptimizer(0.1).minimize(loss, step)
        metrics = {}
        if mode == "eval":
            metrics = dict(head.metrics(logits, labels))
            for name, metric in ours.metrics(logits, labels).items():
                metrics[f"ours/{name}"] = metric
        return compat.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    def input_fn():
        x = np.random.default_rng(0).normal(size=(200, 2)).astype("f")
        y = (x[:, 0] > x[:, 1]).astype(np.int64)
        return tf.data.Dataset.from_tensor_slices(({"x": x}, {"y": y})).batch(50)

    estimator = compat.estimator.Estimator(model_fn, str(tmp_path))
    for _ in range(10):
        estimator.train(input_fn)
    got = estimator.evaluate(input_fn)
    assert got["accuracy"] > 0.95
    for name in ("accuracy", "average_loss", "precision", "recall"):
        assert got[f"ours/{name}"] == pytest.approx(got[name], abs=1e-5)
    assert got["ours/auc"] == pytest.approx(got["auc"], abs=0.01)


@pytest.mark.parametrize(
    ("make", "width"), [(compat.estimator.MultiClassHead, 3), (compat.estimator.BinaryClassHead, 1)]
)
def test_a_vocabulary_of_labels_is_looked_up_in_the_loop_over_steps(make, width):
    logits = np.random.default_rng(0).normal(size=(4, width)).astype("f")
    names, size = ["lo", "mid", "hi"][: max(2, width)], {"n_classes": 3} if width > 1 else {}
    named = heads.EstimatorHead(name="y", head=make(**size, label_vocabulary=names))
    plain = heads.EstimatorHead(name="y", head=make(**size))
    with tf.Graph().as_default(), tf1.Session() as session:
        labels = {"y": tf.constant(["mid", "", "lo", "mid"])}

        def body(step, total):
            return step + 1, total + named.loss(tf.constant(logits), labels)

        _, total = tf.while_loop(lambda step, _: step < 2, body, [0, 0.0])
        ids = tf.constant([1, -1, 0, 1], tf.int64)
        expected = 2 * plain.loss(tf.constant(logits), {"y": ids})
        assert not tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
        assert session.run(total) == pytest.approx(session.run(expected))


@pytest.mark.medium
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_a_sum_over_rows_is_the_same_in_slices(slices):
    """One of the slices may have no label."""
    head = heads.EstimatorHead(
        name="price", head=compat.estimator.RegressionHead(loss_reduction="sum")
    )
    prices = np.array([1, np.nan, 3, 2, np.nan, 5, np.nan, np.nan], "f")

    def forward(features, labels):
        return whole_batch.ForwardPass({"price": head.loss(features["x"] * tower, labels)})

    def weigh(labels):
        return {"price": head.label_weight(labels)}

    with tf.Graph().as_default(), tf1.Session() as session:
        tower, features = tf.constant(2.0), {"x": tf.ones([8, 1])}
        labels = head.see_batch({"price": tf.constant(prices)})
        batch = whole_batch.build_batch(forward, weigh, features, labels, slices)
        gradients = batch.sum(lambda part: tf.gradients(part.losses["price"], tower))
        assert session.run(gradients) == [pytest.approx(2 * np.nansum(2 - prices))]


@pytest.mark.medium
def test_lists_as_labels_are_refused_in_one_line():
    head = heads.EstimatorHead(name="topics", head=compat.estimator.MultiLabelHead(3))
    labels = {"topics": tf.ragged.constant([[0, 2], [], [1]], dtype=tf.int64)}
    with pytest.raises(checks.UserError) as error:
        head.loss(tf.zeros([3, 3]), labels)
    assert str(error.value) == (
        "head 'topics': label 'topics' must have a fixed shape, got 'lists of any length'. "
        "heads.MultiLabel takes lists."
    )
