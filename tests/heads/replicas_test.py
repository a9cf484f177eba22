"""Two replicas together report what one reports alone."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, heads
from mtl.heads import slice_metrics

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(96, 3)).astype("f")
LABELS = {
    "binary": RANDOM.integers(-1, 2, 96),
    "classes": RANDOM.integers(-1, 3, 96),
    "several": RANDOM.integers(0, 2, (96, 3)),
    "number": RANDOM.normal(size=96).astype("f"),
    "count": RANDOM.integers(0, 5, 96),
    "order": RANDOM.integers(0, 3, 96),
    "amount": np.maximum(RANDOM.normal(size=96), 0).astype("f"),
    "time": RANDOM.integers(0, 9, 96).astype("f"),
    "seen": RANDOM.integers(0, 2, 96),
    "weight": RANDOM.random(96).astype("f"),
    "query": RANDOM.integers(0, 12, 96),  # Groups lie across batches, and so across replicas.
}
HEADS = [
    heads.Binary(name="binary", weight="weight"),
    heads.MultiClass(name="classes", classes=3),
    heads.MultiLabel(name="several", classes=3),
    heads.Regression(name="number", weight="weight"),
    heads.Poisson(name="count"),
    heads.Ordinal(name="order", classes=3),
    heads.Quantile(name="quantiles", label="number"),
    heads.ZeroInflatedLogNormal(name="amount"),
    heads.Survival(name="time", event="seen", boundaries=[2, 5]),
    heads.MultiClass(name="within", label="classes", classes=3, within={"order": [1, 2]}),
    heads.Ranking(name="ranked", label="count", group="query", loss_type="softmax", cutoffs=[2]),
    heads.Retrieval(
        name="found", label="binary", item="order", cutoffs=[1], item_counts={0: 3, 1: 4, 2: 5}
    ),
]


def _tower(head, features, labels):
    if head.name != "found":
        return features["x"]
    order = tf.cast(labels["order"], tf.float32)  # Equal items have equal vectors.
    return tf.stack([features["x"][:, 0], features["x"][:, 1], tf.cos(order), tf.sin(order)], 1)


def _model_fn(features, labels, mode):
    losses, metrics = [], {}
    for head in HEADS:
        with tf1.variable_scope(f"head/{head.name}"):
            logits = head.logits(_tower(head, features, labels))
        if head.name not in ("ranked", "found"):  # Batches cut groups, which metrics put together.
            losses.append(head.loss(logits, labels))
        if mode == "eval":
            for name, metric in head.metrics(logits, labels).items():
                metrics[f"{head.name}/{name}"] = metric
            if head.name == "within":
                own = {head.name: logits}
                metrics |= slice_metrics.build_metrics(
                    {"count": [(1, 3)]}, [head], own, features, labels
                )
    loss, step = tf.add_n(losses), tf1.train.get_or_create_global_step()
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return compat.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def _input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, LABELS)).batch(8)


@pytest.mark.slow
def test_metrics_of_two_replicas_are_those_of_one(tmp_path):
    strategy = tf.distribute.MirroredStrategy(
        ["cpu:0", "cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    config = compat.estimator.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    one = compat.estimator.Estimator(_model_fn, str(tmp_path))
    one.train(_input_fn, steps=6)
    together = compat.estimator.Estimator(_model_fn, str(tmp_path), config).evaluate(_input_fn)
    alone = one.evaluate(_input_fn)
    names = [name for name in alone if "/" in name]
    assert len(names) > 40, names
    both = [[metrics[name] for name in names] for metrics in (together, alone)]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-5)  # A NaN equals a NaN.
