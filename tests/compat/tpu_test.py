"""TPUEstimator without a TPU, and the stand-ins for parts that need a TPU."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from mtl.compat import errors, tpu
from tests.compat import toy

tf1 = tf.compat.v1


@pytest.mark.medium
def test_tpu_estimator_on_cpu(tmp_path):
    api = compat.estimator_v1.tpu

    def model_fn(features, labels, mode, params):
        assert params["batch_size"] == 32
        spec = toy.model_fn(features, labels, mode, {})
        if mode == "infer":
            return api.TPUEstimatorSpec(mode, predictions=spec.predictions)
        return api.TPUEstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op)

    config = api.RunConfig(model_dir=str(tmp_path), tpu_config=api.TPUConfig(iterations_per_loop=2))
    estimator = api.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=False,
        train_batch_size=32,
        eval_batch_size=32,
        predict_batch_size=32,
    )
    estimator.train(lambda params: toy.input_fn(params["batch_size"]), steps=4)
    np.testing.assert_allclose(estimator.get_variable_value("kernel"), toy.descend(4), rtol=1e-5)
    loss = estimator.evaluate(lambda params: toy.input_fn(), steps=1)["loss"]
    np.testing.assert_allclose(loss, toy.mean_squared_error(toy.descend(4)), rtol=1e-4)


def test_stand_ins_refuse():
    with pytest.raises(errors.CompatError, match="without AdamParameters"):
        tpu.AdamParameters(0.1)
    assert tpu.AdamParameters is tpu.AdamParameters
    assert issubclass(tpu.AdamParameters, object)
