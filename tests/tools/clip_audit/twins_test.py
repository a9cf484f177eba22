"""Equal ops that are built twice are computed once."""

import numpy as np
import tensorflow as tf

from mtl import layers
from mtl.tools.clip_audit import twins

tf1 = tf.compat.v1

INPUTS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def built_twice(network, inputs=None):
    """Return a network's first output, the tensor used as the second, and True if it is reused."""
    given = tf.constant(INPUTS)

    def build(inputs):
        with tf1.variable_scope("network", reuse=tf1.AUTO_REUSE):
            return network(tf.identity(inputs))

    once = build(given)
    tf.gradients(once, tf1.trainable_variables())  # As in a step, between the two.
    before = tf1.get_default_graph().get_operations()
    again = build(given if inputs is None else inputs)
    found = twins.reuse_earlier(len(before), {"logits": again})["logits"]
    return once, found, found.op.name in [op.name for op in before]


def mlp(inputs):
    hidden = layers.dense(inputs, 3, "hidden", tf.nn.relu)
    scaled = hidden * tf.cast(tf.range(tf.shape(hidden)[1]), tf.float32)
    return tf.identity(layers.dense(tf.concat([scaled, hidden], -1), 2, "logits"))


def test_what_is_the_same_is_taken_from_before():
    with tf.Graph().as_default(), tf1.Session() as session:
        once, found, is_shared = built_twice(mlp)
        assert is_shared
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([once, found]))


def test_lookups_are_shared():
    def lookup(inputs):
        table = tf1.get_variable("table", [7, 2])
        return tf.nn.embedding_lookup(table, tf.cast(tf.abs(inputs), tf.int32)) + 1.0

    with tf.Graph().as_default():
        assert built_twice(lookup)[2]


def test_other_inputs_have_no_twin():
    with tf.Graph().as_default():
        assert not built_twice(mlp, tf.constant(2 * INPUTS))[2]


def test_what_is_fed_or_captured_is_no_constant():
    def network(inputs):
        return inputs + tf1.placeholder(tf.float32, [4])

    with tf.Graph().as_default():
        assert not built_twice(network)[2]


def test_one_setting_that_differs_is_a_difference():
    factors = iter([1.0, 2.0])
    with tf.Graph().as_default():
        assert not built_twice(lambda inputs: tf.nn.relu(inputs) * next(factors))[2]


def test_a_gradient_of_its_own_is_a_difference():
    @tf.custom_gradient
    def reversed_back(inputs):
        return inputs + 1, lambda upstream: -upstream

    with tf.Graph().as_default():
        assert not built_twice(reversed_back)[2]


def test_random_draws_and_moving_averages_have_no_twin():
    def dropped(inputs):
        return 2 * tf.nn.dropout(inputs, 0.5)

    def centred(inputs):
        return inputs - tf1.get_variable("moving", [4], trainable=False)

    for network in (dropped, centred):
        with tf.Graph().as_default():
            assert not built_twice(network)[2]


def test_a_variable_itself_is_read_anew():
    with tf.Graph().as_default(), tf1.Session() as session:
        once, found, _ = built_twice(lambda inputs: tf1.get_variable("bias", [4]).read_value())
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([once, found]))


def test_a_loop_shares_what_its_body_computes():
    shared = []

    def body(step, _):
        _, found, is_shared = built_twice(mlp)
        shared.append(is_shared)
        return step + 1, tf.reduce_sum(found)

    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("network"):
            expected = tf.reduce_sum(mlp(tf.constant(INPUTS)))
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            _, total = tf.while_loop(lambda step, _: step < 2, body, [0, 0.0])
        session.run(tf1.global_variables_initializer())
        np.testing.assert_allclose(*session.run([total, expected]), rtol=1e-6)
    assert all(shared)
