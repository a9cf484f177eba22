"""Norms of single examples, wherever a network lays examples out: proved, or a pass for each.

Every network is measured in one pass and, the reference, on each example alone.
"""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers, types
from mtl.compat import keras as compat_keras
from mtl.example_gradients import proof, uses
from tests.conformance import heads as heads_table
from tests.conformance import heads_test
from tests.tools.clip_audit import norms_test

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

UNITS, CLASSES = 3, 2
# Rows and steps: alike, so that no size tells which axis is which; that divide each other, or not;
# and single ones, which may tell nothing.
ALIKE = (4, 4)
UNEVEN = ((2, 4), (6, 3), (3, 2))
SINGLE = ((1, 3), (1, 1), (3, 1))


def draw_values(rows, steps):
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=[rows, steps, UNITS]).astype(np.float32),
        "ids": rng.integers(0, 3, [rows, steps]),
        "image": rng.normal(size=[rows, 8, 6, 5]).astype(np.float32),
        "label": rng.integers(0, CLASSES, rows),
        "list": tf1.ragged.constant_value(
            [([3, 3, 1], [], [0], [2, 2, 2, 1], [1])[n % 5] for n in range(rows)], np.int64
        ),
    }


def hold_batch(values):
    """Placeholders of the values, of which no size is known but that of the last axis."""
    batch = {"list": tf1.ragged.placeholder(tf.int64, 1, [])}
    for name in ("x", "ids", "image", "label"):
        shape = [None] * values[name].ndim
        if name in ("x", "image"):
            shape[-1] = values[name].shape[-1]
        batch[name] = tf1.placeholder(values[name].dtype, shape)
    return batch


def make_batch(values):
    """Tensors of the values, whose sizes are known while the graph is built."""
    values = dict(values)
    ragged = tf.ragged.constant(values.pop("list").to_list(), tf.int64)
    return {**{name: tf.constant(value) for name, value in values.items()}, "list": ragged}


def losses(hidden, batch):
    logits = layers.dense(hidden, CLASSES, "logits")
    return {"a": norms_test.cross_entropy(logits, batch["label"])}


def steps_first(batch):
    """[B, T, D] -> [T B, D] -> [B, D]."""
    shape = tf.shape(batch["x"])
    flat = tf.reshape(tf.transpose(batch["x"], [1, 0, 2]), [-1, UNITS])
    hidden = layers.dense(flat, 5, "hidden", tf.tanh)
    return losses(tf.reduce_sum(tf.reshape(hidden, [shape[1], shape[0], 5]), 0), batch)


def rows_first(batch):
    """[B, T, D] -> [B T, D] -> [B, D]."""
    shape = tf.shape(batch["x"])
    hidden = layers.dense(tf.reshape(batch["x"], [-1, UNITS]), 5, "hidden", tf.tanh)
    return losses(tf.reduce_sum(tf.reshape(hidden, [shape[0], shape[1], 5]), 1), batch)


def on_steps(batch):
    return losses(tf.reduce_sum(layers.dense(batch["x"], 5, "hidden", tf.tanh), 1), batch)


def ids_of_steps(batch):
    found = layers.embedding(tf.transpose(batch["ids"]), 3, 5)
    return losses(tf.tanh(tf.reduce_sum(found * (1 + found), 0)), batch)


def ids_flat(batch):
    """Ids [T B]."""
    found = layers.embedding(tf.reshape(tf.transpose(batch["ids"]), [-1]), 3, 5)
    found = tf.reshape(found, [tf.shape(batch["ids"])[1], -1, 5])
    return losses(tf.tanh(tf.reduce_sum(found, 0)), batch)


def two_copies(batch):
    """As of two views of an image."""
    both = layers.dense(tf.concat([batch["x"][:, 0], -batch["x"][:, 1]], 0), 5, "hidden", tf.tanh)
    first, second = tf.split(both, 2)
    return losses(first * second, batch)


def repeated(batch):
    hidden = layers.dense(tf.repeat(batch["x"][:, 0], 3, axis=0), 5, "hidden", tf.tanh)
    return losses(tf.reduce_prod(tf.reshape(hidden, [-1, 3, 5]), 1), batch)


