"""Losses, metrics and predictions of every head, eager and in a graph, v1 heads too, in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import head as v1_heads
from tensorflow_estimator.python.estimator.head import sequential_head

from mtl import compat
from mtl.compat import keras

tf1 = tf.compat.v1
api = compat.estimator
pytestmark = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")

LOGITS = np.array([[1.5, 0.0, -1.0], [-0.5, 2.0, 0.25], [0.0, 1.0, 3.0]])
WEIGHTS = np.array([[1.0], [0.2], [3.0]])
BITS = np.array([[1], [0], [0]])
IDS = np.array([[0], [2], [2]])
SETS = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]])
VALUES = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
COUNTS = np.array([[2.0], [0.0], [5.0]])
WORDS = ["low", "mid", "high"]


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def _cross_entropy(logits, labels):
    return np.logaddexp(0, logits) - labels * logits


def _picked(logits, ids):
    return -np.log(np.take_along_axis(_softmax(logits), ids, axis=1))


def _mean(x):
    return np.mean(x, axis=1, keepdims=True)


ONE = LOGITS[:, :1]
HEADS = {  # make(**settings), logits, labels, loss of each example [B, 1], predictions
    "binary": (
        api.BinaryClassHead,
        ONE,
        BITS,
        _cross_entropy(ONE, BITS),
        {"logistic": _sigmoid(ONE), "class_ids": (ONE > 0).astype(int)},
    ),
    "binary of words": (
        lambda **s: api.BinaryClassHead(label_vocabulary=["no", "yes"], **s),
        ONE,
        np.array([["yes"], ["no"], ["no"]]),
        _cross_entropy(ONE, BITS),
        {"classes": np.array([[b"yes"], [b"no"], [b"no"]])},
    ),
    "classes": (
        lambda **s: api.MultiClassHead(3, **s),
        LOGITS,
        IDS,
        _picked(LOGITS, IDS),
        {"probabilities": _softmax(LOGITS), "class_ids": LOGITS.argmax(axis=1)[:, None]},
    ),
    "classes of words": (
        lambda **s: api.MultiClassHead(3, label_vocabulary=WORDS, **s),
        LOGITS,
        np.array(WORDS)[IDS],
        _picked(LOGITS, IDS),
        {"classes": np.array([[b"low"], [b"mid"], [b"high"]])},
    ),
    "labels": (
        lambda **s: api.MultiLabelHead(3, **s),
        LOGITS,
        SETS,
        _mean(_cross_entropy(LOGITS, SETS)),
        {"probabilities": _sigmoid(LOGITS)},
    ),
    "values": (
        lambda **s: api.RegressionHead(label_dimension=3, **s),
        LOGITS,
        VALUES,
        _mean((LOGITS - VALUES) ** 2),
        {"predictions": LOGITS},
    ),
    "values, exponential": (
        lambda **s: api.RegressionHead(inverse_link_fn=tf.exp, **s),
        ONE,
        COUNTS,
        (ONE - COUNTS) ** 2,
        {"predictions": np.exp(ONE), "logits": ONE},
    ),
    "counts": (
        lambda **s: api.PoissonRegressionHead(compute_full_loss=False, **s),
        ONE,
        COUNTS,
        np.exp(ONE) - COUNTS * ONE,
        {"predictions": np.exp(ONE)},
    ),
    "fractions": (
        api.LogisticRegressionHead,
        ONE,
        np.array([[0.3], [0.9], [0.0]]),
        _cross_entropy(ONE, np.array([[0.3], [0.9], [0.0]])),
        {"predictions": _sigmoid(ONE)},
    ),
    "own loss": (
        lambda **s: api.RegressionHead(loss_fn=lambda labels, logits: tf.abs(labels - logits), **s),
        ONE,
        COUNTS,
        abs(ONE - COUNTS),
        {"predictions": ONE},
    ),
}


def _float(values):
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _features(weights=WEIGHTS):
    return {"x": np.zeros([3, 1], np.float32), "w": weights.astype(np.float32)}


def _head(make, weighted):
    """A head; its tables belong to the graph that it is made in."""
    return make(weight_column="w") if weighted else make()


@pytest.mark.medium
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", HEADS)
def test_loss_metrics_and_predictions(name, weighted):
    make, logits, labels, losses, predictions = HEADS[name]
    head = _head(make, weighted)
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    arguments = {"labels": _float(labels), "features": _features(), "mode": "eval"}
    loss = head.loss(logits=tf.constant(_float(logits)), **arguments)
    np.testing.assert_allclose(loss, np.sum(losses * weights) / len(losses), rtol=1e-5)
    found = head.predictions(tf.constant(_float(logits)))
    for key, expected in predictions.items():
        found_value = found[key].numpy()
        if found_value.dtype == object:
            assert found_value.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(found_value, expected, rtol=1e-5)
    mean = np.sum(losses * weights) / weights.sum()
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = _head(make, weighted).create_estimator_spec(
            features={key: tf.constant(value) for key, value in _features().items()},
            mode="eval",
            logits=tf.constant(_float(logits)),
            labels=tf.constant(_float(labels)),
            regularization_losses=[tf.constant(1.5), tf.constant(0.5)],
        )
        metrics = _evaluate(session, spec)
    np.testing.assert_allclose(metrics["average_loss"], mean, rtol=1e-5)
    np.testing.assert_allclose(metrics["regularization_loss"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], float(loss) + 2.0, rtol=1e-5)


def _evaluate(session, spec):
    """Values of all metrics after one update, and the loss."""
    session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
    session.run(tf1.tables_initializer())
    metrics = spec.eval_metric_ops
    tuples = {
        key: (metric.result(), metric.updates) if hasattr(metric, "result") else metric
        for key, metric in metrics.items()
    }
    loss, _ = session.run([spec.loss, {key: update for key, (_, update) in tuples.items()}])
    return session.run({key: value for key, (value, _) in tuples.items()}) | {"loss": loss}


def test_thresholds_and_binary_metrics():
    head = api.BinaryClassHead(weight_column="w", thresholds=[0.25, 0.9])
    probability, weights = _sigmoid(ONE), WEIGHTS
    metrics = head.update_metrics(
        head.metrics(), _features(), tf.constant(_float(ONE)), tf.constant(BITS)
    )
    found = {key: float(metric.result()) for key, metric in metrics.items()}
    mean = np.sum(weights * BITS) / weights.sum()
    expected = {
        "label/mean": mean,
        "accuracy_baseline": max(mean, 1 - mean),
        "prediction/mean": np.sum(weights * probability) / weights.sum(),
    }
    for threshold in (0.25, 0.9):
        positive = probability > threshold
        right = np.sum(weights * (positive == BITS)) / weights.sum()
        hits, shown = np.sum(weights * positive * BITS), np.sum(weights * positive)
        expected |= {
            f"accuracy/positive_threshold_{threshold}": right,
            f"precision/positive_threshold_{threshold}": hits / shown if shown else 0,
            f"recall/positive_threshold_{threshold}": hits / np.sum(weights * BITS),
        }
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert found["auc"] == pytest.approx(1.0, abs=1e-3)
    assert found["auc_precision_recall"] == pytest.approx(1.0, abs=1e-3)


def test_metrics_of_single_classes():
    head = api.MultiLabelHead(3, thresholds=[0.6], classes_for_class_based_metrics=[0, 2])
    metrics = head.update_metrics(
        head.metrics(), _features(), tf.constant(_float(LOGITS)), tf.constant(SETS)
    )
    found = {key: float(metric.result()) for key, metric in metrics.items()}
    for index in (0, 2):
        mean = _sigmoid(LOGITS[:, index]).mean()
        assert found[f"probability_mean/class{index}"] == pytest.approx(mean, rel=1e-5)
    positive = _sigmoid(LOGITS) > 0.6
    expected = np.sum(positive * SETS) / positive.sum()
    assert found["precision/positive_threshold_0.6"] == pytest.approx(expected, rel=1e-5)


def test_labels_as_sparse_sets():
    indices = [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]
    for values, settings in [
        ([0, 2, 1, 2, 2], {}),
        ([WORDS[i] for i in (0, 2, 1, 2, 2)], {"label_vocabulary": WORDS}),
    ]:
        labels = tf.sparse.SparseTensor(indices, values, [3, 2])
        head = api.MultiLabelHead(3, **settings)
        loss = head.loss(labels, tf.constant(_float(LOGITS)), _features(), "eval")
        np.testing.assert_allclose(loss, _cross_entropy(LOGITS, SETS).mean(), rtol=1e-5)


V1 = {
    "binary": v1_heads._binary_logistic_head_with_sigmoid_cross_entropy_loss,
    "classes": lambda **s: v1_heads._multi_class_head_with_softmax_cross_entropy_loss(3, **s),
    "values": lambda **s: v1_heads._regression_head(label_dimension=3, **s),
}


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
@pytest.mark.parametrize("name", V1)
def test_v1_heads(name, mode):
    _, logits, labels, losses, predictions = HEADS[name]
    width = logits.shape[1] if name == "values" else 1
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        spec = V1[name](weight_column="w").create_estimator_spec(
            features={key: tf.constant(value) for key, value in _features().items()},
            mode=mode,
            logits=tf.constant(_float(logits)),
            labels=None if mode == "infer" else tf.constant(_float(labels)),
            train_op_fn=lambda loss: tf1.assign_add(step, 1),
        )
        if mode == "infer":
            found = session.run(spec.predictions)
            for key, expected in predictions.items():
                np.testing.assert_allclose(found[key], expected, rtol=1e-5)
            assert {"predict", "serving_default"} <= set(spec.export_outputs)
            return
        total = np.sum(losses * width * WEIGHTS)  # v1 heads sum over the batch
        if mode == "eval":
            metrics = _evaluate(session, spec)
            np.testing.assert_allclose(metrics["loss"], total, rtol=1e-5)
            mean = np.sum(losses * WEIGHTS) / WEIGHTS.sum()
            np.testing.assert_allclose(metrics["average_loss"], mean, rtol=1e-5)
        else:
            session.run(tf1.global_variables_initializer())
            loss, _ = session.run([spec.loss, spec.train_op])
            np.testing.assert_allclose(loss, total, rtol=1e-5)
            assert session.run(step) == 1


SEQUENCE = np.array([[[0.5], [-1.0]], [[2.0], [7.0]]])  # the last one is padding
MASK, WEIGHTS_2, BITS_2 = [[1, 1], [1, 0]], [[0.5, 2.0], [1.0, 9.0]], [[1, 1], [0, 1]]


def test_sequences():
    static = api.BinaryClassHead(weight_column="w", name="static")
    head = sequential_head.SequentialHeadWrapper(static, "mask", "w")
    features = {"mask": tf.constant(MASK), "w": tf.constant(WEIGHTS_2)}
    losses = _cross_entropy(SEQUENCE[..., 0], np.array(BITS_2)) * WEIGHTS_2 * np.array(MASK)
    logits = tf.constant(_float(SEQUENCE))
    sparse = tf.sparse.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 1, 0], [2, 2])
    for labels in (tf.constant(BITS_2), sparse):
        loss = head.loss(labels=labels, logits=logits, features=features, mode="eval")
        np.testing.assert_allclose(loss, losses.sum() / 3, rtol=1e-5)
    found = head.predictions(logits, keys=["logistic"])["logistic"]
    np.testing.assert_allclose(found, _sigmoid(SEQUENCE), rtol=1e-5)
    metrics = head.update_metrics(head.metrics(), features, logits, tf.constant(BITS_2))
    right = (SEQUENCE[..., 0] > 0) == np.array(BITS_2, bool)
    weights = np.array(WEIGHTS_2) * MASK
    expected = np.sum(right * weights) / weights.sum()
    np.testing.assert_allclose(metrics["accuracy/static"].result(), expected, rtol=1e-5)
    assert (head.name, head.logits_dimension) == ("static_sequential", 1)
    assert (head.input_sequence_mask_key, head.static_head) == ("mask", static)
    for broken, message in [
        ({}, "should be included in"),
        ({"mask": tf.constant(MASK)}, "`w` column expected in features"),
        ({"mask": tf.constant([1, 1])}, "expected to have two dimensions"),
        ({"mask": tf.ones([2, 3], tf.int32), "w": features["w"]}, "(?i)incompatible"),
    ]:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
            head.loss(labels=sparse, logits=logits, features=broken, mode="eval")


REFUSED = {
    "thresholds not in": lambda: api.BinaryClassHead(thresholds=[1.5]),
    "label_vocabulary should be a list": lambda: api.BinaryClassHead(label_vocabulary="text"),
    "n_classes must be > 2": lambda: api.MultiClassHead(2),
    'does not have "n_classes" items': lambda: api.MultiClassHead(3, label_vocabulary=["a"]),
    "n_classes must be > 1": lambda: api.MultiLabelHead(1),
    "must be in .0, 1. range": lambda: api.MultiLabelHead(3, thresholds=[0.0]),
    "must be in range .0, 2.": lambda: api.MultiLabelHead(3, classes_for_class_based_metrics=[3]),
    "Invalid label_dimension": lambda: api.RegressionHead(label_dimension=0),
    "Invalid `?loss_reduction": lambda: api.RegressionHead(loss_reduction="none"),
    "loss_fn must contain argument: logits": lambda: api.RegressionHead(loss_fn=lambda labels: 1),
    "unexpected args": lambda: api.RegressionHead(loss_fn=lambda labels, logits, other: 1),
    "Must specify heads": lambda: api.MultiHead([]),
    "must have name": lambda: api.MultiHead([api.RegressionHead()]),
    "must have the same size": lambda: api.MultiHead([api.RegressionHead(name="a")], [1, 2]),
    "Labels must be <= 3 - 1": lambda: _loss(api.MultiClassHead(3), IDS + 5),
    "Labels dtype should be integer": lambda: _loss(api.MultiClassHead(3), IDS * 1.0),
    "Mismatched label shape|labels shape must": lambda: _loss(api.RegressionHead(), VALUES, ONE),
    "You must provide a labels Tensor": lambda: _loss(api.RegressionHead(), None, ONE),
    "logits shape must be": lambda: _loss(api.MultiClassHead(3), IDS, ONE),
}


def _loss(head, labels, logits=LOGITS):
    labels = None if labels is None else tf.constant(_float(labels))
    return head.loss(labels, tf.constant(_float(logits)), _features(), "eval")


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        REFUSED[message]()


def test_the_step_needs_one_way_to_be_made():
    head = api.RegressionHead()
    with tf.Graph().as_default():
        arguments = {
            "features": _features(),
            "mode": "train",
            "logits": tf.constant(_float(ONE)),
            "labels": tf.constant(_float(COUNTS)),
            "trainable_variables": [tf1.get_variable("v", [])],
        }
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
        both = {"optimizer": optimizer, "train_op_fn": lambda loss: tf.no_op()}
        for ways, message in [(both, "cannot both be set"), ({}, "cannot both be None")]:
            with pytest.raises(ValueError, match=message):
                head.create_estimator_spec(**arguments, **ways)
