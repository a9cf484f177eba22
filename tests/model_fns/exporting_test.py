"""An export of any Estimator is published if it predicts as the Estimator does."""

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
