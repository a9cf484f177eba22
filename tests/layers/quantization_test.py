"""Straight-through gradients to the digit, and quantised networks from training to serving."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, layers, model, networks, verbs
from mtl.layers import quantization, straight_through
from mtl.optimization import update
from mtl.variables import freezing
from tests import tiny

pytestmark = [pytest.mark.medium, pytest.mark.optimizes_graphs]

tf1 = tf.compat.v1

X = np.array([[-2.0, -0.7, -0.2], [0.0, 0.3, 1.0], [1.2, 0.1, -0.5]], np.float32)
UPSTREAM = np.arange(1.0, 10.0, dtype=np.float32).reshape(3, 3)


def _both(function, values=X):
    """The values of a function and its gradient under the upstream gradient."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(values)
        y = function(x)
        (gradient,) = tf.gradients(y, x, grad_ys=tf.constant(UPSTREAM))
        return session.run([y, gradient])


@pytest.mark.parametrize(
    ("function", "values", "slope"),
    [
        (straight_through.round_to_integers, np.round(X), np.ones_like(X)),
        (straight_through.sign, np.where(X >= 0, 1, -1), np.abs(X) <= 1),
        (lambda x: straight_through.ternary(x, 0.4), np.sign(X) * (np.abs(X) > 0.4), X**0),
        (
            lambda x: straight_through.round_uniformly(x, 3, 1.0),
            np.round(np.clip(X, -1, 1) * np.float32(3)) * np.float32(1 / 3),
            np.abs(X) <= 1,
        ),
        (straight_through.replace_gradient(tf.exp, tf.sin), np.exp(X), np.cos(X)),
        (lambda x: straight_through.let_through(x, X > 0), X, X > 0),
        (lambda x: straight_through.let_through(x, [1.0, 0.0, 1.0]), X, [[1, 0, 1]] * 3),
    ],
)
def test_values_and_gradients(function, values, slope):
    actual, gradient = _both(function)
    np.testing.assert_allclose(actual, values, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, slope * UPSTREAM, rtol=1e-6)


def test_the_forward_value_is_exact():
    """The usual g + stop(f - g) is not, where g is much larger than f."""
    values = np.float32([[3e7, -1e-8, 0.1]])
    third = np.float32(1 / 3)
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(values)
        y = session.run(
            straight_through.replace_gradient(lambda x: tf.zeros_like(x) + third, tf.identity)(x)
        )
    np.testing.assert_array_equal(y, np.full([1, 3], third))
    assert (values + (third - values) != third).any()


def test_uniform_has_its_levels_and_no_gradient_to_the_bound():
    with tf.Graph().as_default(), tf1.Session() as session:
        x, bound = tf.constant(np.linspace(-2, 2, 1001, dtype=np.float32)), tf.constant(1.5)
        y = straight_through.round_uniformly(x, 4, bound)
        levels = np.unique(session.run(y))
        assert tf.gradients(y, bound) == [None]
        zeros = session.run(straight_through.round_uniformly(tf.zeros([3]), 8, 0.0))
    np.testing.assert_allclose(levels, np.arange(-7, 8) * 1.5 / 7, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(zeros, np.zeros(3))


KERNEL = np.random.default_rng(0).normal(size=[3, 3, 2, 5]).astype(np.float32)


def _quantized(part, kernel=KERNEL):
    with tf.Graph().as_default(), tf1.Session() as session:
        bound = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1)), keepdims=True)
        return session.run(part(tf.constant(kernel), tf.constant(bound)))


def test_weights_have_a_scale_for_each_unit():
    sizes, axes = np.abs(KERNEL), (0, 1, 2)
    binary = _quantized(quantization.Binary())
    np.testing.assert_allclose(binary, np.sign(KERNEL) * sizes.mean(axis=axes), rtol=1e-5)
    large = sizes > 0.5 * sizes.mean(axis=axes)
    scale = (sizes * large).sum(axis=axes) / large.sum(axis=axes)
    ternary = _quantized(quantization.Ternary(threshold=0.5))
    np.testing.assert_allclose(ternary, np.sign(KERNEL) * large * scale, rtol=1e-5)
    uniform = _quantized(quantization.Uniform(bits=4))
    step = sizes.max(axis=axes) / 7
    np.testing.assert_allclose(uniform, np.round(KERNEL / step) * step, rtol=1e-5, atol=1e-6)
    assert {len(np.unique(binary[..., unit])) for unit in range(5)} == {2}


FOUR = quantization.Uniform(bits=4)
BOTH = quantization.Quantization(
    weights={"^network/.*/kernel$": quantization.Binary()},
    activations={"^network/tower_.*/hidden_0$": FOUR},
)


