"""Units that add nothing are left out of a graph, which gives what it gave before."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.serving import dead_units, folding, graphs

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)


def weights(*shape, zeros=0.0):
    """Random ones, a share of them 0."""
    drawn = RANDOM.normal(size=shape) * (RANDOM.random(shape) >= zeros)
    return drawn.astype(np.float32)


def without(values, columns=(), rows=()):
    """The weights with these columns and rows 0."""
    values = values.copy()
    values[..., list(columns)] = 0
    values[..., list(rows), :] = 0
    return values


def _run(graph_def, x):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run("y:0", {"x:0": x})


def _remove(build, shape=(4,)):
    """The shapes of all kernels after it; the outputs are compared."""
    with tf.Graph().as_default() as built:
        x = tf1.placeholder(tf.float32, [None, *shape], "x")
        tf.identity(build(x), "y")
    names = ["x", "y"]
    graph = graphs.Graph(built.as_graph_def())
    folding.fold_constants(graph)
    values = RANDOM.normal(size=[7, *shape]).astype(np.float32)
    expected = _run(graph.pruned(names), values)
    after = graphs.Graph(dead_units.remove_units(graph, names).pruned(names))
    np.testing.assert_allclose(_run(after.graph_def, values), expected, rtol=1e-5, atol=1e-5)
    constants = map(after.value, after.nodes)
    return sorted(c.shape for c in constants if c is not None and c.ndim > 1)


@pytest.mark.parametrize("activation", [tf.nn.relu, tf.sigmoid, tf.nn.gelu, tf.nn.elu, tf.nn.selu])
def test_units_that_nothing_feeds_become_a_bias(activation):
    def build(x):
        hidden = activation(x @ without(weights(4, 6), columns=[1, 4]) + weights(6))
        return hidden @ weights(6, 3) + weights(3)

    assert _remove(build) == [(4, 3), (4, 4)]


def test_units_that_nobody_reads_go_with_all_that_they_alone_need():
    second = np.zeros([5, 6], np.float32)
    second[[0, 1, 2], [0, 0, 5]] = 2.0  # Unit 5 reads unit 2, and unit 0 the first two.
    last = np.zeros([6, 2], np.float32)
    last[5] = 1.0

    def build(x):
        first = tf.tanh(x @ weights(4, 5) + weights(5))
        return tf.nn.relu(first @ second + weights(6)) @ last

    assert _remove(build) == [(1, 1), (1, 2), (4, 1)]


def test_sparse_layers_lose_what_numpy_finds_dead():
    kernels = [weights(30, 40, zeros=0.97), weights(40, 20, zeros=0.97), weights(20, 3)]

    def build(x):
        hidden = tf.nn.relu(tf.nn.relu(x @ kernels[0]) @ kernels[1])
        return hidden @ kernels[2]

    alive = [np.ones(size, bool) for size in (30, 40, 20, 3)]
    for _ in range(5):  # Without biases a unit is dead without an input, or without a reader.
        for i in (1, 2):
            has_input = (kernels[i - 1][alive[i - 1]] != 0).any(axis=0)
            has_reader = (kernels[i][:, alive[i + 1]] != 0).any(axis=1)
            alive[i] &= has_input & has_reader
    one, two = alive[1].sum(), alive[2].sum()
    assert 1 < one < 40 and 1 < two < 20
    assert _remove(build, (30,)) == sorted([(30, one), (one, two), (two, 3)])


def test_channels_of_convolutions_are_followed_into_dense_layers():
    def build(x):
        hidden = tf.nn.conv2d(x, without(weights(3, 3, 2, 5), columns=[0, 3]), 1, "SAME")
        hidden = tf.nn.max_pool2d(tf.nn.relu(hidden), 2, 2, "SAME")
        hidden = tf.nn.relu(tf.nn.conv2d(hidden, without(weights(3, 3, 5, 4), [1]), 1, "VALID"))
        flat = tf.reshape(hidden, [-1, 2 * 2 * 4])
        return flat @ weights(16, 3)

    assert _remove(build, (8, 8, 2)) == [(3, 3, 2, 3), (3, 3, 3, 3), (12, 3)]


def test_a_constant_channel_stays_before_a_padded_convolution():
    """At the border it counts for less than inside."""
    kernel = without(weights(3, 3, 2, 5), columns=[0, 3])

    def build(x, padding):
        hidden = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + np.ones(5, np.float32))
        hidden = tf.nn.conv2d(hidden, weights(3, 3, 5, 4), 1, padding)
        return tf.reduce_mean(hidden, [1, 2]) @ weights(4, 2)

    assert (3, 3, 5, 4) in _remove(lambda x: build(x, "SAME"), (6, 6, 2))
    around = [[0, 0], [1, 1], [1, 1], [0, 0]]
    assert (3, 3, 5, 4) in _remove(lambda x: build(x, around), (6, 6, 2))
    assert (3, 3, 3, 4) in _remove(lambda x: build(x, "VALID"), (6, 6, 2))


def test_a_constant_channel_becomes_a_bias_of_a_kernel_of_one_pixel():
    """Such a kernel reads no pixel beyond the border, whatever the padding."""
    kernel = without(weights(3, 3, 2, 5), columns=[0, 3])

    def build(x):
        hidden = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + np.ones(5, np.float32))
        return tf.nn.conv2d(hidden, weights(1, 1, 5, 4), 1, "SAME")

    assert (1, 1, 3, 4) in _remove(build, (6, 6, 2))


def test_units_of_a_residual_sum_go_together():
    def build(x):
        first = tf.nn.relu(x @ without(weights(4, 6), columns=[1, 2, 3]))
        second = tf.nn.relu(first @ without(weights(6, 6), columns=[2, 3, 5]))
        return (first + second) @ without(weights(6, 2), rows=[4])

    # Units 2 and 3 are dead on both sides, and nobody reads unit 4; the kernel of the second layer
    # reads unit 4 of the first.
    assert _remove(build) == [(4, 2), (4, 4), (4, 4)]


def test_units_of_joined_and_of_split_layers_are_told_apart():
    def build(x):
        both = tf.nn.relu(x @ without(weights(4, 6), columns=[0, 4, 5]))
        one, two = tf.split(both, 2, axis=1)
        joined = tf.concat([one @ weights(3, 2), tf.nn.relu(two @ weights(3, 3)), x], 1)
        return joined @ without(weights(9, 2), rows=[3, 8])

    # Units 0, 4 and 5 of `both` have no weights. Nobody reads the second unit that `two` feeds.
    assert _remove(build) == [(1, 2), (2, 2), (4, 3), (8, 2)]


def test_several_towers_keep_what_one_of_them_reads():
    def build(x):
        shared = tf.nn.relu(x @ weights(4, 6))
        towers = [shared @ without(weights(6, 2), rows=own) for own in ([0, 1, 2], [1, 2, 3])]
        return tf.concat(towers, 1)

    assert _remove(build) == [(4, 2), (4, 2), (4, 4)]


def test_channels_are_followed_through_a_maximum_over_one_axis():
    def build(x):
        hidden = tf.nn.relu(
            tf.nn.conv2d(x, without(weights(1, 1, 2, 5), columns=[0, 3]), 1, "SAME")
        )
        return tf.reduce_max(tf.reduce_max(hidden, axis=1), axis=1) @ weights(5, 3)

    assert _remove(build, (4, 4, 2)) == [(1, 1, 2, 3), (3, 3)]


@pytest.mark.parametrize(
    "reader",
    [
        lambda hidden: tf.nn.softmax(hidden),
        lambda hidden: hidden / tf.reduce_sum(hidden + 2, -1, keepdims=True),
        lambda hidden: tf.reshape(hidden, [-1, 3, 2])[:, :, 0],
        lambda hidden: hidden,
    ],
    ids=["softmax", "sum", "reshape", "output"],
)
def test_what_an_unknown_operation_reads_stays_whole(reader):
    def build(x):
        return reader(tf.nn.relu(x @ without(weights(4, 6), columns=[1, 4])))

    assert _remove(build) == [(4, 6)]


def test_a_layer_keeps_a_unit():
    def build(x):
        return tf.nn.relu(x @ np.zeros([4, 6], np.float32) + 1) @ weights(6, 2)

    assert _remove(build) == [(1, 2), (4, 1)]


def test_units_that_an_unknown_operation_reads_stay_and_are_told_of(caplog):
    def build(x):
        hidden = tf.nn.relu(x @ without(weights(4, 6), columns=[1, 4]))
        return tf.nn.softmax(hidden) @ weights(6, 3)

    with caplog.at_level("INFO", logger="mtl"):
        assert _remove(build) == [(4, 6), (6, 3)]
    assert "Kept 2 units without inputs, because Softmax, Softmax, reads them." in caplog.text
