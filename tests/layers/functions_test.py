import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers
from mtl.layers import functions

tf1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        yield graph


def _run(fetches):
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    return session.run(fetches)


def _variables():
    return {variable.op.name: variable for variable in tf1.global_variables()}


def test_dense_is_an_affine_map_and_an_activation(graph):
    inputs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    bias = tf1.constant_initializer(0.5)
    outputs = layers.dense(tf.constant(inputs), 4, "a", tf.nn.relu, bias_initializer=bias)
    output, kernel = _run([outputs, _variables()["a/kernel"]])
    np.testing.assert_allclose(output, np.maximum(inputs @ kernel + 0.5, 0), rtol=1e-5)


def test_dense_without_bias_has_one_variable(graph):
    layers.dense(tf.zeros([1, 3]), 4, "a", use_bias=False)
    assert list(_variables()) == ["a/kernel"]


@pytest.mark.parametrize("size, stride", [(3, 1), (2, 1), (3, 2), (1, 1)])
def test_conv_is_a_sum_over_patches(graph, size, stride):
    inputs = np.random.default_rng(1).normal(size=(2, 5, 4, 3)).astype(np.float32)
    outputs = layers.conv(tf.constant(inputs), 6, "a", size, stride)
    output, kernel = _run([outputs, _variables()["a/kernel"]])
    np.testing.assert_allclose(output, _conv(inputs, kernel, stride), rtol=1e-4, atol=1e-5)


def test_a_valid_conv_has_the_places_where_the_kernel_fits(graph):
    inputs = np.random.default_rng(1).normal(size=(2, 5, 4, 3)).astype(np.float32)
    outputs = layers.conv(tf.constant(inputs), 6, "a", size=3, padding="valid")
    output, kernel = _run([outputs, _variables()["a/kernel"]])
    inner = _conv(inputs, kernel, stride=1)[:, 1:-1, 1:-1]
    np.testing.assert_allclose(output, inner, rtol=1e-4, atol=1e-5)


