"""Every canned estimator, v1 and v2: it learns, predicts and exports."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from mtl.compat import keras
from tests import tiny

tf1 = tf.compat.v1
needs_keras_2 = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")

X = np.random.default_rng(1).uniform(-1, 1, size=(64, 1)).astype(np.float32)
CLASSES = (X > 0).astype(np.int64)
VALUES = 2 * X + 0.5


def _columns():
    return [tf.feature_column.numeric_column("x")]


def _input_fn(labels):
    def build():
        rows = {"x": X} if labels is None else ({"x": X}, labels)
        return tf.data.Dataset.from_tensor_slices(rows).batch(64)

    return build


def _train_fn(labels):
    return lambda: _input_fn(labels)().repeat()


def _serving_input_fn():
    spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
    return compat.estimator.export.build_parsing_serving_input_receiver_fn(spec)()


COLUMNS = {
    "DNN": lambda: {"hidden_units": [8], "feature_columns": _columns()},
    "Linear": lambda: {"feature_columns": _columns()},
    "DNNLinearCombined": lambda: {
        "linear_feature_columns": _columns(),
        "dnn_feature_columns": _columns(),
        "dnn_hidden_units": [8],
    },
    "Baseline": dict,
}
VERSIONS = {"v2": lambda: compat.estimator, "v1": lambda: compat.estimator_v1}


def _check_export(estimator, path, expected_key):
    path = estimator.export_saved_model(str(path), _serving_input_fn)
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(0.5)
    serve = tf.saved_model.load(path.decode()).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    assert expected_key in serve(
        **{name: tf.constant([example.SerializeToString(deterministic=True)])}
    )


def _trained(make, columns, labels, path):
    """An estimator that has trained, and its losses of the first step and after all of them."""
    config = compat.estimator.RunConfig(model_dir=str(path), tf_random_seed=1)
    estimator = make(config=config, **columns)
    estimator.train(_train_fn(labels), steps=41)
    (first,) = [value for (_, tag), value in tiny.scalars(path).items() if tag == "loss"]
    metrics = estimator.evaluate(_input_fn(labels))
    assert "average_loss" in metrics
    return estimator, (first, metrics["loss"])


@needs_keras_2
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.drawn(2)
def test_classifier(kind, version, tmp_path):
    make = getattr(VERSIONS[version](), f"{kind}Classifier")
    estimator, losses = _trained(make, COLUMNS[kind](), CLASSES, tmp_path / "model")
    assert losses[1] < losses[0]
    probabilities = [p["probabilities"] for p in estimator.predict(_input_fn(None))]
    np.testing.assert_allclose(np.sum(probabilities, axis=1), 1, rtol=1e-5)
    _check_export(estimator, tmp_path / "export", "scores")


@needs_keras_2
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.drawn(3)
def test_regressor(kind, version, tmp_path):
    make = getattr(VERSIONS[version](), f"{kind}Regressor")
    estimator, losses = _trained(make, COLUMNS[kind](), VALUES, tmp_path / "model")
    assert losses[1] < losses[0]
    _check_export(estimator, tmp_path / "export", "outputs")


@needs_keras_2
@pytest.mark.slow
@pytest.mark.parametrize("kind", COLUMNS)
def test_estimator_with_own_head(kind, tmp_path):
    make = getattr(compat.estimator, f"{kind}Estimator")
    head = compat.estimator.BinaryClassHead()
    estimator = make(head, model_dir=str(tmp_path), **COLUMNS[kind]())
    estimator.train(_train_fn(CLASSES), steps=5)
    assert "average_loss" in estimator.evaluate(_input_fn(CLASSES))


@pytest.mark.medium
@needs_keras_2
def test_linear_classifier_equals_logistic_regression_step(tmp_path):
    estimator = compat.estimator.LinearClassifier(
        _columns(), model_dir=str(tmp_path), optimizer=tf.keras.optimizers.legacy.SGD(1.0)
    )
    estimator.train(_train_fn(CLASSES), steps=1)
    error = 0.5 - CLASSES  # sigmoid(0) - label
    weights = estimator.get_variable_value("linear/linear_model/x/weights")
    np.testing.assert_allclose(weights[0, 0], -np.mean(error * X), rtol=1e-4)
    bias = estimator.get_variable_value("linear/linear_model/bias_weights")
    np.testing.assert_allclose(bias[0], -np.mean(error), atol=1e-6)


@needs_keras_2
@pytest.mark.slow
@pytest.mark.parametrize("name", ["RNNClassifier", "RNNEstimator"])
def test_recurrent(name, tmp_path):
    column = tf.feature_column.sequence_numeric_column("x")
    settings = {"units": [4], "model_dir": str(tmp_path)}
    if name == "RNNEstimator":
        settings["head"] = compat.estimator.BinaryClassHead()
    estimator = getattr(compat.estimator.experimental, name)(
        sequence_feature_columns=[column], **settings
    )

    def input_fn():
        rows = tf.sparse.from_dense(tf.constant([[1.0, 2.0], [-3.0, -4.0]]))
        return {"x": rows}, tf.constant([[1], [0]])

    # From some first weights, which no seed reaches, 30 steps are too few.
    estimator.train(input_fn, steps=300)
    assert estimator.evaluate(input_fn, steps=1)["accuracy"] == 1.0


@pytest.mark.medium
def test_kmeans_finds_the_centres(tmp_path):
    points = np.concatenate([np.full((8, 2), -3.0), np.full((8, 2), 4.0)]).astype(np.float32)
    points += np.random.default_rng(2).normal(scale=0.01, size=points.shape)

    def input_fn():
        return tf.data.Dataset.from_tensors(points.astype(np.float32)).repeat(10)

    estimator = compat.estimator_v1.experimental.KMeans(
        2,
        model_dir=str(tmp_path),
        use_mini_batch=False,
        seed=3,
        initial_clusters="kmeans_plus_plus",
    )
    estimator.train(input_fn)
    centres = estimator.cluster_centers()
    expected = [points[:8].mean(axis=0), points[8:].mean(axis=0)]
    np.testing.assert_allclose(centres[np.argsort(centres[:, 0])], expected, atol=1e-4)
    indices = list(estimator.predict_cluster_index(input_fn))
    assert len(set(indices[:8])) == len(set(indices[8:16])) == 1


@pytest.mark.medium
def test_baseline_v1_needs_no_keras(tmp_path):
    estimator = compat.estimator_v1.BaselineRegressor(
        model_dir=str(tmp_path), optimizer=tf1.train.GradientDescentOptimizer(0.005)
    )
    estimator.train(_train_fn(VALUES), steps=60)
    prediction = next(estimator.predict(_input_fn(None)))["predictions"]
    np.testing.assert_allclose(prediction, VALUES.mean(), rtol=1e-3)


def test_parse_example_specs():
    spec = compat.estimator.classifier_parse_example_spec(_columns(), "y", tf.int64)
    assert spec["y"] == tf.io.FixedLenFeature((1,), tf.int64)
    spec = compat.estimator.regressor_parse_example_spec(_columns(), "y")
    assert set(spec) == {"x", "y"}


@pytest.mark.medium
def test_numpy_and_pandas_input(tmp_path):
    inputs = compat.estimator_v1.inputs
    numpy_fn = inputs.numpy_input_fn({"x": X}, VALUES, batch_size=16, num_epochs=1, shuffle=False)
    estimator = compat.estimator_v1.BaselineRegressor(model_dir=str(tmp_path))
    estimator.train(numpy_fn)
    assert estimator.get_variable_value("global_step") == 4
    pandas = pytest.importorskip("pandas")
    pandas_fn = inputs.pandas_input_fn(
        pandas.DataFrame({"x": X[:, 0]}), pandas.Series(VALUES[:, 0]), num_epochs=1, shuffle=False
    )
    assert np.isfinite(estimator.evaluate(pandas_fn)["loss"])
