"""Norms of single examples from one pass equal those of a pass for each."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers, networks
from mtl.compat import keras as compat_keras
from mtl.features import column
from mtl.heads import classifiers
from mtl.layers import quantization
from mtl.tools.clip_audit import measures, norms
from mtl.variables import pruned
from tests.networks import keras_models

tf1 = tf.compat.v1

ROWS, CLASSES = 5, 3


def image_batch(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "image": tf.constant(rng.normal(size=[ROWS, 8, 8, 3]), tf.float32),
        "label": tf.constant(rng.integers(0, CLASSES, ROWS)),
    }


def row_batch(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": tf.constant(rng.normal(size=[ROWS, 4]), tf.float32),
        "id": tf.constant([1, 0, 1, 2, 1], tf.int64),
        "pair": tf.constant([[0, 1], [2, 2], [1, 1], [0, 0], [3, 1]], tf.int64),
        "list": tf.ragged.constant([[3, 3, 1], [], [0], [2, 2, 2, 1], [1]], dtype=tf.int64),
        "label": tf.constant(rng.integers(0, CLASSES, ROWS)),
    }


def cross_entropy(logits, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def tables(batch):
    parts = []
    for field in ("id", "pair", "list"):
        with tf1.variable_scope(field):
            parts.append(column.vectors(field, batch[field], 4, 3, "mean"))
    with tf1.variable_scope("id", reuse=True):  # A table that two fields share.
        parts.append(column.vectors("again", batch["pair"], 4, 3, "sum"))
    return {"a": cross_entropy(layers.dense(tf.concat(parts, 1), CLASSES, "a"), batch["label"])}


def shared(batch):
    """A layer that an example goes through twice, and one on every step of a sequence."""
    hidden = layers.dense(batch["x"], 4, "twice", tf.tanh)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
        hidden = layers.dense(hidden, 4, "twice", tf.tanh)
    steps = tf.stack([hidden, 2 * hidden, batch["x"]], 1)
    steps = layers.dense(steps, 5, "steps", tf.nn.relu)
    logits = layers.dense(tf.reduce_sum(steps, 1), CLASSES, "a")
    return {"a": cross_entropy(logits, batch["label"])}


def convnet(batch):
    network = networks.Convnet(filters=[3, 4], layers=[5], batch_norm=True)
    hidden = network({"image": batch["image"]}, training=False)
    wide = layers.conv(batch["image"], 4, "strided", 3, 2, tf.nn.relu)
    wide = layers.conv(wide, 30, "wide", 2, 1, tf.nn.relu, padding="valid")
    hidden = tf.concat([hidden, tf.reduce_mean(wide, [1, 2])], 1)
    return {"a": cross_entropy(layers.dense(hidden, CLASSES, "a"), batch["label"])}


def keras(batch):
    """Made once, as a model makes new variables at every call."""
    made = tf1.get_collection_ref("models")
    if not made:
        made.append(keras_models.functional())
    hidden = made[0](batch["image"], training=False)
    return {"a": cross_entropy(layers.dense(hidden, CLASSES, "a"), batch["label"])}


def cosine(batch):
    """A kernel that is normalised before it is used, and a scale of the logits."""
    hidden = layers.dense(batch["x"], 6, "hidden", tf.nn.relu)
    with tf1.variable_scope("c"):
        logits = classifiers.Cosine()(hidden, CLASSES, 0.0)
    with tf1.variable_scope("s"):
        logits += classifiers.Scaled()(hidden, CLASSES, 0.0)
    return {"a": cross_entropy(logits, batch["label"])}


def quantized(batch):
    with quantization.Quantization(weights={"hidden": quantization.Binary()}).quantize_network(
        False
    ):
        hidden = layers.dense(batch["x"], 6, "hidden", tf.nn.relu)
        return {
            "a": cross_entropy(layers.dense(hidden, CLASSES, "a"), batch["label"]),
            "b": layers.dense(hidden, 1, "b")[:, 0] ** 2,
        }


def cut(batch):
    """A kernel and rows of a table of which some are cut, and take no gradient."""
    with tf1.variable_scope("hidden"):
        kernel = tf1.get_variable("kernel", [4, 6])
    kept = tf.cast(tf.reshape(tf.range(24) % 3 > 0, [4, 6]), tf.float32)
    hidden = tf.nn.relu(batch["x"] @ (kernel * kept))
    table = tf1.get_variable("table", [4, 6])
    with pruned.hold_masks({"model/table": tf.constant([[1.0], [0.0], [1.0], [1.0]])}):
        rows = pruned.mask_rows(tf.gather(table, batch["id"]), table, batch["id"])
    return {"a": cross_entropy(layers.dense(hidden + rows, CLASSES, "a"), batch["label"])}


def unknown(batch):
    """A sum over pairs of entries, whose gradient is not taken apart by examples."""
    kernel = tf1.get_variable("kernel", [4, CLASSES])
    logits = tf.einsum("bi,bj,ik,jk->bk", batch["x"], batch["x"], kernel, kernel)
    return {"a": cross_entropy(layers.dense(logits, CLASSES, "a"), batch["label"])}


def time_major(batch):
    """Steps before examples."""
    steps = tf.stack([batch["x"], 2 * batch["x"]], 0)
    logits = tf.reduce_sum(layers.dense(steps, CLASSES, "steps", tf.nn.relu), 0)
    return {"a": cross_entropy(layers.dense(logits, CLASSES, "a"), batch["label"])}


def huge(batch):
    """Gradients that are finite and whose squares are not, in float32; one is not taken apart."""
    table = column.vectors("id", batch["id"], 4, 1, "mean")
    kernel = tf1.get_variable("kernel", [4, 1])
    hidden = layers.dense(
        tf.einsum("bi,bj,ik->bjk", batch["x"], batch["x"], kernel)[:, :, 0], 1, "b"
    )
    return {
        "a": 1e25 * (layers.dense(batch["x"], 1, "a") + table)[:, 0],
        "b": 1e22 * hidden[:, 0],
    }


UNKNOWN = {"unknown": ["model/kernel"], "huge": ["model/kernel"]}
NETWORKS = {
    f.__name__: (f, image_batch if f in (convnet, keras) else row_batch)
    for f in (tables, shared, convnet, keras, cosine, quantized, cut, huge, unknown, time_major)
}


def measured(network, make_batch):
    """Return `Norms` from one pass and from a pass per row, and the `unknown` of the former."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        batch = make_batch()
        found = [measure(network, batch, by_row) for by_row in (False, True)]
        initialize(session)
        values = session.run([of._replace(unknown=()) for of in found])
        return *values, found[0].unknown


