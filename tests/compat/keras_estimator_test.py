"""model_to_estimator over kinds of models and checkpoints, metrics, weights, exports, mistakes."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator import keras_lib
from tensorflow_estimator.python.estimator.run_config import get_default_session_config

from mtl import compat
from mtl.compat import keras

tf1 = tf.compat.v1
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras"),
]
to_estimator = tf.keras.estimator.model_to_estimator if keras.in_use().startswith("2.") else None

X = np.random.default_rng(5).normal(size=(64, 10)).astype(np.float32)
Y = np.eye(2, dtype=np.float32)[(X[:, 0] > 0).astype(int)]


@pytest.fixture(autouse=True)
def _fresh_names():
    yield
    tf.keras.backend.clear_session()


def _layers():
    return [
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(2, activation="softmax", name="out"),
    ]


def _sequential():
    return tf.keras.Sequential([tf.keras.Input([10], name="x"), *_layers()])


def _functional():
    inputs = outputs = tf.keras.Input([10], name="x")
    for layer in _layers():
        outputs = layer(outputs)
    return tf.keras.Model(inputs, outputs)


def _subclassed():
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.drop, self.last = _layers()

        def call(self, inputs):
            return self.last(self.drop(self.first(inputs)))

        def get_config(self):
            return {}

        @classmethod
        def from_config(cls, config):
            return cls()

    return Model()


def _compile(model, optimizer="rmsprop", loss="categorical_crossentropy", **more):
    model.compile(optimizer, loss, **{"metrics": ["accuracy"]} | more)
    return model


def _input_fn(repeat=True, labels=True):
    rows = tf.data.Dataset.from_tensor_slices((X, Y) if labels else X)
    return (rows.repeat() if repeat else rows).batch(16)


def _once():
    return _input_fn(repeat=False)


class _VariableHook(tf1.train.SessionRunHook):
    """Makes a variable that is in no checkpoint."""

    def begin(self):
        tf1.get_variable("temporary", [1])


KINDS = {
    "sequential, saver": (_sequential, "saver", False, None),
    "functional, checkpoint": (_functional, "checkpoint", False, None),
    "functional, fitted, v1 optimizer": (_functional, "saver", True, None),
    "sequential, fitted, checkpoint": (_sequential, "checkpoint", True, None),
    "subclassed, hook": (_subclassed, "saver", False, _VariableHook),
    "subclassed, fitted, hook": (_subclassed, "saver", True, _VariableHook),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind, tmp_path):
    make, checkpoint_format, fit, hook = KINDS[kind]
    v1_optimizer = fit or make is _subclassed
    optimizer = tf1.train.RMSPropOptimizer(1e-2) if v1_optimizer else "rmsprop"
    model = _compile(make(), optimizer)
    if fit:
        model.fit(X, Y, epochs=1, verbose=0)
    config = compat.estimator.RunConfig(str(tmp_path), tf_random_seed=1)
    estimator = to_estimator(model, config=config, checkpoint_format=checkpoint_format)
    losses = []
    for steps in (2, 40):
        estimator.train(_input_fn, steps=steps, hooks=[hook()] if hook else None)
        losses.append(estimator.evaluate(_once)["loss"])
    assert losses[1] < losses[0]
    assert estimator.evaluate(_once)["global_step"] == 42


METRICS = ["binary_accuracy", "cosine_proximity", "hinge", "kullback_leibler_divergence"]
METRICS += ["mean_absolute_error", "mean_squared_error", "poisson", "top_k_categorical_accuracy"]


def test_metrics_are_those_of_the_model(tmp_path):
    model = _compile(_functional(), "adam", metrics=METRICS)
    model.fit(X, Y, epochs=1, verbose=0)
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    found = to_estimator(model, model_dir=str(tmp_path)).evaluate(_once)
    for name in METRICS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, err_msg=name)


def _two_in_two_out():
    inputs = [tf.keras.Input([16], name=name) for name in "ab"]
    merged = tf.keras.layers.concatenate([tf.keras.layers.Dense(8)(x) for x in inputs])
    outputs = [
        tf.keras.layers.Dense(n, "softmax", name=name)(merged) for n, name in ((3, "c"), (2, "d"))
    ]
    metrics = dict.fromkeys("cd", "categorical_accuracy")
    return _compile(tf.keras.Model(inputs, outputs), metrics=metrics)


def _batch_of(rows):
    return lambda: tf.data.Dataset.from_tensor_slices(rows).batch(20)


def test_several_inputs_and_outputs(tmp_path):
    generator = np.random.default_rng(6)
    features = [generator.normal(size=(20, 16)).astype(np.float32) for _ in "ab"]
    labels = [np.eye(n, dtype=np.float32)[generator.integers(n, size=20)] for n in (3, 2)]
    model = _two_in_two_out()
    expected = model.evaluate(features, labels, verbose=0, return_dict=True)
    weights = model.get_weights()
    forms = {
        "tuples": (tuple(features), tuple(labels)),
        "dicts": (dict(zip("ab", features, strict=True)), dict(zip("cd", labels, strict=True))),
    }
    renamed = {"c_categorical_accuracy": "c1", "d_categorical_accuracy": "d1"}
    for form, mapped in {"tuples": {}, "dicts": renamed}.items():
        model = _two_in_two_out()
        model.set_weights(weights)
        estimator = to_estimator(
            model, model_dir=str(tmp_path / form), metric_names_map=mapped or None
        )
        found = estimator.evaluate(_batch_of(forms[form]))
        for name in renamed:
            np.testing.assert_allclose(found[mapped.get(name, name)], expected[name], rtol=1e-4)


def test_weights_of_examples(tmp_path):
    inputs = tf.keras.Input([1], name="x")
    model = _compile(tf.keras.Model(inputs, inputs), "adam", "mean_absolute_error", metrics=None)
    features, labels = [[0.0], [0.0], [1.0], [1.0]], [[0.0], [1.0], [0.0], [1.0]]
    weights = [0.0, 0.4, 1.0, 1.0]

    def input_fn():
        rows = {"features": features, "sample_weights": weights}
        return tf.data.Dataset.from_tensors((rows, labels))

    loss = to_estimator(model, model_dir=str(tmp_path)).evaluate(input_fn, steps=1)["loss"]
    np.testing.assert_allclose(loss, (0.4 + 1.0) / 4, rtol=1e-6)


def test_from_a_file(tmp_path):
    model = _compile(_functional())
    model.fit(X, Y, epochs=1, verbose=0)
    expected = model.predict(X, verbose=0)
    path = str(tmp_path / "model.h5")
    model.save(path)
    estimator = to_estimator(keras_model_path=path, model_dir=str(tmp_path / "model"))
    found = [p["out"] for p in estimator.predict(lambda: _input_fn(False, labels=False))]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("checkpoint_format", ["saver", "checkpoint"])
def test_exports_untrained_with_signatures_of_ones_own(checkpoint_format, tmp_path):
    outputs = compat.estimator.export
    spec = {name: tf.io.FixedLenFeature([1], tf.float32) for name in "ab"}
    serving = outputs.build_parsing_serving_input_receiver_fn(spec)
    kernels = []

    def export(folder, **signatures):
        a, b = tf.keras.Input([1], name="a"), tf.keras.Input([1], name="b")
        layers = {"c": tf.keras.layers.Dense(1, name="c")(a)}
        layers["d"] = tf.keras.layers.Dense(1, "sigmoid", name="d")(b)
        model = tf.keras.Model({"a": a, "b": b}, layers)
        model.compile("sgd", {"c": "mse", "d": "binary_crossentropy"})
        model.train_on_batch(*[{name: np.ones([1, 1]) for name in names} for names in ("ab", "cd")])
        kernels.append(model.get_layer("c").get_weights())
        estimator = to_estimator(
            model,
            model_dir=str(tmp_path / folder),
            checkpoint_format=checkpoint_format,
            export_outputs=signatures,
        )
        return estimator.export_saved_model(str(tmp_path / f"{folder}_export"), serving).decode()

    path = export("one", c=outputs.RegressionOutput, d=outputs.ClassificationOutput)
    signatures = tf.saved_model.load(path).signatures
    assert {"c", "d", "serving_default"} <= set(signatures)
    example = tf.train.Example()
    for name, value in {"a": 3.0, "b": 0.0}.items():
        example.features.feature[name].float_list.value.append(value)
    (name,) = signatures["c"].structured_input_signature[1]
    rows = {name: tf.constant([example.SerializeToString(deterministic=True)])}
    kernel, bias = kernels[0]
    np.testing.assert_allclose(signatures["c"](**rows)["outputs"], 3.0 * kernel + bias, rtol=1e-6)
    with pytest.raises(keras_lib.FormattedKeyError, match="Missed keys"):
        export("two", c=outputs.RegressionOutput, p=outputs.ClassificationOutput)


def test_starts_from_a_keras_checkpoint(tmp_path):
    model = _compile(_functional(), tf1.train.RMSPropOptimizer(1e-3))
    model.fit(X, Y, epochs=1, verbose=0)
    expected = model.predict(X, verbose=0)
    config = compat.estimator.RunConfig(str(tmp_path))
    estimator = to_estimator(model, config=config, checkpoint_format="saver")
    found = [p["out"] for p in estimator.predict(lambda: _input_fn(False, labels=False))]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_subclassed_model_gets_its_state_back(tmp_path):
    model = _compile(_subclassed(), tf1.train.RMSPropOptimizer(1e-3))
    model.fit(X, Y, epochs=1, verbose=0)
    optimizer = model.optimizer
    before = tf.keras.backend.get_value(optimizer.iterations)
    to_estimator(model, model_dir=str(tmp_path), checkpoint_format="saver").train(
        _input_fn, steps=2
    )
    assert model.optimizer is optimizer
    assert tf.keras.backend.get_value(optimizer.iterations) == before


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_recurrent_layers(layer, tmp_path):
    make = getattr(tf.keras.layers, layer)
    layers = [tf.keras.layers.Reshape([10, 1], input_shape=[10]), make(4), tf.keras.layers.Dense(2)]
    model = _compile(tf.keras.Sequential(layers), "sgd", "mse")
    estimator = to_estimator(model, model_dir=str(tmp_path), checkpoint_format="checkpoint")
    estimator.train(_input_fn, steps=1)
    assert np.isfinite(estimator.evaluate(_once)["loss"])


def test_feature_columns_in_a_model(tmp_path):
    column = tf.feature_column.categorical_column_with_identity("x", 3)
    inputs = {"x": tf.keras.Input([1], dtype=tf.int64, name="x")}
    features = tf1.keras.layers.DenseFeatures([tf.feature_column.indicator_column(column)])(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="y")(features))
    model.compile("rmsprop", "mse")
    rows = {"x": np.array([0, 1, 2])}
    make = compat.estimator_v1.inputs.numpy_input_fn
    estimator = to_estimator(model, model_dir=str(tmp_path))
    estimator.train(make(rows, np.ones([3, 1]), num_epochs=1, shuffle=False))
    assert np.isfinite(estimator.evaluate(make(rows, np.ones([3, 1]), shuffle=False))["loss"])


def test_config_and_model_dir(tmp_path, monkeypatch):
    for config in (compat.estimator.RunConfig(), None):
        model = _compile(_sequential())
        estimator = to_estimator(model, model_dir=str(tmp_path / "one"), config=config)
        assert estimator.config.session_config == get_default_session_config()
        assert estimator.config.model_dir == estimator.model_dir == str(tmp_path / "one")
    there = compat.estimator.RunConfig("there")
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunConfig`"):
        to_estimator(_compile(_sequential()), model_dir="here", config=there)
    jobs = {"ps": ["localhost:1"], "worker": ["localhost:2"], "master": ["localhost:3"]}
    place = {"cluster": jobs, "task": {"type": "master", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    estimator = to_estimator(_compile(_sequential()), model_dir=str(tmp_path / "two"))
    assert estimator.config.num_ps_replicas == 1


def test_mistakes(tmp_path):
    with pytest.raises(ValueError, match="Either"):
        to_estimator()
    with pytest.raises(ValueError, match="not both"):
        to_estimator(_sequential(), "path")
    with pytest.raises(ValueError, match="compiled"):
        to_estimator(_sequential())
    for mapped, message in [
        ({"binary_acc": ""}, "do not exist"),
        ({"binary_accuracy": "acc", "abc": ""}, "unexpected keys"),
    ]:
        model = _compile(_functional(), metrics=["binary_accuracy"])
        estimator = to_estimator(model, model_dir=str(tmp_path), metric_names_map=mapped)
        with pytest.raises(ValueError, match=f"(?s)Invalid `metric_names_map`.*{message}"):
            estimator.evaluate(_once)
    estimator = to_estimator(_compile(_functional()), model_dir=str(tmp_path))
    for features, labels, names in [
        ({"wrong": X}, Y, "features keys:.*wrong.*Missed keys:.*x"),
        ({"x": X}, {"wrong": Y}, "labels keys:.*wrong.*Missed keys:.*out"),
    ]:
        with pytest.raises(keras_lib.FormattedKeyError, match=f"(?s){names}"):
            estimator.train(lambda f=features, y=labels: (f, y), steps=1)


def test_custom_objects(tmp_path):
    def capped(x):
        return tf.keras.backend.relu(x, max_value=6)

    def model():
        inputs = tf.keras.Input([10], name="x")
        outputs = tf.keras.layers.Dense(2, activation=capped, name="out")(inputs)
        return _compile(tf.keras.Model(inputs, outputs), "adam", "mse")

    with pytest.raises((TypeError, ValueError), match="capped"):
        to_estimator(model(), model_dir=str(tmp_path / "one")).train(_input_fn, steps=1)
    estimator = to_estimator(
        model(), model_dir=str(tmp_path / "two"), custom_objects={"capped": capped}
    )
    estimator.train(_input_fn, steps=1)
    assert estimator.evaluate(_once)["global_step"] == 1
