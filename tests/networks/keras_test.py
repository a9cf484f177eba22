"""Keras models train as our own layers do: averages, penalties, freezing, in the loop too."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, model, networks
from mtl.balancing import example_clipping, surgery
from mtl.compat import keras
from mtl.layers import quantization
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.sparsity import pruning, pruning_schedules
from mtl.tf_internals import graphs, keras_layers
from mtl.tools.clip_audit import measures, observing
from mtl.variables import freezing
from mtl.variables import pruned as pruned_lib
from tests.networks import keras_models
from tests.optimization import training

tf1 = tf.compat.v1

pytestmark = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")
BUILDS = {
    "functional": keras_models.functional,
    "sequential": keras_models.sequential,
    "subclass": keras_models.subclass,
}
IMAGES = np.random.default_rng(1).normal(2, 1, size=[4, 6, 8, 8, 3]).astype(np.float32)


def _train(build, looped, steps=4, **frozen):
    def step_fn(batch, _):
        with tf1.variable_scope("network"):
            trunk = networks.KerasModel(build=build)
            outputs = trunk({"image": tf.gather(IMAGES, batch)}, training=True)
        variables = tf1.trainable_variables()
        # No gradient but that of the penalty.
        gradients = tf.gradients(0.0 * tf.reduce_sum(outputs), variables)
        sgd = optimizers.SGD(learning_rate=0.5)
        return update.Update(optimizer=sgd)(gradients, variables)

    part = freezing.Freezing(**frozen).wrap_step(step_fn)
    return training.train(lambda batch: part(batch, None), steps, looped)


def _one(variables, end):
    (name,) = [name for name in variables if name.endswith(end)]
    return name, variables[name]


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("kind", BUILDS)
def test_averages_and_penalties(kind, looped):
    first = _train(BUILDS[kind], looped, steps=1).variables
    result = _train(BUILDS[kind], looped)
    name, kernel = _one(result.variables, "conv/kernel")
    assert name.startswith("network/")
    # w <- w - 0.5 * 0.2 w
    np.testing.assert_allclose(kernel, _one(first, "conv/kernel")[1] * 0.9**3, rtol=1e-4)
    before = _one(first, "conv/kernel")[1] / 0.9
    mean = np.zeros(4)
    for index, batch in enumerate(IMAGES):
        windows = np.lib.stride_tricks.sliding_window_view(batch, (3, 3), (1, 2))
        hidden = np.einsum("bhwcij,ijco->bhwo", windows, before * 0.9**index)
        mean = 0.8 * mean + 0.2 * hidden.mean((0, 1, 2))
    np.testing.assert_allclose(_one(result.variables, "moving_mean")[1], mean, rtol=1e-3, atol=1e-4)
    penalty = 0.1 * np.sum((before * 0.9**3) ** 2)
    assert result.monitors["regularization"] == pytest.approx(penalty, rel=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("kind", BUILDS)
def test_frozen_by_pattern(kind, looped):
    frozen = {"frozen": ["(conv|norm)/"]}
    first = _train(BUILDS[kind], looped, steps=1, **frozen).variables
    last = _train(BUILDS[kind], looped, **frozen).variables
    for name, value in first.items():
        if "conv" in name or "norm" in name:
            np.testing.assert_array_equal(last[name], value, err_msg=name)
    np.testing.assert_array_equal(_one(last, "moving_mean")[1], np.zeros(4))


def test_frozen_by_the_model_itself():
    with tf.Graph().as_default():
        trunk = networks.KerasModel(build=lambda: keras_models.functional(trainable=False))
        trunk({"image": tf.constant(IMAGES[0])}, training=True)
        assert not tf1.trainable_variables()
        assert not tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)


def test_not_a_model():
    with pytest.raises(checks.UserError, match="KerasModel.build must be a function that makes a"):
        networks.KerasModel(build=3)
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="must make a model of Ker"):
        networks.KerasModel(build=lambda: 3)({"x": tf.zeros([1, 2])}, True)


@pytest.mark.parametrize("columns", [("a", "b", "c"), ("a",)])
def test_inputs_that_are_no_columns_are_refused_in_one_line(columns):
    def build():
        inputs = {name: tf.keras.Input([1], name=name) for name in ("a", "d")}
        return tf.keras.Model(inputs, tf.keras.layers.Concatenate()(list(inputs.values())))

    says = rf"inputs are named as columns, from {', '.join(columns)}, got \['a', 'd'\]"
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=says):
        networks.KerasModel(build=build)({name: tf.zeros([2, 1]) for name in columns}, True)


def test_a_model_of_keras_3_says_where_its_layers_must_come_from():
    keras_3 = pytest.importorskip("keras", minversion="3")
    says = r"Keras 2 \(tf.keras is 2.*got <Sequential.*Take all layers from tf.keras\."
    trunk = networks.KerasModel(build=lambda: keras_3.Sequential([keras_3.layers.Dense(2)]))
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=says):
        trunk({"x": tf.zeros([1, 2])}, True)


def test_a_freezing_up_to_a_step_is_refused():
    with pytest.raises(checks.UserError, match="until must leave out the normalisations of a Kera"):
        _train(keras_models.functional, False, until={"norm": 3})


BINARY = quantization.Quantization(weights={"(conv|out)/kernel$": quantization.Binary()})


def _outputs(build, part, values=None):
    """Return the outputs for images, the variables, and the names of those with a gradient."""
    with tf.Graph().as_default(), tf1.Session() as session:
        with part.quantize_network(training=False), tf1.variable_scope("network"):
            trunk = networks.KerasModel(build=build)
            outputs = trunk({"image": tf.constant(IMAGES[0])}, training=False)
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        gradients = tf.gradients(outputs, list(variables.values()))
        session.run(tf1.global_variables_initializer())
        for name, value in (values or {}).items():
            variables[name].load(value, session)
        reached = [name for name, g in zip(variables, gradients, strict=True) if g is not None]
        return session.run(outputs), session.run(variables), reached


@pytest.mark.medium
@pytest.mark.parametrize("kind", BUILDS)
def test_quantised_weights(kind):
    """Outputs equal a float model with binary kernels; the gradient reaches the float kernels."""
    actual, values, reached = _outputs(BUILDS[kind], BINARY)
    assert any(name.endswith("out/kernel") for name in reached)
    for name, kernel in values.items():
        if name.endswith("kernel"):
            assert len(np.unique(kernel)) > 16
            axes = tuple(range(kernel.ndim - 1))
            values[name] = np.where(kernel >= 0, 1, -1) * np.abs(kernel).mean(axes)
    expected, *_ = _outputs(BUILDS[kind], quantization.Quantization(), values)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("gradient", ["stopped", "straight_through"])
def test_pruned_weights(gradient):
    """A mask is a separate variable; stored weights are cut to 0 if their gradient is stopped."""
    part = pruning.Pruning(
        sparsity=0.5,
        schedule=pruning_schedules.OneShot(step=0),
        patterns=["kernel$"],
        gradient=gradient,
    )
    values, _ = _one_step(surgery.Sum(), 1, [part])
    (name,) = [own for own in values if own.endswith("dense/kernel")]
    mask = values[pruned_lib.mask_name(name)]
    assert mask.shape == values[name].shape and mask.mean() == 0.5
    assert ((values[name] == 0) == (mask == 0)).all() == (gradient == "stopped")


def test_weights_that_are_out_of_reach():
    class Listed(tf.keras.layers.Layer):
        def build(self, shape):
            self.all = [self.add_weight("kernel", [shape[-1], 2])]

        def call(self, inputs):
            return inputs @ self.all[0]

    flat = tf.keras.layers.Flatten()
    part = quantization.Quantization(weights={"kernel": quantization.Binary()})
    message = "KerasModel.build must keep weights as attributes of layers, got .*kernel"
    with pytest.raises(checks.UserError, match=message):
        _outputs(lambda: tf.keras.Sequential([flat, Listed()]), part)


def _with_activity(inputs):
    """A model whose layer penalises its kernel and its outputs, called twice."""
    penalty = tf.keras.regularizers.L2
    layer = tf.keras.layers.Dense(
        3, kernel_regularizer=penalty(0.5), activity_regularizer=penalty(2.0)
    )
    made = tf.keras.Sequential([layer])
    made(tf.zeros_like(inputs) + 7.0)
    return made, made(inputs)


def test_losses_of_activities_are_those_of_one_call():
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = tf.constant(IMAGES[0].reshape(6, -1))
        made, outputs = _with_activity(inputs)
        keras_layers.collect_updates(made, inputs)
        found = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        session.run(tf1.global_variables_initializer())
        values, hidden, kernel = session.run((found, outputs, made.layers[0].kernel))
    expected = [0.5 * (kernel**2).sum(), 2 * (hidden**2).sum(1).mean()]
    np.testing.assert_allclose(sorted(values), sorted(expected), rtol=1e-5)


def test_a_weight_is_penalised_once_in_two_calls_and_two_models():
    with tf.Graph().as_default():
        image = tf.keras.Input([8])
        hidden = tf.keras.layers.Dense(1, kernel_regularizer="l2", activity_regularizer="l2")(image)
        calls = [tf.ones([2, 8]) * factor for factor in (1.0, 2.0, 3.0)]
        trunk, other = tf.keras.Model(image, hidden), tf.keras.Model(image, 2.0 * hidden)
        for made, inputs in zip((trunk, trunk, other), calls, strict=True):
            made(inputs)
            keras_layers.collect_updates(made, inputs)
        found = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        of_calls = [loss for loss in found if graphs.depends_on(loss, calls)]
    assert (len(found), len(of_calls)) == (4, 3)


def test_a_loss_of_every_row_is_refused():
    class Own(tf.keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(inputs, 1))
            return inputs

    with tf.Graph().as_default():
        inputs = tf.constant(IMAGES[0].reshape(6, -1))
        made = tf.keras.Sequential([Own()])
        made(inputs)
        with pytest.raises(checks.UserError, match="loss .* must be a scalar, such as a mean over"):
            keras_layers.collect_updates(made, inputs)


def _dense():
    draw = tf.keras.initializers.GlorotUniform(seed=3)
    return tf.keras.Sequential([tf.keras.layers.Dense(4, "tanh", kernel_initializer=draw)])


def _one_step(part, slices, pruned=()):
    """The variables after a step, their gradients' norm as seen by the step and by the audit."""
    made = model.MultiTaskModel(
        columns=[features.Numeric(names=["x"], normalization="none")],
        network=networks.SharedBottom(trunk=networks.KerasModel(build=_dense)),
        heads=[heads.Regression(name="y")],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=0.1)),
        surgery=part,
        pruning=pruned,
    )
    nothing = features.Statistics(directory="", entries={})
    monitors = {}

    def observe(inputs, labels, weights):
        found = measures.measure(made, nothing, inputs, labels, lambda _: weights)
        assert not found.unknown
        monitors["audit"] = found.batch["norm"]
        # As an audit does: otherwise the norm may be that of the weights after the step.
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, found.batch["norm"].op)

    def hooks(result):
        monitors["norm"] = result["gradient_norm"]
        return {}

    rows = IMAGES.reshape(-1, 8)[:6]
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.create_global_step()
        spec = made.model_fn(
            {"x": tf.constant(rows)},
            {"y": tf.constant(rows.sum(1))},
            "train",
            options=graph_options.GraphOptions(
                statistics=nothing,
                slices=slices,
                extensions=None if pruned else [observing.Observing(observe)],
                training_hooks=hooks,
            ),
        )
        session.run(tf1.global_variables_initializer())
        norms, _ = session.run([monitors, spec.train_op])
        kept = tf1.global_variables() if pruned else tf1.trainable_variables()
        return session.run({v.op.name: v for v in kept}), norms


@pytest.mark.medium
def test_slices_examples_and_the_audit_share_one_model(caplog):
    expected, norms = _one_step(surgery.Sum(), 1)
    assert len(expected) == 4
    assert norms["audit"] == pytest.approx(norms["norm"], rel=1e-5)
    unbounded = example_clipping.ExampleClipping(max_norm=float("inf"))
    for part, slices in ((surgery.Sum(), 2), (unbounded, 2)):
        actual, norms = _one_step(part, slices)
        assert norms["audit"] == pytest.approx(norms["norm"], rel=1e-5)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert "a pass for each example" not in caplog.text
