"""Blocks of an MLP: its equations, and copies at once beside those built one by one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.layers import quantization
from tests.optimization import training

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=[7, 6]).astype(np.float32)
EACH = RANDOM.normal(size=[3, 7, 6]).astype(np.float32)
SCOPES = ["expert_0", "expert_1", "expert_10"]


def _built(build, values=None):
    """(what `build` gives, {name: value}, {name: gradient}), at drawn values or at those given."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        output = build()
        variables = tf1.trainable_variables()
        of = {variable.op.name: variable for variable in variables}
        gradients = tf1.gradients(tf.reduce_sum(output**2), variables)
        session.run(tf1.global_variables_initializer())
        random = np.random.default_rng(1)
        start = values or {n: random.normal(size=v.shape) for n, v in of.items()}
        training.load(session, variables, lambda variable: start[variable.op.name])
        found = session.run([output, dict(zip(of, gradients, strict=True))])
        return found[0], start, found[1]


def _swish(x):
    return x / (1 + np.exp(-x))


def _layer_norm(x, gamma, beta):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_blocks_are_what_the_equations_say(activation, residual, layer_norm):
    """Six inputs to layers of 6, 4 and 4 units: the second changes the width."""
    trunk = networks.MLP(
        layers=[6, 4, 4], activation=activation, residual=residual, layer_norm=layer_norm
    )
    output, values, _ = _built(lambda: trunk({"x": tf.constant(X)}, True))
    hidden = X
    for index in range(3):
        of = {n.removeprefix(f"hidden_{index}"): v for n, v in values.items() if f"_{index}" in n}
        added = hidden @ of["/kernel"]
        added = (
            _layer_norm(added, of["_norm/gamma"], of["_norm/beta"])
            if layer_norm
            else added + of["/bias"]
        )
        if activation == "swiglu":
            added *= _swish(hidden @ of["/gate/kernel"] + of["/gate/bias"])
        else:
            added = np.maximum(added, 0)
        hidden = hidden + added if residual and index != 1 else added
    np.testing.assert_allclose(output, hidden, rtol=1e-3, atol=1e-3)


def test_defaults_have_the_variables_they_always_had():
    _, values, _ = _built(lambda: networks.MLP(layers=[4, 2])({"x": tf.constant(X)}, True))
    assert list(values) == [f"hidden_{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")]


@pytest.mark.medium
@pytest.mark.parametrize("norm", [{}, {"batch_norm": True}, {"layer_norm": True}])
@pytest.mark.parametrize(
    ("activation", "residual"), list(itertools.product(["relu", "swiglu"], [False, True]))
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_copies_at_once_are_those_built_one_by_one(activation, residual, norm, is_shared):
    trunk = networks.MLP(layers=[6, 4], activation=activation, residual=residual, **norm)

    def together():
        given = {"x": tf.constant(X)} if is_shared else tf.unstack(tf.constant(EACH))
        return tf.stack(trunk.build_copies(given, SCOPES, True))

    def apart():
        outputs = []
        for scope, own in zip(SCOPES, EACH, strict=True):
            with tf1.variable_scope(scope):
                outputs.append(trunk({"x": tf.constant(X if is_shared else own)}, True))
        return tf.stack(outputs)

    output, values, gradients = _built(together)
    wanted, same, slopes = _built(apart, values)
    assert values.keys() == same.keys() == slopes.keys()
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients.items():
        scale = max(np.abs(slopes[name]).max(), 1)
        np.testing.assert_allclose(gradient, slopes[name], atol=1e-4 * scale, err_msg=name)


def test_a_pattern_quantises_the_gate_with_its_layer():
    four = quantization.Uniform(bits=4)
    part = quantization.Quantization(
        weights={"hidden_0/.*kernel$": four}, activations={"hidden_0": four}
    )
    with tf.Graph().as_default(), part.quantize_network(training=True):
        tf1.train.get_or_create_global_step()
        trunk = networks.MLP(layers=[4], activation="swiglu")
        trunk.build_copies({"x": tf.constant(X)}, SCOPES, True)
        names = {v.op.name for v in tf1.global_variables()}
    assert "expert_10/hidden_0/gate/input_bound" in names


def test_what_is_normalised_keeps_16_bits():
    trunk = networks.MLP(layers=[6, 6], activation="swiglu", layer_norm=True, residual=True)
    with tf.Graph().as_default():
        assert trunk({"x": tf.constant(X, tf.bfloat16)}, True).dtype == tf.bfloat16


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"batch_norm": True, "layer_norm": True},
            "MLP.layer_norm must be False if MLP.batch_norm is True, got True.",
        ),
        ({"activation": "swigly"}, "Did you mean 'swiglu'?"),
        ({"residual": 1}, "MLP.residual must be True or False"),
        ({"layer_norm": "yes"}, "MLP.layer_norm must be True or False"),
    ],
)
def test_bad_settings_are_one_line(settings, says):
    with pytest.raises(checks.UserError) as error:
        networks.MLP(**settings)
    assert says in str(error.value) and "\n" not in str(error.value)