def measure(network, batch, by_row=False):
    """`Norms` of a batch, by the variables of the graph."""

    def losses_of(rows):
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            return network(rows)

    def weigh(losses):
        return {task: 0.5 + index for index, task in enumerate(losses)}

    return norms.measure(losses_of, batch, weigh, by_row)


def initialize(session):
    """Give all variables values that differ."""
    session.run(tf1.global_variables_initializer())
    for variable in tf1.global_variables():
        if variable.shape.rank == 1:
            low = 0.5 if "moving" in variable.name else -1
            variable.load(np.linspace(low, 1.5, variable.shape[0]), session)


@pytest.mark.medium
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.always
def test_one_pass_gives_the_norms_of_a_pass_for_each_example(name):
    if name == "keras" and not compat_keras.in_use().startswith("2."):
        pytest.skip("needs tf-keras")
    fast, slow, unknown_names = measured(*NETWORKS[name])
    assert unknown_names == UNKNOWN.get(name, [])
    assert_same(fast, slow)


def assert_same(fast, slow):
    """`Norms` by two ways."""
    assert fast.squares.keys() == slow.squares.keys()
    for variable, squares in slow.squares.items():
        assert squares.max() > 0 and np.isfinite(squares).all(), variable
        np.testing.assert_allclose(
            *(np.sqrt(of.squares[variable]) for of in (fast, slow)),
            rtol=1e-5,
            atol=1e-6,
            err_msg=variable,
        )
    for task in fast.losses:
        np.testing.assert_allclose(fast.task_squares[task], slow.task_squares[task], rtol=2e-5)
    np.testing.assert_allclose(fast.products, slow.products, rtol=1e-4, atol=1e-5)


def test_norms_are_float32_and_no_rounding_makes_them_none():
    squares = tf.constant([-1e-9, 0, 4, 1e60, 1e300, np.inf, np.nan], tf.float64)
    wanted = np.float32([0, 0, 2, 1e30, np.finfo(np.float32).max, np.inf, np.nan])
    np.testing.assert_allclose(measures._norms(squares), wanted, rtol=1e-6)