def _conv(inputs, kernel, stride):
    """Correlation with zeros around, the odd one behind."""
    size = kernel.shape[0]
    shape = [-(-inputs.shape[axis] // stride) for axis in (1, 2)]
    padding = []
    for axis, count in zip((1, 2), shape, strict=True):
        total = max((count - 1) * stride + size - inputs.shape[axis], 0)
        padding.append((total // 2, total - total // 2))
    padded = np.pad(inputs, [(0, 0), *padding, (0, 0)])
    output = np.zeros([inputs.shape[0], *shape, kernel.shape[-1]])
    for row, column in itertools.product(*map(range, shape)):
        top, left = row * stride, column * stride
        patch = padded[:, top : top + size, left : left + size]
        output[:, row, column] = np.tensordot(patch, kernel, 3)
    return output


def test_initial_values_keep_the_variance(graph):
    layers.dense(tf.zeros([1, 300]), 500, "dense")
    layers.conv(tf.zeros([1, 8, 8, 64]), 128, "conv")
    layers.embedding(tf.zeros([1], tf.int64), 3000, 25)
    values = _run(_variables())
    assert values["dense/kernel"].var() == pytest.approx(2 / (300 + 500), rel=0.02)
    assert values["conv/kernel"].var() == pytest.approx(2 / (9 * 64), rel=0.02)
    # A normal distribution cut at two deviations keeps 0.774 of its variance.
    assert values["embedding"].var() == pytest.approx(0.774 / 25, rel=0.02)
    for value in values.values():
        assert abs(value.mean()) < 0.05 * value.std() or not value.any()


@pytest.mark.parametrize("places", [(), (4,), (3, 4)], ids=["rows", "series", "images"])
def test_batch_norm_normalises_by_the_batch_and_averages_over_steps(graph, places):
    random = np.random.default_rng(2)
    axes = tuple(range(1 + len(places)))
    batches = [random.normal(3, 2, (6, *places, 5)).astype(np.float32) for _ in range(7)]
    fed = tf1.placeholder(tf.float32, [None, *places, 5])
    outputs = layers.batch_norm(fed, "a", training=True, momentum=0.9, epsilon=1e-3)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    mean, variance = np.zeros(5), np.ones(5)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for batch in batches:
            output, _ = session.run([outputs, updates], {fed: batch})
            batch_mean, batch_variance = batch.mean(axes), batch.var(axes)
            expected = (batch - batch_mean) / np.sqrt(batch_variance + 1e-3)
            np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-4)
            mean += 0.1 * (batch_mean - mean)
            variance += 0.1 * (batch_variance - variance)
        averages = session.run(_variables())
    np.testing.assert_allclose(averages["a/moving_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(averages["a/moving_variance"], variance, rtol=1e-5)


def test_layer_norm_is_that_of_each_example(graph):
    inputs = np.random.default_rng(5).normal(2, 3, size=(4, 3, 6)).astype(np.float32)
    outputs = layers.layer_norm(tf.constant(inputs), "a", epsilon=1e-3)
    gamma, beta = np.arange(1, 7), np.arange(6)
    with tf1.Session() as session:
        for name, value in {"gamma": gamma, "beta": beta}.items():
            _variables()[f"a/{name}"].load(value.astype(np.float32), session)
        output = session.run(outputs)
    mean, variance = inputs.mean(-1, keepdims=True), inputs.var(-1, keepdims=True)
    expected = (inputs - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_serves_from_the_averages(graph):
    inputs = np.random.default_rng(4).normal(size=(3, 2)).astype(np.float32)
    outputs = layers.batch_norm(tf.constant(inputs), "a", training=False, epsilon=1e-3)
    assert not tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    values = {"moving_mean": [1, 2], "moving_variance": [4, 9], "gamma": [2, 3], "beta": [5, 6]}
    with tf1.Session() as session:
        for name, value in values.items():
            _variables()[f"a/{name}"].load(np.array(value, np.float32), session)
        output = session.run(outputs)
    expected = (inputs - [1, 2]) / np.sqrt(np.array([4, 9]) + 1e-3) * [2, 3] + [5, 6]
    np.testing.assert_allclose(output, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "stride", "padding"), [(3, 1, "same"), (30, 2, "valid"), (1, 2, "valid")]
)
def test_a_norm_scales_the_kernel_of_a_convolution_where_that_is_less(
    graph, batch_size, stride, padding
):
    images = tf.random.stateless_normal([batch_size, 6, 5, 2], seed=[1, 2])
    plain = layers.conv(images, 4, "conv", stride=stride, padding=padding, use_bias=False)
    made = layers.batch_norm(plain, "norm", training=False)
    variables = _variables()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for index, name in enumerate(("gamma", "beta", "moving_mean", "moving_variance")):
            variables[f"norm/{name}"].load(
                np.linspace(0.5, 1 + index, 4, dtype=np.float32), session
            )
        gamma, beta, mean, variance = [
            variables[f"norm/{name}"]
            for name in ("gamma", "beta", "moving_mean", "moving_variance")
        ]
        apart = tf.nn.batch_normalization(plain, mean, variance, beta, gamma, 1e-3)
        trained = [variables["conv/kernel"], gamma, beta]
        pairs = [
            (made, apart),
            *zip(*[tf.gradients(out**2, trained) for out in (made, apart)], strict=True),
        ]
        for one, other in session.run(pairs):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert (made.op.inputs[0].op.type == "Conv2D") == (batch_size > 1)


@pytest.mark.parametrize("is_branch", [False, True], ids=["beside", "in a branch"])
def test_the_gradient_of_max_pooling(graph, is_branch):
    images = tf.nn.relu(tf.random.stateless_normal([2, 5, 4, 3], seed=[3, 4]))
    ours, theirs = layers.max_pool(images, 2), tf.nn.max_pool2d(images, 2, 2, "SAME")
    (expected,) = tf.gradients(theirs**2, images)

    def gradient():
        return tf.gradients(ours**2, images)[0]

    always = tf.reduce_sum(images) > 0
    actual = tf.cond(always, gradient, lambda: images) if is_branch else gradient()
    with tf1.Session() as session:
        for one, other in session.run([(ours, theirs), (actual, expected)]):
            np.testing.assert_array_equal(one, other)


def test_batch_norm_averages_are_not_trained(graph):
    layers.batch_norm(tf.zeros([1, 2]), "a", training=True)
    assert [v.op.name for v in tf1.trainable_variables()] == ["a/gamma", "a/beta"]


def _dropped(seed, step, name="drop", rate=0.3):
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        global_step = tf1.train.get_or_create_global_step()
        outputs = layers.dropout(tf.ones([200, 500]), rate, name, training=True)
        with tf1.Session() as session:
            global_step.load(step, session)
            return session.run(outputs)


def test_dropout_zeroes_its_share_and_keeps_the_mean():
    output = _dropped(seed=1, step=0)
    assert (output == 0).mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_allclose(output[output > 0], 1 / 0.7, rtol=1e-6)


def test_dropout_is_a_function_of_seed_scope_and_step():
    output = _dropped(seed=1, step=5)
    np.testing.assert_array_equal(output, _dropped(seed=1, step=5))
    for other in (
        _dropped(seed=2, step=5),
        _dropped(seed=1, step=6),
        _dropped(seed=1, step=5, name="other"),
    ):
        assert (output == other).mean() == pytest.approx(0.3**2 + 0.7**2, abs=0.01)


def test_dropout_takes_seeds_of_any_size():
    assert np.isfinite(_dropped(seed=2**62 + 1, step=2**40)).all()


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.0, True)])
def test_dropout_adds_nothing_where_it_is_off(graph, rate, training):
    inputs = tf.ones([2, 2])
    assert layers.dropout(inputs, rate, "drop", training) is inputs


def test_embedding_looks_rows_up_and_its_gradient_is_sparse(graph):
    ids = tf.constant([[1, 3], [3, 0]], tf.int64)
    outputs = layers.embedding(ids, 5, 2)
    table = _variables()["embedding"]
    (gradient,) = tf1.gradients(tf.reduce_sum(outputs**2), [table])
    assert isinstance(gradient, tf.IndexedSlices)
    output, rows = _run([outputs, table])
    np.testing.assert_array_equal(output, rows[[[1, 3], [3, 0]]])


def _draw_classes(logits, temperature, hard, training=True):
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        given = tf.constant(logits, tf.float32)
        found = layers.gumbel_softmax(given, temperature, "draw", training, hard)
        upstream = tf.range(tf.cast(tf.shape(given)[-1], tf.float32)) * tf.ones_like(given)
        gradient = tf.gradients(found, given, upstream)[0]
        session.run(tf1.global_variables_initializer())
        return session.run([found, gradient])


def test_gumbel_softmax_draws_classes_by_their_probabilities():
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    drawn, _ = _draw_classes(np.tile(logits, [20_000, 1]), 1.0, hard=True)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(0), [0.1, 0.2, 0.7], atol=0.012)


def test_gumbel_softmax_of_a_draw_of_0_is_finite(monkeypatch):
    def draw(name, num_rows, count):
        return tf.zeros([num_rows, count])

    monkeypatch.setattr(functions.draws, "draw_rows", draw)
    soft, gradient = _draw_classes(np.zeros([2, 3]), 1.0, hard=False)
    np.testing.assert_allclose(soft, 1 / 3, rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_gumbel_softmax_hands_on_the_gradient_of_the_softmax():
    logits = np.random.default_rng(0).normal(size=[5, 2, 3])
    for temperature in (0.5, 2.0):
        soft, expected = _draw_classes(logits, temperature, hard=False)
        hard, gradient = _draw_classes(logits, temperature, hard=True)
        np.testing.assert_allclose(soft.sum(-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(hard, np.eye(3)[soft.argmax(-1)])
        np.testing.assert_array_equal(gradient, expected)
        # d/dz of sum_k k p_k of p = softmax(z / t), by hand.
        mean = (soft * np.arange(3)).sum(-1, keepdims=True)
        by_hand = soft * (np.arange(3) - mean) / temperature
        np.testing.assert_allclose(expected, by_hand, rtol=1e-4, atol=1e-6)


def test_gumbel_softmax_draws_nothing_outside_of_training():
    logits = np.random.default_rng(0).normal(size=[5, 3])
    found, _ = _draw_classes(logits, 1.0, hard=True, training=False)
    np.testing.assert_array_equal(found, np.eye(3)[logits.argmax(-1)])
    found, _ = _draw_classes(logits, 0.5, hard=False, training=False)
    shares = np.exp(2 * logits)
    np.testing.assert_allclose(found, shares / shares.sum(-1, keepdims=True), rtol=1e-5)