def _experiment(part, **run):
    one = tiny.make(**{"train_steps": 40, "checkpoint_steps": 40, "check_rows": 256, **run})
    return dataclasses.replace(one, model=dataclasses.replace(one.model, quantization=part))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with few-valued weights and activations."""
    directory = tmp_path_factory.mktemp("quantized")
    verbs.train(_experiment(BOTH), str(directory))
    return directory


def test_the_float_weights_are_trained_and_saved(trained):
    values = tiny.variables(trained)
    plain = {name for name in values if "input_bound" not in name}
    bounds = {name for name in values if "input_bound" in name}
    assert bounds == {f"network/tower_{t}/hidden_0/input_bound" for t in tiny.LABELS}
    assert all(values[name] > 0 for name in bounds)
    assert len(np.unique(values["network/trunk/hidden_0/kernel"])) > 16
    assert "network/trunk/hidden_0/kernel/Adam" in plain


def test_the_served_model_predicts_as_in_process_and_row_by_row(trained):
    predicted = list(verbs.predict(_experiment(BOTH), str(trained)))
    served, examples = tiny.served(trained), tiny.examples("test")
    outputs = served(examples=tf.constant(examples))
    for name in ("sign/probability", "size/value"):
        expected = np.array([row[name] for row in predicted]).reshape(-1)
        np.testing.assert_allclose(outputs[name].numpy().reshape(-1), expected, rtol=1e-5)
    alone = served(examples=tf.constant(examples[:1]))["size/value"].numpy()
    np.testing.assert_allclose(alone, outputs["size/value"].numpy()[:1], rtol=1e-5)


def test_a_layer_computes_with_few_values_as_numpy_does(trained):
    values = tiny.variables(trained)
    scope = "network/tower_size/hidden_0"
    bound, kernel = values[f"{scope}/input_bound"], values[f"{scope}/kernel"]
    hidden = np.random.default_rng(1).normal(size=[5, len(kernel)]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        with BOTH.quantize_network(training=False), tf1.variable_scope("network/tower_size"):
            made = layers.dense(tf.constant(hidden), 4, "hidden_0", use_bias=False)
        for variable in tf1.global_variables():
            variable.load(values[variable.op.name], session)
        actual = session.run(made)
    inputs = np.round(np.clip(hidden, -bound, bound) * (7 / bound)) * (bound / 7)
    weights = np.where(kernel >= 0, 1, -1) * np.abs(kernel).mean(axis=0)
    np.testing.assert_allclose(actual, inputs @ weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_bound_is_a_running_average(is_frozen):
    """A frozen layer, which may start without a bound, holds that of its first batch."""
    values = np.random.default_rng(0).normal(size=[3, 4, 2]).astype(np.float32)
    part = quantization.Quantization(activations={"layer": FOUR})
    held = freezing.Freezing(frozen=["layer"] if is_frozen else [])
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [4, 2])

        def build(features, labels):
            with part.quantize_network(training=True):
                return layers.dense(features, 2, "layer"), {}

        tf1.train.create_global_step()
        held.wrap_step(build)(fed, None)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        (average,) = (v for v in tf1.global_variables() if "input_bound" in v.name)
        session.run(tf1.global_variables_initializer())
        for batch in values:
            session.run(updates, {fed: batch})
        actual = session.run(average)
    greatest = np.abs(values).max(axis=(1, 2))
    expected = greatest[0]
    for bound in () if is_frozen else greatest[1:]:
        expected = 0.99 * expected + 0.01 * bound
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("setting", "pattern", "message"),
    [
        ("weights", "kernle", "Quantization.weights must match a variable, got 'kernle'"),
        ("activations", "trnk", "Quantization.activations must match a variable, got 'trnk'"),
    ],
)
def test_a_pattern_without_a_match(setting, pattern, message, tmp_path):
    part = quantization.Quantization(**{setting: {pattern: FOUR}})
    with pytest.raises(checks.UserError, match=message):
        verbs.train(_experiment(part), str(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: quantization.Uniform(bits=1), "Uniform.bits must be in 2 .. 16, got 1"),
        (lambda: quantization.Ternary(threshold=0), "Ternary.threshold must be above 0"),
        (lambda: quantization.Binary(scaled=1), "Binary.scaled must be True or False"),
        (lambda: quantization.Quantization(weights=[FOUR]), "Quantization.weights must map"),
        (
            lambda: quantization.Quantization(weights={"x": quantization.Uniform}),
            r"Quantization.weights\['x'\] must be a part such as @quantization.Uniform\(\)",
        ),
        (
            lambda: model.MultiTaskModel(
                columns=[features.Numeric(names=["x"])],
                network=networks.SharedBottom(trunk=networks.MLP()),
                heads=[heads.Binary(name="a")],
                update=update.Update(),
                quantization=FOUR,
            ),
            "MultiTaskModel.quantization must be built, such as @quantization.Quantization",
        ),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
