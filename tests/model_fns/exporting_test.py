"""An export of any Estimator is published if it predicts as the Estimator does."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, model_fns, spec
from mtl.serving import verification
from tests import tiny

tf1 = tf.compat.v1
SPEC = spec.Spec(features={"x": ("float32", (3,))}, labels={})


def _read_rows():
    return tf.data.Dataset.from_tensor_slices({"x": tiny.SPLITS["test"]["x"]}).batch(16)


def _changed(trained, change):
    """The Estimator, with another spec for predictions."""

    def model_fn(features, labels, mode, config):
        return change(trained.estimator.model_fn(features, labels, mode, config))

    return compat.estimator.Estimator(model_fn, config=trained.estimator.config)


@pytest.mark.medium
def test_export_predicts_as_the_estimator(trained, tmp_path):
    path = model_fns.export(trained.estimator, str(tmp_path), SPEC, _read_rows)
    assert pathlib.Path(path).parent == tmp_path
    served = tf.saved_model.load(path).signatures["serving_default"]
    found = served(examples=tf.constant(tiny.examples("test")))
    expected = list(trained.estimator.predict(_read_rows))
    for name in ("sign", "size"):
        wanted = np.array([row[name] for row in expected])
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.medium
def test_export_that_predicts_otherwise_is_refused(trained, tmp_path):
    def change(made):
        # In training's way: a draw for each row.
        noise = tf.random.uniform(tf.shape(made.predictions["size"]))
        output = compat.estimator.export.PredictOutput({"size": noise})
        return made._replace(export_outputs={"serving_default": output})

    estimator = _changed(trained, change)
    with pytest.raises(verification.RefusedError):
        model_fns.export(estimator, str(tmp_path), SPEC, _read_rows)
    assert not [path for path in tmp_path.iterdir() if path.name.isdigit()]


@pytest.mark.medium
def test_output_that_cannot_be_compared_is_refused(trained, tmp_path):
    def change(made):
        output = compat.estimator.export.PredictOutput({"other": made.predictions["size"]})
        return made._replace(export_outputs={"serving_default": output})

    with pytest.raises(checks.UserError, match="output 'other' .* the name of a prediction"):
        model_fns.export(_changed(trained, change), str(tmp_path), SPEC, _read_rows)


@pytest.mark.medium
def test_an_empty_dataset_and_a_scalar_are_one_line_each(trained, tmp_path):
    def change(made):
        return made._replace(predictions={**made.predictions, "rate": tf.constant(0.5)})

    with pytest.raises(checks.UserError, match="'rate' must have a value for each row"):
        model_fns.export(_changed(trained, change), str(tmp_path), SPEC, _read_rows)
    message = "the dataset of an export must have rows for its checks, got 'none'"
    with pytest.raises(checks.UserError, match=message):
        model_fns.export(trained.estimator, str(tmp_path), SPEC, lambda: _read_rows().take(0))


@pytest.mark.medium
def test_the_heads_of_a_multi_head_are_compared(tmp_path):
    """Its predictions have pairs of names, and its signatures names with a slash."""
    estimator_lib = compat.estimator

    def model_fn(features, labels, mode):
        shared = tf1.layers.dense(features["x"], 4, name="shared")
        heads = [estimator_lib.RegressionHead(name=name) for name in ("size", "sign")]
        logits = {head.name: tf1.layers.dense(shared, 1, name=head.name) for head in heads}
        return estimator_lib.MultiHead(heads).create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            train_op_fn=lambda loss: _minimize(loss),
            trainable_variables=tf1.trainable_variables(),
            update_ops=[],
        )

    def read():
        labels = {"size": [1.0], "sign": [0.0]}
        return _read_rows().unbatch().map(lambda rows: (rows, labels)).batch(8)

    estimator = estimator_lib.Estimator(model_fn, str(tmp_path / "run"))
    estimator.train(read, max_steps=1)
    path = model_fns.export(estimator, str(tmp_path / "models"), SPEC, _read_rows)
    assert {"size/predict", "sign/predict"} <= tf.saved_model.load(path).signatures.keys()


def _minimize(loss):
    step = tf1.train.get_or_create_global_step()
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss, step)


def _read_labels():
    return _read_rows().map(lambda features: (features, {"y": 1}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": "models", "folder": None}, "estimator must be an Estimator, got 'models'"),
        ({"folder": None}, "folder must be a path, got None"),
        ({"spec": {"x": "float32"}}, "spec must be a spec.Spec"),
        ({"make_dataset": [{"x": 1}]}, "make_dataset must return .*, as a function, got"),
        (
            {"make_dataset": lambda: None},
            "make_dataset must return a tf.data.Dataset of .*, got None",
        ),
        ({"make_dataset": _read_labels}, "got .* Leave out the labels"),
        (
            {"make_dataset": lambda: _read_rows().map(lambda rows: {**rows, "row": 1})},
            r"must return the features of the spec, x, got \['row', 'x'\]",
        ),
        (
            {"spec": dataclasses.replace(SPEC, features={"x": ("int64", (3,))}, defaults={})},
            "make_dataset: 'x' must be int64, as in the spec, got tf.float32",
        ),
    ],
    ids=[
        "swapped",
        "no folder",
        "no spec",
        "rows",
        "nothing",
        "labels",
        "another feature",
        "another type",
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, tmp_path):
    given = {"folder": str(tmp_path), "spec": SPEC, "make_dataset": _read_rows, **arguments}
    estimator = compat.estimator.Estimator(lambda features, labels, mode: None, str(tmp_path))
    with pytest.raises(checks.UserError, match=message) as error:
        model_fns.export(**{"estimator": estimator, **given})
    assert "\n" not in str(error.value)


def test_estimators_of_v1_are_estimators(tmp_path):
    def model_fn(features, labels, mode):
        raise AssertionError

    estimator = compat.estimator_v1.Estimator(model_fn, str(tmp_path))
    with pytest.raises(checks.UserError, match="--checkpoint"):  # It is asked for a checkpoint.
        model_fns.export(estimator, tmp_path / "models", SPEC, _read_rows)
