"""Parts of tensorflow-estimator that its public API does not list, or lists as experimental."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training import training_util

from mtl import compat
from mtl.compat import keras
from tests.compat import toy

tf1 = tf.compat.v1
needs_keras_2 = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


@needs_keras_2
@pytest.mark.slow
@pytest.mark.parametrize("version", ["estimator", "estimator_v1"])
def test_linear_sdca(version, tmp_path):
    """Stochastic dual coordinate ascent reaches the ridge solution."""
    api = getattr(compat, version)
    optimizer = api.experimental.LinearSDCA(example_id_column="id", symmetric_l2_regularization=0.5)

    def input_fn():
        features = {
            "x": tf.constant(toy.ROWS[:, :1]),
            "id": tf.constant([str(i) for i in range(len(toy.ROWS))]),
        }
        return features, tf.constant(toy.LABELS)

    estimator = api.LinearRegressor(
        [tf.feature_column.numeric_column("x")], model_dir=str(tmp_path), optimizer=optimizer
    )
    estimator.train(input_fn, steps=60)
    x = np.concatenate([toy.ROWS[:, :1], np.ones_like(toy.LABELS)], axis=1)
    ridge = np.linalg.solve(x.T @ x + 0.5 * np.eye(2), x.T @ toy.LABELS)
    weight = estimator.get_variable_value("linear/linear_model/x/weights")
    bias = estimator.get_variable_value("linear/linear_model/bias_weights")
    np.testing.assert_allclose([weight.item(), bias.item()], ridge[:, 0], rtol=2e-2, atol=2e-2)


@needs_keras_2
@pytest.mark.slow
def test_time_series(tmp_path):
    from tensorflow_estimator.python.estimator.canned.timeseries import estimators

    def input_fn():
        times = tf.range(15)[tf.newaxis]
        values = tf.sin(tf.cast(times, tf.float32))[..., tf.newaxis]
        return {"times": times, "values": values}

    config = compat.estimator.RunConfig(
        model_dir=str(tmp_path), tf_random_seed=1, save_summary_steps=1
    )
    estimator = estimators.LSTMAutoRegressor(
        periodicities=6, input_window_size=10, output_window_size=5, num_units=4, config=config
    )
    estimator.train(input_fn, steps=30)
    (events,) = tf.io.gfile.glob(str(tmp_path / "events*"))
    losses = [
        value.simple_value
        for event in tf1.train.summary_iterator(events)
        for value in event.summary.value
        if value.tag == "loss"
    ]
    assert len(losses) >= 30
    assert losses[-1] < losses[0]


@needs_keras_2
@pytest.mark.slow
def test_checkpoint_converter_carries_v1_training_over_to_v2(tmp_path, monkeypatch):
    from tensorflow_estimator.python.estimator.tools import checkpoint_converter

    monkeypatch.setattr(training_util, "write_graph", tf.io.write_graph)  # Not left out here.

    def input_fn():
        return tf.data.Dataset.from_tensors(({"x": toy.ROWS}, toy.LABELS)).repeat()

    columns = [tf.feature_column.numeric_column("x", shape=(3,))]
    old = compat.estimator_v1.DNNRegressor([4], columns, model_dir=str(tmp_path / "old"))
    old.train(input_fn, steps=5)
    checkpoint_converter.convert_checkpoint(
        "dnn",
        old.latest_checkpoint(),
        str(tmp_path / "old" / "graph.pbtxt"),
        str(tmp_path / "new" / "model.ckpt-5"),
    )
    new = compat.estimator.DNNRegressor([4], columns, model_dir=str(tmp_path / "new"))
    for name in ("dnn/hiddenlayer_0/kernel", "dnn/logits/bias"):
        value = tf.train.load_variable(str(tmp_path / "new" / "model.ckpt-5"), name)
        np.testing.assert_array_equal(value, old.get_variable_value(name))
    losses = [e.evaluate(input_fn, steps=1)["average_loss"] for e in (old, new)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_exported_names_are_marked():
    from tensorflow.python.util import tf_export
    from tensorflow_estimator.python.estimator import estimator_export

    class Exported:
        """A symbol that asks for a place under tf.estimator."""

    estimator_export.estimator_export("estimator.Exported", v1=["estimator.Old"])(Exported)
    assert Exported._estimator_api_names == ("estimator.Exported",)
    assert Exported._estimator_api_names_v1 == ["estimator.Old"]
    name = tf_export.get_canonical_name_for_symbol(compat.estimator.RunConfig, "estimator")
    assert name == "estimator.RunConfig"
