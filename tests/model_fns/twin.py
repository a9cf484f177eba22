"""A network of ours, and the same one written by hand for tf.estimator, with ops of TensorFlow."""

import dataclasses
import functools
import pathlib

import numpy as np
import tensorflow as tf

from mtl import compat, features, heads, model, model_fns, networks
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.runs import estimators
from tests import tiny

tf1 = tf.compat.v1
NOTHING = features.Statistics(directory="", entries={})
STEPS, EVERY, SEED = 8, 4, 1
UPDATE = update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.01))


def ours(steps=STEPS, **settings):
    """An experiment with SharedBottom: batch norm in the trunk, a binary task and a number."""
    made = tiny.make(train_steps=steps, checkpoint_steps=EVERY, keep_checkpoints=9, seed=SEED)
    return dataclasses.replace(
        made,
        model=model.MultiTaskModel(
            **{
                "columns": [features.Numeric(names=["x"], normalization="none")],
                "network": networks.SharedBottom(
                    trunk=networks.MLP(layers=[8], batch_norm=True), tower=networks.MLP(layers=[4])
                ),
                "heads": [heads.Binary(name="sign"), heads.Regression(name="size")],
                "update": UPDATE,
                **settings,
            }
        ),
    )


def dense(inputs, units, name, use_bias=True):
    """A layer as one writes it with `get_variable`."""
    with tf1.variable_scope(name):
        outputs = tf.matmul(inputs, tf1.get_variable("kernel", [inputs.shape[-1], units]))
        if not use_bias:
            return outputs
        return outputs + tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())


def batch_norm(inputs, name, training, momentum=0.99):
    """Batch norm with averages that UPDATE_OPS move."""
    with tf1.variable_scope(name):
        shape, ones, zeros = [inputs.shape[-1]], tf1.ones_initializer(), tf1.zeros_initializer()
        gamma = tf1.get_variable("gamma", shape, initializer=ones)
        beta = tf1.get_variable("beta", shape, initializer=zeros)
        averages = [
            tf1.get_variable("moving_mean", shape, initializer=zeros, trainable=False),
            tf1.get_variable("moving_variance", shape, initializer=ones, trainable=False),
        ]
        moments = tf.nn.moments(inputs, [0]) if training else averages
        for average, moment in zip(averages, moments, strict=True) if training else ():
            moved = average.assign_sub((1 - momentum) * (average - moment))
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, moved)
        scale = gamma * tf.math.rsqrt(moments[1] + 1e-3)
        return inputs * scale + (beta - moments[0] * scale)


def build_logits(rows, training):
    """Return {task: logits [B]}, and the output of the shared layer."""
    with tf1.variable_scope("network"):
        with tf1.variable_scope("trunk"):
            hidden = dense(rows["x"], 8, "hidden_0", use_bias=False)
            shared = tf.identity(tf.nn.relu(batch_norm(hidden, "hidden_0_norm", training)))
        towers = {}
        for task in ("sign", "size"):
            with tf1.variable_scope(f"tower_{task}"):
                towers[task] = tf.nn.relu(dense(shared, 4, "hidden_0"))
    logits = {}
    for task, tower in towers.items():
        with tf1.variable_scope(f"head/{task}"):
            logits[task] = tf.squeeze(dense(tower, 1, "logits"), -1)
    return logits, shared


def row_losses(logits, labels):
    """{task: [B]}."""
    sign = 2.0 * tf.cast(labels["sign"], tf.float32) - 1
    return {
        # As our head writes it: sigmoid_cross_entropy_with_logits rounds the last bit otherwise.
        "sign": tf.nn.softplus(-sign * logits["sign"]),
        "size": tf.math.squared_difference(logits["size"], labels["size"]),
    }


def losses_of(batch):
    """{task: [B]} of (features, labels), as in evaluation."""
    features, labels = batch
    return row_losses(build_logits(features, training=False)[0], labels)


def model_fn(features, labels, mode, params, config):
    """The same network, with the step of `model_fns`."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits, shared = build_logits(features, training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"sign": tf.sigmoid(logits["sign"]), "size": logits["size"]}
        outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    rows = row_losses(logits, labels)
    losses = {task: tf.reduce_mean(of) for task, of in rows.items()}

    def samples(count):
        return [
            {task: tf.reduce_mean(of[first::count]) for task, of in rows.items()}
            for first in range(count)
        ]

    settings = {"update": UPDATE, "shared": [shared], "samples": samples, **params}
    start = settings.pop("start", None)
    step = model_fns.build_step(losses, **settings)
    if start is not None:
        model_fns.warm_start(start, config.model_dir)
    return tf.estimator.EstimatorSpec(mode, loss=step.loss, train_op=step.train_op)


def estimator(model_dir, **params):
    """The Estimator of the hand-written network."""
    return compat.estimator.Estimator(model_fn, params=params, config=configure(model_dir))


def our_estimator(model_dir, **settings):
    """The Estimator of our model, without what a run of ours adds to it."""
    made = ours(**settings).model.fill_schedules(STEPS)
    own = functools.partial(made.model_fn, options=graph_options.GraphOptions(statistics=NOTHING))
    return compat.estimator.Estimator(own, config=configure(model_dir))


def configure(model_dir):
    """Return a configuration with the sessions of our runs, and with checkpoints by Estimator."""
    return estimators.build_config(ours(), str(model_dir)).replace(
        save_checkpoints_steps=EVERY, save_summary_steps=None, log_step_count_steps=None
    )


def read_rows():
    """The batches that our run trains on."""
    return ours().data.dataset("train", training=True, seed=SEED)


def start_alike(source, target):
    """Puts the first checkpoint of a run into the folder of another."""
    target = pathlib.Path(target)
    target.mkdir()
    for path in pathlib.Path(source).glob("model.ckpt-0.*"):
        (target / path.name).write_bytes(path.read_bytes())
    (target / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')


def assert_equal(found, expected):
    """All variables, those of optimizer and balancing too, are equal to the bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
