import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks

tf1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        yield graph


def _trainable():
    return {variable.op.name: variable for variable in tf1.trainable_variables()}


def _values(random, shapes):
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_mlp_towers_on_an_mlp_trunk_are_what_numpy_computes(graph):
    random = np.random.default_rng(0)
    inputs = _values(random, {"a": (7, 3), "b": (7, 2, 2, 1)})
    network = networks.SharedBottom(
        trunk=networks.MLP(layers=[5, 4], activation="tanh"), tower=networks.MLP(layers=[2])
    )
    towers = network({k: tf.constant(v) for k, v in inputs.items()}, ["x", "y"], training=True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        towers, v = session.run([towers, _trainable()])
    hidden = np.concatenate([inputs["a"], inputs["b"].reshape(7, 4)], 1)
    for layer in ("trunk/hidden_0", "trunk/hidden_1"):
        hidden = np.tanh(hidden @ v[f"{layer}/kernel"] + v[f"{layer}/bias"])
    for task in ("x", "y"):
        layer = f"tower_{task}/hidden_0"
        expected = np.maximum(hidden @ v[f"{layer}/kernel"] + v[f"{layer}/bias"], 0)
        np.testing.assert_allclose(towers[task], expected, rtol=1e-4, atol=1e-6)
    assert np.abs(towers["x"] - towers["y"]).max() > 1e-3


def test_scopes_are_a_contract(graph):
    network = networks.SharedBottom(
        trunk=networks.Convnet(filters=[2], layers=[3], batch_norm=True),
        tower=networks.MLP(layers=[2], batch_norm=True),
    )
    network({"image_x": tf.zeros([1, 4, 4, 1])}, ["a"], training=True)
    assert list(_trainable()) == [
        "trunk/block_0/kernel",
        "trunk/block_0_norm/gamma",
        "trunk/block_0_norm/beta",
        "trunk/hidden_0/kernel",
        "trunk/hidden_0_norm/gamma",
        "trunk/hidden_0_norm/beta",
        "tower_a/hidden_0/kernel",
        "tower_a/hidden_0_norm/gamma",
        "tower_a/hidden_0_norm/beta",
    ]
    assert len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)) == 6


def test_without_towers_all_tasks_share_one_tensor(graph):
    network = networks.SharedBottom(trunk=networks.MLP(layers=[3]))
    towers = network({"a": tf.zeros([2, 3])}, ["x", "y"], training=False)
    assert towers["x"] is towers["y"]


def test_a_task_trains_the_trunk_and_its_own_tower_only(graph):
    network = networks.SharedBottom(trunk=networks.MLP(layers=[3]), tower=networks.MLP(layers=[2]))
    towers = network({"a": tf.ones([2, 3])}, ["x", "y"], training=True)
    gradients = tf1.gradients(tf.reduce_sum(towers["x"]), list(_trainable().values()))
    reached = {name for name, g in zip(_trainable(), gradients, strict=True) if g is not None}
    assert reached == {name for name in _trainable() if not name.startswith("tower_y")}


def test_dropout_acts_in_training_only(graph):
    network = networks.MLP(layers=[100], activation="linear", dropout=0.5)
    inputs = {"a": tf.ones([20, 30])}
    with tf1.variable_scope("network", reuse=tf1.AUTO_REUSE):
        training, serving = network(inputs, True), network(inputs, False)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        training, serving = session.run([training, serving])
    kept = training != 0
    assert kept.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(training[kept], 2 * serving[kept], rtol=1e-5)


def test_convnet_without_norm_is_what_numpy_computes(graph):
    random = np.random.default_rng(1)
    inputs = _values(random, {"image": (3, 5, 4, 1), "other": (3, 2)})
    network = networks.Convnet(filters=[2], size=1, layers=[6], batch_norm=False)
    outputs = network({k: tf.constant(v) for k, v in inputs.items()}, training=True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        outputs, v = session.run([outputs, _trainable()])
    pixels = np.maximum(inputs["image"] @ v["block_0/kernel"][0, 0] + v["block_0/bias"], 0)
    pooled = np.zeros([3, 3, 2, 2])
    for row in range(3):
        for column in range(2):
            patch = pixels[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            pooled[:, row, column] = patch.max((1, 2))
    hidden = np.concatenate([pooled.reshape(3, -1), inputs["other"]], 1)
    expected = np.maximum(hidden @ v["hidden_0/kernel"] + v["hidden_0/bias"], 0)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)


def test_images_of_one_size_are_stacked_along_their_channels(graph):
    inputs = {"a": tf.zeros([1, 4, 4, 1]), "b": tf.zeros([1, 4, 4, 3])}
    networks.Convnet(filters=[2])(inputs, training=False)
    assert _trainable()["block_0/kernel"].shape == [3, 3, 4, 2]


@pytest.mark.parametrize(
    "network, inputs, message",
    [
        (networks.Convnet(), {"a": [1, 3]}, "Convnet inputs must hold an image, got ['a']"),
        (
            networks.Convnet(),
            {"a": [1, 4, 4, 1], "b": [1, 5, 4, 1]},
            "Convnet inputs must be images of the same known size",
        ),
        (networks.MLP(), {}, "MLP inputs must hold a column"),
        (networks.MLP(), {"a": [1, None]}, "MLP inputs must have a fixed shape"),
    ],
)
def test_inputs_that_do_not_fit(graph, network, inputs, message):
    fed = {name: tf1.placeholder(tf.float32, shape) for name, shape in inputs.items()}
    with pytest.raises(checks.UserError) as error:
        network(fed, training=True)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: networks.MLP(layers=[0]), "MLP.layers must be above 0, got 0"),
        (lambda: networks.MLP(layers=64), "MLP.layers must be a list of sizes, got 64"),
        (lambda: networks.MLP(layers=[1.5]), "MLP.layers must hold whole numbers, got 1.5"),
        (lambda: networks.MLP(activation="rleu"), "Did you mean 'relu'?"),
        (lambda: networks.MLP(dropout=1.0), "MLP.dropout must be in [0, 1), got 1.0"),
        (lambda: networks.MLP(batch_norm=1), "MLP.batch_norm must be True or False, got 1"),
        (lambda: networks.Convnet(filters=[]), "Convnet.filters must hold a size, got []"),
        (lambda: networks.Convnet(size=0), "Convnet.size must be at least 1, got 0"),
        (lambda: networks.Convnet(pool=-1), "Convnet.pool must be at least 1, got -1"),
        (
            lambda: networks.SharedBottom(trunk=networks.MLP),
            "SharedBottom.trunk must be a part such as @networks.MLP(), got <class",
        ),
        (
            lambda: networks.SharedBottom(trunk=networks.MLP(), tower=3),
            "SharedBottom.tower must be a part such as @networks.MLP(), got 3.",
        ),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError) as error:
        make()
    assert message in str(error.value)
