"""Two replicas on logical devices share batch norm, and keep their own losses and scalars."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, layers
from mtl.step import outlets, penalties, replicas, whole_batch

tf1 = tf.compat.v1
ROWS = np.random.default_rng(0).normal(3, 2, size=[8, 3]).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=[8, 3]).astype(np.float32)


def _two(step):
    """Run `step(own rows, own weights)` in two replicas, and return both results."""
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )

    @tf.autograph.experimental.do_not_convert
    def own():
        index = int(tf.get_static_value(replicas.replica_index()))
        half = slice(4 * index, 4 * index + 4)
        return step(tf.constant(ROWS[half]), tf.constant(WEIGHTS[half]))

    with tf.Graph().as_default(), strategy.scope():
        found = strategy.extended.call_for_each_replica(own)
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf1.global_variables_initializer())
            return session.run(tf.nest.map_structure(strategy.experimental_local_results, found))


def _normalised(rows, weights):
    """Outputs and the gradient of their weighted squares."""
    outputs = layers.batch_norm(rows, "norm", training=True)
    return outputs, tf.gradients(tf.reduce_sum(weights * outputs**2), rows)[0]


@pytest.mark.medium
def test_batch_norm_and_its_gradient_are_those_of_all_rows():
    found = _two(_normalised)
    with tf.Graph().as_default(), tf1.Session() as session:
        whole = _normalised(tf.constant(ROWS), tf.constant(WEIGHTS))
        session.run(tf1.global_variables_initializer())
        expected = session.run(whole)
    for actual, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.concatenate(actual), value, rtol=1e-4, atol=1e-5)


def test_apart_batch_norm_is_of_a_replicas_own_rows():
    def step(rows, weights):
        with replicas.separate_replicas():
            return _normalised(rows, weights)

    for outputs in _two(step)[0]:
        np.testing.assert_allclose(outputs.mean(0), np.zeros(3), atol=1e-5)


def test_replicas_cannot_meet_in_a_branch():
    def step(rows, weights):
        outputs = layers.batch_norm(rows, "norm", training=True)

        def gradient():
            return tf.gradients(tf.reduce_sum(weights * outputs), rows)[0]

        return tf.cond(tf.reduce_sum(rows) > 0, gradient, lambda: rows)

    with pytest.raises(checks.UserError, match="Distribution.batch_norm must be 'replica' if"):
        _two(step)


def _sum_of_all(rows):
    """A value for which the replicas meet: each adds to the graph what it has until here."""
    return replicas.sum_over_replicas(tf.reduce_sum(rows))


def test_only_what_a_further_pass_adds_to_collections_is_removed():
    kept, collections = [], []

    def step(rows, weights):
        def add():
            update = tf.identity(_sum_of_all(rows))
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
            return update

        kept.append(add())
        with whole_batch.withhold_collections():
            add()
            add()
        kept.append(add())
        collections.append(tf1.get_collection_ref(tf1.GraphKeys.UPDATE_OPS))
        return kept[-1]

    _two(step)
    assert {update.name for update in collections[0]} == {update.name for update in kept}
    assert len(kept) == 4


def test_every_replica_takes_its_own_terms_of_the_loss():
    taken = []

    def step(rows, weights):
        def forward(features, labels):
            mean = tf.reduce_mean(features["x"])
            penalties.add_of_means(tf.square, mean)
            _sum_of_all(features["x"])
            return whole_batch.ForwardPass({"size": mean}, ())

        batch = whole_batch.build_batch(
            forward, lambda labels: {"size": tf.constant(4.0)}, {"x": rows}, {"size": rows[:, 0]}, 1
        )
        (penalty,) = batch.first.penalties
        taken.append(tf1.get_collection_ref(tf1.GraphKeys.REGULARIZATION_LOSSES))
        return penalty.means

    np.testing.assert_allclose(_two(step), [ROWS[:4].mean(), ROWS[4:].mean()], rtol=1e-5)
    assert taken[0] == []


def test_every_replica_takes_its_own_scalars():
    def step(rows, weights):
        outlets.add_scalar("sum", tf.reduce_sum(rows))
        _sum_of_all(rows)
        return outlets.take_scalars()

    found = _two(step)["sum"]
    np.testing.assert_allclose(found, [ROWS[:4].sum(), ROWS[4:].sum()], rtol=1e-5)
