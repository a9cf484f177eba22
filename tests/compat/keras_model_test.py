"""model_to_estimator: a compiled Keras 2 model as an Estimator."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.compat import keras
from tests.compat import toy

pytestmark = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


def _compiled():
    inputs = tf.keras.Input([3], name="x")
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="y")
    model = tf.keras.Model(inputs, layer(inputs))
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse", metrics=["mae"])
    return model


@pytest.mark.medium
def test_trains_like_the_model(tmp_path):
    estimator = tf.keras.estimator.model_to_estimator(_compiled(), model_dir=str(tmp_path / "m"))
    estimator.train(toy.input_fn, steps=5)
    metrics = estimator.evaluate(toy.input_fn, steps=1)
    kernel = toy.descend(5)
    np.testing.assert_allclose(metrics["loss"], toy.mean_squared_error(kernel), rtol=1e-4)
    expected = np.mean(np.abs(toy.ROWS @ kernel - toy.LABELS))
    np.testing.assert_allclose(metrics["mae"], expected, rtol=1e-4)
    predictions = [p["y"] for p in estimator.predict(lambda: toy.input_fn(repeat=False))]
    np.testing.assert_allclose(predictions, toy.ROWS @ kernel, rtol=1e-3, atol=1e-5)
    path = estimator.export_saved_model(str(tmp_path / "export"), toy.serving_input_fn)
    assert "serving_default" in tf.saved_model.load(path.decode()).signatures


@pytest.mark.medium
def test_starts_from_the_models_weights(tmp_path):
    model = _compiled()
    model.set_weights([toy.WEIGHTS])
    estimator = tf.keras.estimator.model_to_estimator(model, model_dir=str(tmp_path))
    assert estimator.evaluate(toy.input_fn, steps=1)["loss"] < 1e-10
