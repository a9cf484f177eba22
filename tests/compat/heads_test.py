"""tf.estimator's heads against NumPy, MultiHead, and metrics added by an extender."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from mtl.compat import keras
from tests.compat import toy

tf1 = tf.compat.v1
pytestmark = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")

LOGITS = np.array([[-1.0, 0.5, 2.0], [0.3, -0.7, 0.1]], np.float32)
BITS = np.array([[1, 0, 1], [0, 0, 1]], np.int64)


def _log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _binary_cross_entropy(logits, labels):
    return np.logaddexp(0, logits) - labels * logits


CASES = {
    "BinaryClassHead": (
        lambda: compat.estimator.BinaryClassHead(),
        LOGITS[:, :1],
        BITS[:, :1],
        lambda logits, labels: _binary_cross_entropy(logits, labels).mean(),
    ),
    "MultiClassHead": (
        lambda: compat.estimator.MultiClassHead(3),
        LOGITS,
        np.array([[2], [1]]),
        lambda logits, labels: -np.mean(_log_softmax(logits)[[0, 1], labels[:, 0]]),
    ),
    "MultiLabelHead": (
        lambda: compat.estimator.MultiLabelHead(3),
        LOGITS,
        BITS,
        lambda logits, labels: _binary_cross_entropy(logits, labels).mean(),
    ),
    "RegressionHead": (
        lambda: compat.estimator.RegressionHead(),
        LOGITS[:, :1],
        np.array([[0.25], [1.0]], np.float32),
        lambda logits, labels: np.mean((logits - labels) ** 2),
    ),
    "PoissonRegressionHead": (
        lambda: compat.estimator.PoissonRegressionHead(compute_full_loss=False),
        LOGITS[:, :1],
        np.array([[3.0], [1.0]], np.float32),
        lambda logits, labels: np.mean(np.exp(logits) - labels * logits),
    ),
    "LogisticRegressionHead": (
        lambda: compat.estimator.LogisticRegressionHead(),
        LOGITS[:, :1],
        np.array([[0.25], [1.0]], np.float32),
        lambda logits, labels: _binary_cross_entropy(logits, labels).mean(),
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
def test_loss(name):
    make, logits, labels, expected = CASES[name]
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = make().create_estimator_spec(
            features={"x": tf.zeros([2, 1])},
            mode="eval",
            logits=tf.constant(logits),
            labels=tf.constant(labels),
        )
        loss = session.run(spec.loss)
    np.testing.assert_allclose(loss, expected(logits.astype(np.float64), labels), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_trains_with_a_keras_optimizer_and_with_a_v1_train_op(name, tmp_path):
    make, logits, labels, _ = CASES[name]

    def model_fn(features, labels, mode, params):
        head = make()
        kernel = tf1.get_variable("kernel", logits.shape)
        if params["keras"]:
            optimizer = tf.keras.optimizers.legacy.SGD(0.5)
            optimizer.iterations = tf1.train.get_or_create_global_step()
            update = {"optimizer": optimizer, "trainable_variables": [kernel]}
        else:
            sgd = tf1.train.GradientDescentOptimizer(0.5)
            step = tf1.train.get_global_step()
            update = {"train_op_fn": lambda loss: sgd.minimize(loss, step)}
        return head.create_estimator_spec(features, mode, kernel + 0.0, labels=labels, **update)

    def input_fn():
        rows = ({"x": np.zeros([2, 1], np.float32)}, labels)
        return tf.data.Dataset.from_tensor_slices(rows).repeat().batch(2)

    for with_keras in (True, False):
        estimator = compat.estimator.Estimator(
            model_fn, str(tmp_path / str(with_keras)), params={"keras": with_keras}
        )
        estimator.train(input_fn, steps=1)
        before = estimator.evaluate(input_fn, steps=1)["loss"]
        estimator.train(input_fn, steps=20)
        assert estimator.evaluate(input_fn, steps=1)["loss"] < before
        assert estimator.get_variable_value("global_step") == 21
        assert next(estimator.predict(input_fn))


def _two_heads():
    heads = [
        compat.estimator.RegressionHead(name="level"),
        compat.estimator.BinaryClassHead(name="sign"),
    ]
    return compat.estimator.MultiHead(heads, head_weights=[2.0, 0.5])


def _multi_head_model_fn(features, labels, mode):
    kernel = tf1.get_variable("kernel", [3, 2], initializer=tf1.ones_initializer())
    outputs = tf.matmul(features["x"], kernel)
    optimizer = tf.keras.optimizers.legacy.Adagrad(0.3)
    optimizer.iterations = tf1.train.get_or_create_global_step()
    return _two_heads().create_estimator_spec(
        features,
        mode,
        {"level": outputs[:, :1], "sign": outputs[:, 1:]},
        labels=labels,
        optimizer=optimizer,
        trainable_variables=[kernel],
    )


def _multi_head_input_fn():
    labels = {"level": toy.LABELS, "sign": (toy.LABELS > 0).astype(np.int64)}
    rows = tf.data.Dataset.from_tensor_slices(({"x": toy.ROWS}, labels))
    return rows.repeat().batch(len(toy.ROWS))


@pytest.mark.medium
def test_multi_head(tmp_path):
    estimator = compat.estimator.Estimator(_multi_head_model_fn, str(tmp_path / "model"))
    estimator.train(_multi_head_input_fn, steps=60)
    metrics = estimator.evaluate(_multi_head_input_fn, steps=1)
    kernel = estimator.get_variable_value("kernel").astype(np.float64)
    outputs = toy.ROWS @ kernel
    level = np.mean((outputs[:, :1] - toy.LABELS) ** 2)
    sign = _binary_cross_entropy(outputs[:, 1:], toy.LABELS > 0).mean()
    np.testing.assert_allclose(metrics["loss/level"], level, rtol=1e-4)
    np.testing.assert_allclose(metrics["loss/sign"], sign, rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"], 2.0 * level + 0.5 * sign, rtol=1e-4)
    assert metrics["auc/sign"] > 0.95
    prediction = next(estimator.predict(_multi_head_input_fn))
    np.testing.assert_allclose(prediction["level", "predictions"], outputs[0, :1], rtol=1e-4)
    path = estimator.export_saved_model(str(tmp_path / "export"), toy.serving_input_fn)
    signatures = set(tf.saved_model.load(path.decode()).signatures)
    assert {"level/predict", "sign/predict"} <= signatures
    assert "serving_default" not in signatures  # with raw inputs, upstream names none


@pytest.mark.medium
def test_add_metrics(tmp_path):
    def bias(labels, predictions):
        mean = tf.keras.metrics.Mean(name="bias")
        mean.update_state(predictions["y"] - labels)
        return {"bias": mean}

    def model_fn(features, labels, mode):
        spec = toy.model_fn(features, labels, mode, {})
        outputs = tf.matmul(features["x"], tf1.trainable_variables()[0])
        return spec._replace(predictions={"y": outputs})

    estimator = compat.estimator.Estimator(model_fn, str(tmp_path))
    estimator = compat.estimator.add_metrics(estimator, bias)
    estimator.train(toy.input_fn, steps=2)
    metrics = estimator.evaluate(toy.input_fn, steps=1)
    expected = np.mean(toy.ROWS @ toy.descend(2) - toy.LABELS)
    np.testing.assert_allclose(metrics["bias"], expected, rtol=1e-4)
    assert "mse" in metrics