def tiled(batch):
    hidden = layers.dense(tf.tile(batch["x"][:, 0], [3, 1]), 5, "hidden", tf.tanh)
    return losses(tf.reduce_prod(tf.reshape(hidden, [3, -1, 5]), 0), batch)


def gathered_apart(batch):
    """Rows that each example takes from its own table."""
    rows = tf.gather(batch["x"], batch["ids"], batch_dims=1)
    return losses(tf.reduce_sum(layers.dense(rows, 5, "hidden", tf.tanh), 1), batch)


def greatest_of_lists(batch):
    """The greatest of the vectors of each list, [N, D] -> [B, D]."""
    ids = batch["list"]
    vectors = layers.embedding(ids.values, 4, 3)
    pooled = tf.math.unsorted_segment_max(vectors, ids.value_rowids(), ids.nrows())
    return losses(layers.dense(tf.maximum(pooled, -2.0), 5, "hidden", tf.tanh), batch)


def scaled_steps(batch):
    """A scale and a shift of each step, of tensors with steps first."""
    scale = tf1.get_variable("scale", [UNITS])
    hidden = tf.transpose(batch["x"], [1, 0, 2]) * scale + tf1.get_variable("shift", [1, 1, UNITS])
    return losses(tf.reduce_sum(tf.tanh(hidden), 0), batch)


def attention(batch):
    parts = [layers.dense(batch["x"], 4, name) for name in ("query", "key", "value")]
    weights = tf.nn.softmax(tf.linalg.matmul(parts[0], parts[1], transpose_b=True))
    return losses(tf.reduce_sum(tf.einsum("bst,btd->bsd", weights, parts[2]), 1), batch)


def examples_as_columns(batch):
    """A product [5, D] [D, B], whose columns are examples."""
    mixing = tf.constant(np.arange(5 * UNITS).reshape(5, UNITS) % 3 - 1, tf.float32)
    columns = tf.linalg.matmul(mixing, batch["x"][:, 0], transpose_b=True)
    return losses(layers.dense(tf.transpose(columns), 4, "hidden", tf.tanh), batch)


def masked(batch):
    mask = tf.cast(batch["ids"] > 0, tf.float32)[:, :, tf.newaxis]
    total = tf.reduce_sum(layers.dense(batch["x"], 4, "hidden", tf.nn.relu) * mask, 1)
    return losses(tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1)), batch)


def swish(batch):
    return losses(tf.nn.silu(layers.dense(batch["x"][:, 0], 4, "hidden")), batch)


FAST = (
    steps_first,
    rows_first,
    on_steps,
    ids_of_steps,
    ids_flat,
    two_copies,
    repeated,
    tiled,
    scaled_steps,
    attention,
    examples_as_columns,
    masked,
    swish,
    gathered_apart,
    greatest_of_lists,
)


def reversed_rows(batch):
    hidden = layers.dense(tf.reverse(batch["x"][:, 0], [0]), 4, "hidden", tf.tanh)
    return losses(tf.reverse(hidden, [0]), batch)


def rolled(batch):
    """Examples that see each other."""
    hidden = layers.dense(batch["x"][:, 0], 4, "hidden", tf.tanh)
    return losses(hidden * tf.roll(hidden, 1, 0), batch)


def rolled_before(batch):
    return losses(layers.dense(tf.roll(batch["x"][:, 0], 1, 0), 4, "hidden", tf.tanh), batch)


def centred(batch):
    """By what the batch happens to hold."""
    x = batch["x"][:, 0]
    return losses(layers.dense(x - 0.5 * tf.reduce_mean(x, 0), 4, "hidden", tf.tanh), batch)


def by_place(batch):
    """A table of places, as many as there are steps."""
    steps = tf.range(tf.shape(batch["x"])[1])
    hidden = batch["x"] + layers.embedding(steps, 6, UNITS, "places")
    return losses(tf.reduce_sum(tf.tanh(hidden), 1), batch)


