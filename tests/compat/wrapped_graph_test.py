"""Model functions and receivers as functions; object-based checkpoints of an Estimator."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator.export import function

from mtl import compat
from mtl.compat import keras

tf1 = tf.compat.v1
api = compat.estimator
needs_keras_2 = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


def _model_fn(features, labels, mode):
    value = tf.Variable(lambda: tf.constant(23), name="v")
    results = {"train": lambda: features * labels, "eval": lambda: features + labels}
    return api.EstimatorSpec(
        mode,
        loss=tf.constant(5) + value,
        predictions=results.get(mode, lambda: features + 1)(),
        train_op=tf1.assign_add(tf1.train.get_global_step(), 1) if mode == "train" else None,
    )


@pytest.mark.parametrize(("mode", "expected"), [("train", 12), ("eval", 7), ("infer", 4)])
def test_a_model_function_becomes_a_function(mode, expected):
    graph = function._EstimatorWrappedGraph()
    features, labels = tf.constant(3), None if mode == "infer" else tf.constant(4)
    run = graph.wrap_model_fn(_model_fn, mode=mode, args=[features, labels, mode], kwargs={})
    inputs = [features] if labels is None else [features, labels]
    assert run(*inputs)["predictions"].numpy() == expected
    assert graph.global_step.numpy() == int(mode == "train")
    assert graph.estimator_spec.mode == mode


def test_input_receivers_become_functions():
    def receiver():
        one, two = tf1.placeholder(tf.string), tf1.placeholder(tf.string)
        joined = tf.strings.join([one, two])
        again = tf.identity(joined)
        features = {"text": tf.strings.join([joined, again], ":"), "constant": tf.constant([1])}
        alternatives = {"single": joined, "pair": {"a": joined, "b": again}}
        return api.export.ServingInputReceiver(features, {"1": one, "2": two}, alternatives)

    found = function._EstimatorWrappedGraph().wrap_input_receiver_fn(receiver)
    found = {name: call for call, name in found}
    for name, inputs, text in [
        (None, "12", b"12:12"),
        ("single", "3", b"3:3"),
        ("pair", "45", b"4:5"),
    ]:
        features = found[name](*[tf.constant(value) for value in inputs])
        assert features["text"].numpy() == text
        np.testing.assert_array_equal(features["constant"], [1])


def _pieces(step):
    """A Keras model, its optimizer, and the checkpoint that holds both and the step."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(5), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.legacy.Adam(0.01)
    checkpoint = tf.train.Checkpoint(step=step, optimizer=optimizer, model=model)
    return model, optimizer, checkpoint


def _update(model, optimizer, inputs):
    with tf.GradientTape() as tape:
        output = model(inputs)
        loss = tf.reduce_sum(output)
    gradients = tape.gradient(loss, model.trainable_variables)
    pairs = zip(gradients, model.trainable_variables, strict=True)
    return output, loss, optimizer.apply_gradients(pairs)


def _object_model_fn(features, labels, mode):
    model, optimizer, checkpoint = _pieces(tf1.train.get_or_create_global_step())
    checkpoint.save_counter  # noqa: B018  creates the variable that restoring asserts on
    output, loss, update = _update(model, optimizer, features["x"])
    rows = tf.shape(output)[:1]
    return api.EstimatorSpec(
        mode,
        loss=loss,
        train_op=tf.group(update, checkpoint.step.assign_add(1)),
        predictions={
            "output": output,
            "bias": tf.tile(model.layers[1].bias[tf.newaxis], [rows[0], 1]),
            "step": tf.fill(rows, checkpoint.step),
        },
        scaffold=tf1.train.Scaffold(saver=checkpoint),
    )


def _rows():
    return tf.data.Dataset.from_tensors({"x": [[1.0]]}).map(lambda x: (x, x["x"])).repeat()


@pytest.mark.medium
@needs_keras_2
def test_object_checkpoints_go_both_ways(tmp_path):
    estimator = api.Estimator(_object_model_fn, str(tmp_path / "one"))
    estimator.train(_rows, steps=3)
    model, optimizer, checkpoint = _pieces(tf.Variable(0, dtype=tf.int64))
    status = checkpoint.restore(estimator.latest_checkpoint())
    assert checkpoint.step.numpy() == 3
    _update(model, optimizer, tf.constant([[1.0]]))
    status.assert_consumed()
    checkpoint.step.assign(40)
    model.layers[1].bias.assign([13.0])
    checkpoint.save(f"{tmp_path}/two/")
    again = api.Estimator(_object_model_fn, f"{tmp_path}/two/")
    prediction = next(again.predict(_rows))
    assert (prediction["step"], prediction["bias"].tolist()) == (40, [13.0])


@pytest.mark.medium
@needs_keras_2
def test_object_checkpoints_export(tmp_path):
    estimator = api.Estimator(_object_model_fn, str(tmp_path / "model"))
    estimator.train(_rows, steps=1)

    def receiver():
        rows = tf1.placeholder(tf.float32, [None, 1], name="input")
        return api.export.ServingInputReceiver({"x": rows}, rows)

    path = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    outputs = tf.saved_model.load(path).signatures["serving_default"](tf.constant([[1.0]]))
    expected = next(estimator.predict(_rows))
    np.testing.assert_allclose(outputs["output"], [expected["output"]], rtol=1e-6)
