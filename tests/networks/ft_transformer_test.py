"""A transformer over columns: its equations, its symmetry, and its shortened last block."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from tests.optimization import training

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
INPUTS = {
    "age": RANDOM.normal(size=[5, 1]).astype(np.float32),
    "job": RANDOM.normal(size=[5, 8]).astype(np.float32),
    "pay": RANDOM.normal(size=[5, 3]).astype(np.float32),
}
SMALL = {"dimension": 8, "num_heads": 2}


def _run(trunk, inputs=INPUTS, is_training=False, values=None):
    """(the output, {name: value}) at drawn values, or at those given."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        output = trunk({name: tf.constant(value) for name, value in inputs.items()}, is_training)
        variables = tf1.trainable_variables()
        random = np.random.default_rng(1)
        start = values or {v.op.name: random.normal(size=v.shape) for v in variables}
        session.run(tf1.global_variables_initializer())
        training.load(session, variables, lambda variable: start[variable.op.name])
        return session.run(output), start


def _norm(values, scope, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + 1e-5)
    return scaled * values[f"{scope}/gamma"] + values[f"{scope}/beta"]


def _dense(values, scope, x):
    return x @ values[f"{scope}/kernel"] + values[f"{scope}/bias"]


def _softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _paper(values, num_blocks, num_heads, gate):
    """The paper's equations for each example and each head by itself; all tokens in all blocks."""
    outputs = []
    for row in range(5):
        tokens = [values["cls"]]
        for column, value in INPUTS.items():
            kernel = values.get(f"field_{column}/projection/kernel", np.eye(8))
            tokens.append(value[row] @ kernel + values[f"field_{column}/bias"])
        z = np.stack(tokens)
        for block in range(num_blocks):
            scope = f"block_{block}"
            given = _norm(values, f"{scope}/attention_norm", z) if block else z
            mixed = _dense(values, f"{scope}/attention/query_key_value", given)
            queries, keys, each = np.split(mixed, 3, axis=1)
            parts = []
            for q, k, v in zip(
                *(np.split(x, num_heads, axis=1) for x in (queries, keys, each)), strict=True
            ):
                parts.append(_softmax(q @ k.T / np.sqrt(8 / num_heads)) @ v)
            z = z + _dense(values, f"{scope}/attention/output", np.concatenate(parts, axis=1))
            given = _norm(values, f"{scope}/feed_forward_norm", z)
            a, b = np.split(_dense(values, f"{scope}/feed_forward/hidden", given), 2, axis=1)
            z = z + _dense(values, f"{scope}/feed_forward/output", a * gate(b))
        outputs.append(np.maximum(_norm(values, "norm", z[0]), 0))
    return np.stack(outputs)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("activation", "gate"),
    [("reglu", lambda x: np.maximum(x, 0)), ("swiglu", lambda x: x / (1 + np.exp(-x)))],
)
@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("num_heads", [1, 4])
@pytest.mark.always
def test_it_is_what_the_paper_says(activation, gate, num_blocks, num_heads):
    trunk = networks.FTTransformer(
        dimension=8, num_blocks=num_blocks, num_heads=num_heads, activation=activation
    )
    output, values = _run(trunk)
    expected = _paper(values, num_blocks, num_heads, gate)
    assert (expected > 0).any() and output.shape == (5, 8)
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.medium
def test_columns_may_change_places():
    """Tokens have no place: only the order in which sums are taken is another."""
    trunk = networks.FTTransformer(**SMALL)
    output, values = _run(trunk)
    other = {column: INPUTS[column] for column in ("pay", "age", "job")}
    np.testing.assert_allclose(output, _run(trunk, other, values=values)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.medium
def test_every_column_reaches_the_output():
    trunk = networks.FTTransformer(**SMALL, num_blocks=1)
    output, values = _run(trunk)
    for column in INPUTS:
        other = {**INPUTS, column: INPUTS[column] + 1}
        assert np.abs(_run(trunk, other, values=values)[0] - output).max() > 1e-3


@pytest.mark.medium
@pytest.mark.parametrize("part", ["attention", "feed_forward", "residual"])
def test_what_is_dropped_is_dropped_in_training_alone(part):
    none = dict.fromkeys(("attention_dropout", "feed_forward_dropout", "residual_dropout"), 0.0)
    plain, values = _run(networks.FTTransformer(**SMALL, **none), is_training=True)
    trunk = networks.FTTransformer(**SMALL, **{**none, f"{part}_dropout": 0.5})
    dropped = _run(trunk, is_training=True, values=values)[0]
    assert np.abs(plain - dropped).max() > 1e-3
    np.testing.assert_array_equal(dropped, _run(trunk, is_training=True, values=values)[0])
    np.testing.assert_array_equal(plain, _run(trunk, values=values)[0])


@pytest.mark.medium
def test_the_last_block_computes_the_learned_token_alone():
    """The feed-forward layers before it multiply four rows for each example."""
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        networks.FTTransformer(**SMALL)({n: tf.constant(v) for n, v in INPUTS.items()}, False)
        rows = [
            op.outputs[0].shape[0]
            for op in graph.get_operations()
            if op.type == "MatMul" and "/feed_forward/hidden/" in op.name
        ]
    assert rows == [20, 20, 5]


@pytest.mark.medium
def test_it_computes_in_16_bits():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        given = {name: tf.constant(value, tf.bfloat16) for name, value in INPUTS.items()}
        assert networks.FTTransformer(**SMALL)(given, True).dtype == tf.bfloat16


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dimension": 20}, "FTTransformer.dimension must be a multiple of num_heads, 8, got 20."),
        ({"num_blocks": 0}, "FTTransformer.num_blocks must be at least 1"),
        ({"num_heads": 1.5}, "FTTransformer.num_heads must be a whole number"),
        ({"feed_forward_factor": 0.01}, "feed_forward_factor must give at least one hidden unit"),
        ({"activation": "geglu"}, "FTTransformer.activation must be one of reglu, swiglu"),
        ({"residual_dropout": 1}, "FTTransformer.residual_dropout must be in [0, 1)"),
    ],
)
def test_bad_settings_are_one_line(settings, says):
    with pytest.raises(checks.UserError) as error:
        networks.FTTransformer(**settings)
    assert says in str(error.value) and "\n" not in str(error.value)