def clipped_back(batch):
    """A gradient that is clipped by each example: no gradient of a sum is the sum of theirs."""

    @tf.custom_gradient
    def clipped(values):
        return tf.identity(values), lambda upstream: tf.clip_by_norm(upstream, 0.01, axes=[1])

    return losses(clipped(layers.dense(batch["x"][:, 0], 4, "hidden")), batch)


def clipped_by_all(batch):
    """A gradient that is clipped by its norm over the whole batch."""

    @tf.custom_gradient
    def clipped(values):
        return tf.identity(values), lambda upstream: tf.clip_by_norm(upstream, 0.01)

    return losses(clipped(layers.dense(batch["x"][:, 0], 4, "hidden")), batch)


def dense_on_lists(batch):
    """A layer on the values of lists before they are added up."""
    values = tf.ragged.map_flat_values(layers.embedding, batch["list"], 4, 3)
    values = tf.ragged.map_flat_values(layers.dense, values, 5, "hidden", tf.tanh)
    return losses(tf.reduce_sum(values, 1), batch)


def looped(batch):
    """A step after the other."""
    start = tf.zeros([tf.shape(batch["x"])[0], 4])

    def body(step, state):
        with tf1.variable_scope("cell", reuse=tf1.AUTO_REUSE):
            both = tf.concat([state, batch["x"][:, step]], 1)
            return step + 1, layers.dense(tf.ensure_shape(both, [None, 7]), 4, "hidden", tf.tanh)

    loop = tf.while_loop(
        lambda step, _: step < tf.shape(batch["x"])[1],
        body,
        [0, start],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
    )
    return losses(loop[1], batch)


def by_an_op_that_is_not_known(batch):
    hidden = layers.dense(batch["x"][:, 0], 3, "hidden", tf.tanh)
    return losses(tf.linalg.cross(hidden, batch["x"][:, 0]), batch)


SLOW = (
    reversed_rows,
    rolled,
    rolled_before,
    centred,
    by_place,
    clipped_back,
    clipped_by_all,
    # No other network has weights that act on values of lists.
    pytest.param(dense_on_lists, marks=pytest.mark.always),
    looped,
    by_an_op_that_is_not_known,
)


def keras_layers(make):
    """A network of layers from `tf.keras`, which are made once."""

    def network(batch):
        made = tf1.get_collection_ref("layers")
        if not made:
            made.append(make(tf.keras.layers))
        hidden = made[0](batch)
        return losses(tf.reduce_mean(hidden, list(range(1, hidden.shape.rank - 1))), batch)

    return network


def on(field, *made):
    def called(batch):
        hidden = batch[field]
        for layer in made:
            hidden = layer(hidden)
        return hidden

    return called


KERAS_FAST = {
    "dense": lambda k: on("x", k.Dense(4, "relu"), k.Dense(3)),
    "normalised": lambda k: on("x", k.LayerNormalization(), k.Dense(3, "tanh")),
    "dilated 1": lambda k: on("x", k.Conv1D(4, 2, dilation_rate=2, padding="same"), k.ReLU()),
    "dilated 2": lambda k: on("image", k.Conv2D(4, 3, dilation_rate=(3, 2), activation="relu")),
    "dilated, same": lambda k: on("image", k.Conv2D(4, 3, padding="same", dilation_rate=2)),
}
KERAS_SLOW = {
    "depthwise": lambda k: on("image", k.DepthwiseConv2D(3, dilation_rate=2), k.Dense(3, "relu")),
    "lstm": lambda k: on("x", k.LSTM(3, return_sequences=True), k.Dense(3, "relu")),
    "gru": lambda k: on("x", k.GRU(3, return_sequences=True)),
}
NEEDS_KERAS_2 = pytest.mark.skipif(
    not compat_keras.in_use().startswith("2."), reason="needs tf-keras"
)


