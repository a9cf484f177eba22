"""Every balancer over alternating batches of a mixture: tasks without a label leave no trace.

Two sources have no task in common. A batch comes from one of them, so the others' tasks have a loss
of exactly 0.
"""

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers, spec
from mtl.data import frames, mixture, pipeline
from mtl.heads import objectives
from mtl.optimization import optimizers, update
from mtl.step import whole_batch
from tests.conformance import balancers

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

TASKS = balancers.TASKS
LABELS = {"first": ["clicks"], "second": ["age", "fraud"]}
STEPS = 24
RANDOM = np.random.default_rng(3)
VALUES = RANDOM.normal(size=[8, 3]).astype(np.float32)


def _source(name, rows):
    ids = RANDOM.integers(0, 8, size=[rows])
    labels = {task: VALUES[ids, TASKS.index(task)] for task in LABELS[name]}
    return frames.Frames(splits={"train": {"id": ids, **labels}})


DATA = pipeline.Pipeline(
    source=mixture.Mixture(
        sources={"first": _source("first", 40), "second": _source("second", 24)},
        labels=LABELS,
        rates={"first": 2, "second": 1},
        batches="alternating",
    ),
    spec=spec.Spec(features={"id": "int64"}, labels=dict.fromkeys(TASKS, "float32")),
    batch_size=16,
)


def _measure(labels, ids):
    """{task: loss} of a batch, and the batch of the model."""
    with tf1.variable_scope("features"):
        rows = layers.embedding(ids, 8, 4, "table")
    with tf1.variable_scope("network"):
        tower = layers.dense(rows, 4, "hidden", tf.tanh)
    squares, present = {}, {}
    for task in TASKS:
        with tf1.variable_scope(f"head/{task}"):
            logits = layers.dense(tower, 1, "output")[:, 0]
        present[task] = tf.cast(~tf.math.is_nan(labels[task]), tf.float32)
        target = tf.where(present[task] > 0, labels[task], tf.zeros_like(logits))
        squares[task] = tf.square(logits - target)

    def measure_samples(count):
        cuts = [slice(first, None, count) for first in range(count)]
        return [
            {t: objectives.weighted_mean(squares[t][cut], present[t][cut]) for t in TASKS}
            for cut in cuts
        ]

    (losses,) = measure_samples(1)
    passes = whole_batch.ForwardPass(losses, [tower], measure_samples)
    return losses, whole_batch.WholeBatch(passes)


def _build(row):
    """The op of a step, and the values to look at: losses, weighted losses, gradients."""
    batches = DATA.dataset("train", training=True, seed=1)
    iterator = tf1.data.make_initializable_iterator(batches)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    features, labels = iterator.get_next()
    losses, batch = _measure(labels, features["id"])
    with tf1.variable_scope("balancing"):
        weighted = row.weighting(losses, tf1.train.get_or_create_global_step())
        variables = tf1.trainable_variables()
        weights = {task: tf.gradients(weighted[task], losses[task])[0] for task in losses}
        part = batch.first.scale_losses(weights)._replace(losses=weighted)
        gradients, _ = row.surgery(weighted, variables, whole_batch.WholeBatch(part))
    dense = {
        variable.op.name: tf.convert_to_tensor(gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
        if gradient is not None
    }
    optimizer = optimizers.LazyAdam(learning_rate=0.02)
    train_op, _ = update.Update(optimizer=optimizer)(gradients, variables, losses)
    return train_op, {"losses": losses, "weighted": weighted, "gradients": dense}


@pytest.mark.parametrize("row", balancers.ROWS, ids=lambda row: row.name)
def test_a_task_without_labels_leaves_no_trace(row):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(4)
        tf1.train.get_or_create_global_step()
        train_op, shown = _build(row)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        # One call computes values and step, so they are of the same batch.
        steps = [session.run([shown, train_op])[0] for _ in range(STEPS)]
        state = session.run(tf1.global_variables())
    assert all(np.isfinite(value).all() for value in state)
    absent = [{task for task in TASKS if step["losses"][task] == 0} for step in steps]
    assert absent.count({"age", "fraud"}) == 2 * STEPS // 3
    assert absent.count({"clicks"}) == STEPS // 3
    for step, tasks in zip(steps, absent, strict=True):
        for name, gradient in step["gradients"].items():
            assert np.isfinite(gradient).all(), name
        for task in tasks:
            assert step["weighted"][task] == 0
            assert not np.any(step["gradients"].get(f"head/{task}/output/kernel", 0))
            assert not np.any(step["gradients"].get(f"head/{task}/output/bias", 0))
