"""A least-squares problem small enough to follow in NumPy."""

import numpy as np
import tensorflow as tf

from mtl import compat

tf1 = tf.compat.v1
WEIGHTS = np.array([[1.0], [-2.0], [0.5]], np.float32)
ROWS = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
LABELS = ROWS @ WEIGHTS


def input_fn(batch=32, repeat=True):
    """Features {'x': [B, 3]}, labels [B, 1], always in the same order."""
    rows = tf.data.Dataset.from_tensor_slices(({"x": ROWS}, LABELS))
    return (rows.repeat() if repeat else rows).batch(batch)


def model_fn(features, labels, mode, params):
    """One matrix, squared loss, gradient descent.

    Args:
      params: {"rate": of the descent; "lookups": [1], how many times each row of the matrix is
        looked up in this step, which changes the number of gradient rows and nothing else}.
    """
    rate = (params or {}).get("rate", 0.1)
    kernel = used = tf1.get_variable("kernel", [3, 1], initializer=tf1.zeros_initializer())
    if "lookups" in (params or {}):
        rows = tf.gather(kernel, tf.tile(tf.range(3), params["lookups"]()))
        used = tf.reduce_mean(tf.reshape(rows, [-1, 3, 1]), axis=0)
    outputs = tf.matmul(features["x"], used)
    if mode == "infer":
        exports = {"serving_default": compat.estimator.export.PredictOutput({"y": outputs})}
        return compat.estimator.EstimatorSpec(
            mode, predictions={"y": outputs}, export_outputs=exports
        )
    loss = tf.reduce_mean(tf.square(outputs - labels))
    step = tf1.train.GradientDescentOptimizer(rate).minimize(loss, tf1.train.get_global_step())
    metrics = {"mse": tf1.metrics.mean_squared_error(labels, outputs)}
    return compat.estimator.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)


def descend(steps, rate=0.1, kernel=None):
    """The kernel after `steps` full-batch steps, in NumPy."""
    kernel = np.zeros((3, 1)) if kernel is None else kernel
    for _ in range(steps):
        kernel = kernel - rate * 2 / len(ROWS) * ROWS.T @ (ROWS @ kernel - LABELS)
    return kernel


def mean_squared_error(kernel):
    return np.mean((ROWS @ kernel - LABELS) ** 2)


def serving_input_fn():
    rows = tf1.placeholder(tf.float32, [None, 3])
    return compat.estimator.export.ServingInputReceiver({"x": rows}, {"x": rows})