def assert_measured(network, is_proved, sizes=(ALIKE,)):
    """Compare one pass with a pass for each example, where sizes are known and where they are not.

    All are built in one graph, which shares the variables and the passes for single examples.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        of_sizes = {size: draw_values(*size) for size in sizes}
        held = hold_batch(of_sizes[sizes[0]])
        unknown, slow = (norms_test.measure(network, held, by_row) for by_row in (False, True))
        known = {size: norms_test.measure(network, make_batch(v)) for size, v in of_sizes.items()}
        for found in (unknown, *(known[size] for size in sizes if size not in SINGLE)):
            assert (not found.unknown) == is_proved
        norms_test.initialize(session)
        for size, values in of_sizes.items():
            fetches = [each._replace(unknown=()) for each in (slow, unknown, known[size])]
            feed = {held[name]: value for name, value in values.items()}
            expected, *others = session.run(fetches, feed)
            for found in others:
                norms_test.assert_same(found, expected)


SIZES = {
    steps_first: (ALIKE, *UNEVEN, *SINGLE),
    ids_flat: (ALIKE, *UNEVEN, *SINGLE),
    two_copies: (ALIKE, *UNEVEN),
    on_steps: (ALIKE, *SINGLE),
    looped: (ALIKE, *SINGLE),
}


@pytest.mark.always
@pytest.mark.parametrize("network", FAST, ids=lambda network: network.__name__)
def test_one_pass_where_the_layout_is_proved(network):
    assert_measured(network, is_proved=True, sizes=SIZES.get(network, (ALIKE,)))


@pytest.mark.parametrize("network", SLOW, ids=lambda network: network.__name__)
def test_a_pass_for_each_example_where_it_is_not(network):
    assert_measured(network, is_proved=False, sizes=SIZES.get(network, (ALIKE,)))


def row_for_each_example(batch):
    """A constant row, repeated for each example."""
    row = tf.tile(tf.constant([[0.5, -1.0, 2.0, 0.0]]), [tf.shape(batch["x"])[0], 1])
    return losses(tf.tanh(layers.dense(batch["x"][:, 0], 4, "hidden") * row), batch)


def test_a_repeated_row_is_proved_if_no_number_hides_the_batch_size():
    values = draw_values(*ALIKE)
    with tf.Graph().as_default(), tf1.Session() as session:
        held = hold_batch(values)
        fast, slow = (
            norms_test.measure(row_for_each_example, held, by_row) for by_row in (False, True)
        )
        assert not fast.unknown
        norms_test.initialize(session)
        feed = {held[name]: value for name, value in values.items()}
        found, expected = session.run([m._replace(unknown=()) for m in (fast, slow)], feed)
        norms_test.assert_same(found, expected)


@NEEDS_KERAS_2
@pytest.mark.parametrize("name", KERAS_FAST)
def test_keras_layers_in_one_pass(name):
    assert_measured(keras_layers(KERAS_FAST[name]), is_proved=True)


@NEEDS_KERAS_2
@pytest.mark.slow
@pytest.mark.parametrize("name", KERAS_SLOW)
def test_keras_layers_that_take_a_pass_for_each_example(name):
    assert_measured(keras_layers(KERAS_SLOW[name]), is_proved=False)


@pytest.mark.parametrize("name", heads_table.ROWS)
def test_every_head_is_taken_apart(name):
    row = heads_table.ROWS[name]
    head = row.make()
    if getattr(head, "composes", ()) or not isinstance(head, types.ExampleHead):
        pytest.skip("its rows are compared, or its logits are those of others")
    with tf.Graph().as_default():
        tower = tf1.placeholder(tf.float32, [None, *row.places, 4])
        batch = {"tower": tower, "label": heads_test.hold_label(row)}
        batch |= {other: tf1.placeholder(tf.int64, [None]) for other in row.others}
        fields = {head.field: batch["label"], **{other: batch[other] for other in row.others}}
        examples = head.examples(head.logits(tower), fields)
        values = head.losses(examples.logits, examples.targets) * examples.weights
        values = values if values.shape.rank == 1 else tf.reduce_mean(values, 1)
        found = uses.find_uses([values], batch, tf1.trainable_variables())
        # These take a pass for each example.
        has_gap = name in ("segmentation", "segmentation of names", "survival")
        assert (found.gap is not None) == (None in found.by_variable.values()) == has_gap


def test_what_is_declared_outside_of_a_graph_is_not_kept():
    values = weakref.ref(proof.declare(tf.ones([2])))
    gc.collect()
    assert values() is None
