"""Passes of several tasks as one, against those of single tasks."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers, networks
from mtl.balancing import stacked_passes, task_gradients

tf1 = tf.compat.v1

BATCH, WIDTH, TASKS = 6, 8, 2


def _add_bias(hidden):
    """Add a bias as others do."""
    return tf.nn.relu(tf.nn.bias_add(_multiply(hidden), tf1.get_variable("bias", [WIDTH])))


def _multiply(hidden):
    return tf.linalg.matmul(hidden, tf1.get_variable("kernel", [WIDTH] * 2), transpose_b=True)


def _join(hidden):
    """Join many parts: TensorFlow differentiates them by another op than a few parts."""
    return layers.dense(tf.concat([hidden + part for part in range(20)], -1), WIDTH, "joined")


def _halve(hidden):
    half = [tf.cast(own, tf.bfloat16) for own in (hidden, tf1.get_variable("kernel", [WIDTH] * 2))]
    return tf.cast(tf.linalg.matmul(*half), tf.float32)


def _layer(**settings):
    trunk = networks.MLP(layers=[WIDTH], **settings)
    return lambda hidden: trunk({"hidden": hidden}, training=True)


STACKED = [
    {
        "bias_add": _add_bias,
        **{name: _layer(activation=name) for name in ("elu", "relu", "selu", "sigmoid")},
    },
    {name: _layer(activation=name) for name in ("gelu", "swish", "swiglu", "tanh")},
    {
        "dropout": _layer(dropout=0.5),
        "parts": _join,
        "residual": _layer(residual=True),
        "turned": _multiply,
    },
    {name: _layer(**{name: True}) for name in ("batch_norm", "layer_norm")},
]


def _go_through(of_kinds):
    def middle(hidden):
        for kind, layer in of_kinds.items():
            with tf1.variable_scope(kind):
                hidden = layer(hidden)
        return hidden

    return middle


def _differentiate(middle, batch=BATCH, readers=(), factors=(1.0, 1.0)):
    """Gradients by a table, three layers and heads; some tasks read a lower layer, too."""
    tf1.train.get_or_create_global_step()
    ids = tf1.placeholder_with_default(np.arange(BATCH) % 4, [batch])
    looked_up = layers.embedding(ids, 5, WIDTH, "table")
    first = layers.dense(tf.concat([looked_up, 2 * looked_up], 1), WIDTH, "first", tf.tanh)
    with tf1.variable_scope("middle"):
        hidden = middle(first)
    hidden = layers.dense(hidden, WIDTH, "last", tf.tanh)
    losses = []
    for task in range(TASKS):
        given = factors[task] * (hidden + first if task in readers else hidden)
        losses.append(tf.reduce_sum(layers.dense(given, 1, f"head_{task}") ** 2))
    scope = tf1.get_variable_scope().name
    return task_gradients.differentiate_tasks(losses, tf1.trainable_variables(scope))


def _build(columns):
    passes = stacked_passes.StackedPasses(columns)
    return [passes.build(place) for place in range(len(columns))]


def _list_tensors(columns):
    return [tf.convert_to_tensor(own) for column in columns for own in column if own is not None]


@pytest.mark.medium
def test_gradients_are_those_of_single_passes():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        pairs = []
        # The passes of the tasks have the same ops, but different factors.
        factors = [tf1.placeholder(tf.float32, []) for _ in range(TASKS)]
        # Several short stacks of layers: in one deep stack rounding would add up.
        for of_kinds in STACKED:
            with tf1.variable_scope("_".join(of_kinds)):
                columns = _differentiate(_go_through(of_kinds), factors=factors)
            stacked = _build(columns)
            for one, other in zip(columns, stacked, strict=True):
                # Not those of a head, which one task alone has.
                assert (one is not other) == (None not in one), one
            pairs += zip(_list_tensors(columns), _list_tensors(stacked), strict=True)
        session.run(tf1.global_variables_initializer())
        found = session.run(pairs, dict(zip(factors, [2, 3], strict=True)))
    for (tensor, _), (one, other) in zip(pairs, found, strict=True):
        scale = np.max(np.abs(one))
        assert scale > 0
        np.testing.assert_allclose(other, one, atol=1e-6 * scale, err_msg=tensor.name)


@pytest.mark.parametrize(
    "settings",
    [
        {"middle": functools.partial(tf.cumsum, axis=1)},  # It has no rule.
        {"middle": _halve},
        {"middle": _multiply, "batch": None},
        {"middle": _multiply, "readers": [1]},
    ],
    ids=["another op", "16 bits", "batches of any size", "a task that reads a lower layer"],
)
def test_passes_stay_single(settings):
    """Otherwise the layers above would be gone through twice."""
    with tf.Graph().as_default():
        columns = _differentiate(**settings)
        assert all(one is other for one, other in zip(columns, _build(columns), strict=True))


def _list_needed(graph, names):
    """The ops that have to run for some; control dependencies count."""
    nodes = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), names).node
    return [graph.get_operation_by_name(node.name) for node in nodes]


def _find_layer(op):
    """The layer whose weight an op multiplies by, if it does."""
    is_layer = op.type == "MatMul" and op.inputs[1].op.type == "ReadVariableOp"
    return op.inputs[1].name.split("/")[0] if is_layer else None


def _shared(columns):
    return [column for column in columns if None not in column]


def test_one_product_goes_back_through_a_layer():
    with tf.Graph().as_default() as graph:
        stacked = _build(_shared(_differentiate(_multiply)))
        needed = _list_needed(graph, [own.op.name for own in _list_tensors(stacked)])
    found = collections.Counter(filter(None, map(_find_layer, needed)))
    # One product leads there, and one back.
    assert found == dict.fromkeys(["first", "middle", "last", "head_0", "head_1"], 2)


def test_the_pass_goes_on_once_a_layer_is_read(monkeypatch):
    multiply, read = task_gradients.compute_gramian, []

    def watch(*given):
        read.append(multiply(*given))
        return read[-1]

    monkeypatch.setattr(task_gradients, "compute_gramian", watch)
    with tf.Graph().as_default() as graph:
        columns = _shared(_differentiate(_multiply))
        before = graph.get_operations()
        task_gradients.multiply_columns(columns, TASKS)
        products = [op for op in graph.get_operations()[len(before) :] if _find_layer(op)]
        waits = [_list_needed(graph, [op.name]) for op in products]
    assert list(map(_find_layer, products)) == ["last", "middle", "first"]
    # Weights and biases: of the last layer, of the last two, of all.
    assert [sum(own.op in needed for own in read) for needed in waits] == [2, 3, 5]
