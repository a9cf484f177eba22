"""The results of `evaluate` and `predict`."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from tests.compat import toy

tf1 = tf.compat.v1
api = compat.estimator


def _input_fn():
    return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[1.0], [2.0]])).repeat(2)


def _estimator(path, predictions=None, metrics=None, loss=None):
    """Builds predictions and metrics by function, inside the graph."""

    def model_fn(features, labels, mode):
        with tf.control_dependencies([features["x"]]):  # so that the input comes to its end
            return api.EstimatorSpec(
                mode,
                loss=tf.identity(loss() if loss else tf.constant(1.0)),
                train_op=tf1.assign_add(tf1.train.get_global_step(), 1),
                predictions=tf.nest.map_structure(
                    tf.identity, predictions() if predictions else {}
                ),
                eval_metric_ops=metrics() if metrics else None,
            )

    estimator = api.Estimator(model_fn, str(path))
    estimator.train(_input_fn, steps=1)
    return estimator


def _rows():
    return {"a": tf.constant([[10.0], [12.0]]), "b": tf.constant([[0.0], [2.0]])}


class _Counter(api.SessionRunHook):
    runs = 0

    def before_run(self, run_context):
        self.runs += 1


@pytest.mark.medium
def test_rows_of_predictions(tmp_path):
    estimator = _estimator(tmp_path / "dict", _rows)
    assert next(estimator.predict(_input_fn)) == {"a": [10.0], "b": [0.0]}
    assert list(estimator.predict(_input_fn))[-1] == {"a": [12.0], "b": [2.0]}
    assert next(estimator.predict(_input_fn, predict_keys=["a"])) == {"a": [10.0]}
    batch = next(estimator.predict(_input_fn, yield_single_examples=False))
    np.testing.assert_array_equal(batch["a"], [[10.0], [12.0]])
    hook = _Counter()
    rows = estimator.predict(_input_fn, hooks=[hook])
    assert hook.runs == 0
    assert [next(rows) and hook.runs for _ in range(3)] == [1, 1, 2]  # a batch at a time
    with pytest.raises(ValueError, match="Expected to run at least one output from"):
        next(estimator.predict(_input_fn, predict_keys=["c"]))


@pytest.mark.medium
def test_a_tensor_of_predictions(tmp_path):
    estimator = _estimator(tmp_path, lambda: tf.constant([[10.0], [12.0]]))
    assert list(estimator.predict(_input_fn)) == [10.0, 12.0] * 2
    with pytest.raises(ValueError, match="predict_keys argument is not valid"):
        next(estimator.predict(_input_fn, predict_keys=["a"]))


@pytest.mark.medium
def test_predictions_of_several_lengths(tmp_path):
    estimator = _estimator(tmp_path, lambda: {"a": tf.zeros([3]), "b": tf.zeros([5, 3])})
    with pytest.raises(ValueError, match="Batch length of predictions should be same"):
        next(estimator.predict(_input_fn))
    batch = next(estimator.predict(_input_fn, yield_single_examples=False))
    assert (batch["a"].shape, batch["b"].shape) == ((3,), (5, 3))


@pytest.mark.medium
def test_a_checkpoint_is_chosen_or_none_is_there(tmp_path):
    config = api.RunConfig(save_checkpoints_steps=2)
    estimator = api.Estimator(toy.model_fn, str(tmp_path / "one"), config=config)
    estimator.train(toy.input_fn, steps=4)
    early = str(tmp_path / "one" / "model.ckpt-2")
    for path, steps in ((early, 2), (None, 4)):
        metrics = estimator.evaluate(toy.input_fn, steps=1, checkpoint_path=path)
        assert metrics["global_step"] == steps
        kernel = toy.descend(steps)
        np.testing.assert_allclose(metrics["mse"], toy.mean_squared_error(kernel), rtol=1e-4)
        found = next(estimator.predict(toy.input_fn, checkpoint_path=path))["y"]
        np.testing.assert_allclose(found, (toy.ROWS @ kernel)[0], rtol=1e-4)
    fresh = api.Estimator(toy.model_fn, str(tmp_path / "two"))
    np.testing.assert_array_equal(next(fresh.predict(toy.input_fn))["y"], [0.0])
    with pytest.raises(ValueError, match="not a valid checkpoint"):
        next(fresh.predict(toy.input_fn, checkpoint_path=str(tmp_path / "nowhere")))


@pytest.mark.medium
def test_the_loss_is_a_mean_and_metrics_may_be_nested(tmp_path):
    def loss():
        count = tf1.get_variable(
            "count", initializer=0.0, trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
        )
        return 2 * count.assign_add(1.0)

    def metrics():
        return {"nested": (((tf.constant(2.0), tf.constant(1)), tf.constant(3.0)), tf.no_op())}

    estimator = _estimator(tmp_path, metrics=metrics, loss=loss)
    found = estimator.evaluate(lambda: _input_fn().repeat(), steps=5)
    assert found["loss"] == pytest.approx((2 + 4 + 6 + 8 + 10) / 5)
    assert found["nested"] == ((2.0, 1), 3.0)
    wrong = _estimator(tmp_path / "wrong", metrics=lambda: {"global_step": tf1.metrics.mean(1.0)})
    with pytest.raises(ValueError, match="Metric with name `global_step` is not allowed"):
        wrong.evaluate(_input_fn)
