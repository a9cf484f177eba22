"""Replicas of a `model_fn` written by hand step as one device does with the rows of all."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, model_fns
from mtl.optimization import clipping, optimizers, regularization, update
from tests import tiny
from tests.model_fns import twin

tf1 = tf.compat.v1

ROWS = tiny.SPLITS["train"]


def _read(size):
    features, labels = {"x": ROWS["x"]}, {"sign": ROWS["sign"], "size": ROWS["size"]}
    rows = tf.data.Dataset.from_tensor_slices((features, labels))
    return rows.batch(size, drop_remainder=True).repeat()


def _model_fn(features, labels, mode, params):
    penalty = (
        (lambda kernel: tf.reduce_sum(kernel**2)) if "weights" in params["penalties"] else None
    )
    with tf1.variable_scope("", regularizer=penalty):
        shared = tf.tanh(twin.dense(features["x"], 4, "hidden"))
    if "rows" in params["penalties"]:
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, tf.reduce_mean(shared**2))
    logits = {task: tf.squeeze(twin.dense(shared, 1, task), -1) for task in ("sign", "size")}
    rows = twin.row_losses(logits, labels)
    step = model_fns.build_step(
        {task: tf.reduce_mean(of) for task, of in rows.items()},
        update=update.Update(
            optimizer=optimizers.SGD(learning_rate=0.1), clipping=clipping.GlobalNorm(max_norm=1.0)
        ),
    )
    return compat.estimator.EstimatorSpec(mode, loss=step.loss, train_op=step.train_op)


@pytest.mark.medium
@pytest.mark.parametrize("penalties", [(), ("weights",), ("weights", "rows")], ids="-".join)
def test_two_replicas_step_as_one(penalties, tmp_path):
    """Only the first replica has the penalties of `get_variable`, whose sum counts once."""
    devices, found = ["/cpu:0", "/cpu:1"], {}
    both = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    for name, strategy in {"one": None, "two": both}.items():
        config = compat.estimator.RunConfig(
            model_dir=str(tmp_path / name), train_distribute=strategy, tf_random_seed=1
        )
        if strategy:
            twin.start_alike(tmp_path / "one", tmp_path / "two")
        size = 8 if strategy else 16  # An input_fn of Estimator makes the batches of a replica.
        params = {"penalties": penalties}
        estimator = compat.estimator.Estimator(_model_fn, config=config, params=params)
        estimator.train(lambda size=size: _read(size), max_steps=4)
        found[name] = tiny.variables(tmp_path / name)
    first = tiny.variables(tmp_path / "one", step=0)
    assert (found["one"]["hidden/kernel"] != first["hidden/kernel"]).any()
    assert found["one"].keys() == found["two"].keys()
    for name, value in found["one"].items():
        np.testing.assert_allclose(found["two"][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_penalties_of_layers_and_of_the_update_are_watched_together():
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], tf.distribute.ReductionToOneDevice()
    )

    @tf.autograph.experimental.do_not_convert
    def step():
        weight = tf1.get_variable("weight", initializer=[3.0])
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, 10.0 * weight[0] ** 2)
        l2 = regularization.Regularization(l2={"^weight": 0.5})
        losses = {"a": tf.reduce_sum(weight) ** 2}
        made = model_fns.build_step(losses, update=update.Update(regularization=l2))
        return made.monitors["regularization"]

    with tf.Graph().as_default(), strategy.scope():
        tf1.train.get_or_create_global_step()
        found = strategy.experimental_local_results(strategy.extended.call_for_each_replica(step))
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf1.global_variables_initializer())
            assert session.run(list(found)) == pytest.approx([(10 + 0.5 / 2) * 3.0**2] * 2)
