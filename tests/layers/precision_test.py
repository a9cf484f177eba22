"""Networks in 16 bits and compiled by XLA: gradients, the loss scale, and whole runs."""

import dataclasses
import pathlib
import re
import shutil
from collections.abc import Callable

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, distribution, features, layers, networks, transfer, verbs
from mtl.balancing import example_clipping, methods, surgery, weighting
from mtl.compat import keras
from mtl.layers import precision
from mtl.model import graph_options
from mtl.networks import codes, gates
from mtl.optimization import lookahead, optimizers, update
from mtl.step import outlets
from mtl.variables import averaging, freezing, masks
from tests import tiny
from tests.networks import keras_models
from tests.optimization import training

pytestmark = [pytest.mark.medium, pytest.mark.optimizes_graphs]

tf1 = tf.compat.v1

BFLOAT16, FLOAT16 = (
    precision.Precision(dtype="bfloat16"),
    precision.Precision(dtype="float16"),
)
IMAGES = np.random.default_rng(0).normal(size=[16, 8, 8, 3]).astype(np.float32)
needs_keras = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")
TRUNKS = {
    "MLP": networks.MLP(layers=[8, 6], dropout=0.2, batch_norm=True, activation="gelu"),
    "Convnet": networks.Convnet(filters=[4], layers=[6], batch_norm=False),
    "ResNet": networks.ResNet(depth=8, filters=[2, 4, 4]),
    "Keras": networks.KerasModel(build=lambda: keras_models.functional(dropout=0.0)),
}


def _gradients(trunk, settings, factor=1.0):
    """{name: gradient} of `factor` times a loss, and whether XLA has compiled."""

    def step_fn(features, labels):
        del labels

        def network(inputs):
            return {"a": networks.SharedBottom(trunk=trunk)(inputs, ["a"], True)["a"]}

        with tf1.variable_scope("network"):
            (tower,) = precision.run_network(network, {"image": features}, True).values()
        assert tower.dtype == tf.float32
        variables = tf1.trainable_variables()
        loss = factor * tf.reduce_mean((tower - 1) ** 2)
        named = zip(variables, tf.gradients(loss, variables), strict=True)
        return tf.no_op(), {variable.op.name: gradient for variable, gradient in named}

    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        tf1.train.create_global_step()
        _, gradients = settings.wrap_step(step_fn)(tf.constant(IMAGES), None)
        session.run(tf1.global_variables_initializer())
        options = tf1.RunOptions(output_partition_graphs=True)
        ran = tf1.RunMetadata()
        values = session.run(gradients, options=options, run_metadata=ran)
        ops = {node.op for graph in ran.partition_graphs for node in graph.node}
        return values, "_XlaRun" in ops


def _error(actual, expected):
    """Return the error of all gradients together, relative to their norm."""
    assert actual.keys() == expected.keys()
    assert all(value.dtype == np.float32 for value in actual.values())
    wrong, right = (
        np.sqrt(sum(np.sum(np.float64(v) ** 2) for v in values))
        for values in ([actual[n] - expected[n] for n in expected], expected.values())
    )
    return wrong / right


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Penalised:
    """A network of one layer; `add` adds a penalty or a loss of the layer's outputs."""

    add: Callable

    def __call__(self, inputs, tasks, training):
        hidden = layers.dense(inputs["x"], 4, "hidden", activation=tf.nn.tanh)
        self.add(hidden)
        return dict.fromkeys(tasks, hidden)


def _add_penalty(hidden):
    tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, tf.reduce_mean(hidden**2))


def _mix(hidden):
    _, shared = precision.share_output(hidden)
    mean = tf.reduce_mean(tf.cast(hidden, tf.float32) * shared)
    tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, mean)


def _penalised_model():
    penalty = tf.keras.regularizers.L2
    layer = tf.keras.layers.Dense(
        4,
        kernel_initializer=tf.constant_initializer(np.random.default_rng(2).normal(size=[5, 4])),
        kernel_regularizer=penalty(0.5),
        activity_regularizer=penalty(2.0),
    )
    return tf.keras.Sequential([layer])


MLP4 = networks.MLP(layers=[4])
PENALISED = {
    "own penalty": _Penalised(add=_add_penalty),
    "own loss": _Penalised(add=lambda h: outlets.add_loss("own", lambda: tf.reduce_sum(h**2, 1))),
    "own shared loss": _Penalised(
        add=lambda h: outlets.add_loss(
            "own", lambda: tf.reduce_sum(precision.share_output(h)[1] ** 2, 1)
        )
    ),
    "DSelectK": networks.MMoE(expert=MLP4, num_experts=4, gate=gates.DSelectK(k=2, entropy=1.0)),
    "Sluice": networks.Sluice(stages=[MLP4, MLP4], num_subspaces=2, orthogonality=1.0),
    "Keras": networks.SharedBottom(trunk=networks.KerasModel(build=_penalised_model)),
    "codes": networks.SharedBottom(trunk=codes.Codes(trunk=MLP4, num_codes=3)),
}


def _penalty_gradients(network, settings):
    """The gradients of the penalties and losses that a network adds itself."""

    def step_fn(features, labels):
        with tf1.variable_scope("network"), outlets.collect_losses() as losses:
            precision.run_network(lambda x: network(x, ["a", "b"], True), {"x": features}, True)
        terms = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        terms = [*map(tf.reduce_mean, losses.values()), *terms]
        assert len(terms) > 0
        variables = tf1.trainable_variables()
        gradients = tf.gradients([tf.cast(term, tf.float32) for term in terms], variables)
        named = zip(variables, gradients, strict=True)
        dense = {v.op.name: tf.convert_to_tensor(g) for v, g in named if g is not None}
        return tf.no_op(), dense

    rows = np.random.default_rng(1).normal(size=[64, 5]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        tf1.train.create_global_step()
        _, gradients = settings.wrap_step(step_fn)(tf.constant(rows), None)
        session.run(tf1.global_variables_initializer())
        return session.run(gradients)


@pytest.mark.parametrize("kind", PENALISED)
@pytest.mark.parametrize(
    "settings",
    [BFLOAT16, dataclasses.replace(FLOAT16, initial_scale=2.0**7)],
    ids=["bfloat16", "float16"],
)
def test_penalties_and_losses_of_a_network_keep_their_gradients(kind, settings):
    """The loss scale, which each variable divides out, multiplies them first."""
    wanted = _penalty_gradients(PENALISED[kind], precision.PLAIN)
    found = _penalty_gradients(PENALISED[kind], settings)
    assert wanted and found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        norm = np.linalg.norm(gradient)
        assert np.linalg.norm(found[name] - gradient) < 0.05 * norm + 1e-6, name


def test_a_penalty_that_has_left_the_network_in_part_is_refused():
    with pytest.raises(
        checks.UserError, match=r"use only outputs of precision.share_output, or none"
    ):
        _penalty_gradients(_Penalised(add=_mix), FLOAT16)
    assert _penalty_gradients(_Penalised(add=_mix), BFLOAT16)


# The largest errors of bfloat16: rounding moves units over the edge of a relu, more with depth.
MOST = {"MLP": 0.03, "Convnet": 0.1, "ResNet": 0.3, "Keras": 0.03}


@pytest.mark.parametrize("trunk", [*list(MOST)[:3], pytest.param("Keras", marks=needs_keras)])
def test_gradients_are_those_of_float32_but_for_rounding(trunk):
    """With 8 bits of a number and with 11; in float16 also where gradients would vanish."""
    expected, _ = _gradients(TRUNKS[trunk], precision.PLAIN)
    actual, _ = _gradients(TRUNKS[trunk], BFLOAT16)
    assert 1e-3 < _error(actual, expected) < MOST[trunk]
    small = {name: 1e-6 * value for name, value in expected.items()}
    assert 1e-5 < _error(_gradients(TRUNKS[trunk], FLOAT16, 1e-6)[0], small) < 0.01
    unscaled = precision.Precision(dtype="float16", initial_scale=1)
    assert _error(_gradients(TRUNKS[trunk], unscaled, 1e-6)[0], small) > 0.1


@pytest.mark.parametrize("trunk", ["MLP", "Convnet"])
def test_xla_compiles_and_computes_the_same(trunk):
    """Initial values and dropout included."""
    (expected, plain), (actual, compiled) = (
        _gradients(TRUNKS[trunk], settings)
        for settings in (precision.PLAIN, precision.Precision(xla=True))
    )
    assert compiled and not plain
    assert _error(actual, expected) < 1e-5


FACTORS = np.array([1, 1, 1, 1e9, 1e9, 1, 1, 1e9, 1, 1, 1], np.float32)
GROWS_AFTER = 3


def _scales(factors, scale=2.0**10):
    """The scale of each step and whether it is skipped: 1e9 is too much for every scale above 1."""
    since, scales, skipped = 0, [], []
    for factor in factors:
        scales.append(scale)
        skipped.append(factor > 1 and scale > 1)
        since = 0 if skipped[-1] else since + 1
        if skipped[-1]:
            scale = max(scale / 2, 1)
        elif since == GROWS_AFTER:
            scale, since = 2 * scale, 0
    return scales, skipped


def _overflowing(factors, **settings):
    """Steps of the loss `1e-5 factor w x`, w in a network of float16."""
    part = update.Update(
        optimizer=lookahead.Lookahead(optimizer=optimizers.Adam(learning_rate=0.1), steps=3),
        average=averaging.ExponentialAverage(decay=0.5),
        **settings,
    )

    def step_fn(features, labels):
        del labels

        def network(inputs):
            weights = tf1.get_variable("w", [3], tf.float16, tf1.ones_initializer())
            return {"a": inputs["x"] * weights}

        tower = precision.run_network(network, {"x": tf.ones([3])}, True)["a"]
        variables = tf1.trainable_variables()
        # Not in the loss: its own value shall be finite.
        upstream = tf.gather(factors, features) * 1e-5 * tf.ones([3])
        gradients = tf.gradients(tower, variables, grad_ys=upstream)
        return part(gradients, variables, {"a": tf.reduce_sum(tower)})

    held = freezing.Freezing(entries={"w": masks.Rows(rows=[0, 1])})
    small = dataclasses.replace(FLOAT16, initial_scale=2.0**10, growth_steps=GROWS_AFTER)
    step_fn = held.wrap_step(small.wrap_step(step_fn))
    return lambda step: step_fn(step, None)


@pytest.mark.parametrize("policy", ["fail", "skip", "zero"])
def test_the_scale_halves_and_grows_and_a_skipped_step_changes_nothing(policy, tmp_path):
    """As without the skipped steps: weights, slots, look-ahead, mask, averages; resumed as well."""
    scales, skipped = _scales(FACTORS)
    assert 0 < sum(skipped) < len(FACTORS) and max(scales) > scales[0]
    whole = training.train(_overflowing(FACTORS, if_not_finite=policy), len(FACTORS), looped=True)
    assert whole.monitors["loss_scale"] == scales[-1]
    assert whole.monitors["skipped_steps"] == sum(skipped)
    kept = {name: v for name, v in whole.variables.items() if "average" not in name}
    plain = training.train(
        _overflowing(FACTORS[~np.array(skipped)], if_not_finite=policy),
        len(FACTORS) - sum(skipped),
        looped=True,
    ).variables
    counts = {"global_step", "loss_scale/value", "loss_scale/finite_steps", "update/skipped_steps"}
    for name in kept.keys() - counts:
        np.testing.assert_array_equal(kept[name], plain[name], err_msg=name)
    assert whole.variables["w"][2] == 1 and (whole.variables["w"][:2] < 1).all()


def test_what_is_not_for_the_scale_to_mend_is_left_to_the_policy():
    """After ten halvings."""
    step_fn = _overflowing(np.full(11, 1e30, np.float32))
    assert training.train(step_fn, 10, looped=True).monitors["skipped_steps"] == 10
    message = "at step 10 in 1 of them: gradient of w"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        training.train(step_fn, 11, looped=True)


def test_averages_of_the_weights_begin_at_a_skipped_first_step():
    factors = np.array([1e9, 1e9, 1, 1], np.float32)
    result = training.train(_overflowing(factors), 2, looped=True).variables
    np.testing.assert_array_equal(result["w/average"], [1, 1, 1])
    result = training.train(_overflowing(factors), 3, looped=True).variables
    decay = min(0.5, 3 / 12)
    expected = decay * 1 + (1 - decay) * result["w"]
    np.testing.assert_allclose(result["w/average"], expected, rtol=1e-6)


SURGERIES = {
    "sum": surgery.Sum(),
    "PCGrad": surgery.Combine(method=methods.PCGrad()),
    "on the representation": surgery.Combine(method=methods.PCGrad(), on="representation"),
    "every 2 steps": surgery.Combine(method=methods.Clipped(max_norm=0.5), every_steps=2),
    "by coordinate": surgery.Combine(method=methods.GradDrop()),
    "examples": example_clipping.ExampleClipping(max_norm=0.3),
}


SMALL = dataclasses.replace(FLOAT16, initial_scale=2.0**8)
SLICES = {"PCGrad": 2, "examples": 4}


def _step_of(name, settings, size=1.0):
    """{name: variable} before and after one step of SGD, and the monitors, on 16 rows."""
    one = tiny.make()
    model = dataclasses.replace(
        one.model,
        columns=[features.Numeric(names=["x"], normalization="none")],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[8])),
        weighting=weighting.Fixed(weights={"sign": 1.0, "kind": 1.0, "size": size}),
        surgery=SURGERIES[name],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=1.0)),
    )
    rows = {name: tf.constant(values[:16]) for name, values in tiny.SPLITS["train"].items()}
    monitors = {}

    def hooks(result):
        monitors.update({name: result[name] for name in result.names})
        return {}

    tf1.set_random_seed(5)
    tf1.train.create_global_step()
    given = {name: rows[name] for name in ("x", "word")}, {n: rows[n] for n in tiny.LABELS}
    nothing = features.Statistics(directory="", entries={})
    spec = model.model_fn(
        *given,
        "train",
        options=graph_options.GraphOptions(
            statistics=nothing, slices=SLICES.get(name, 1), precision=settings, training_hooks=hooks
        ),
    )
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        variables = {variable.op.name: variable for variable in tf1.trainable_variables()}
        before = session.run(variables)
        _, scalars = session.run([spec.train_op, monitors])
        return before, session.run(variables), scalars


@pytest.mark.parametrize("name", SURGERIES)
def test_balancing_sees_gradients_that_are_not_scaled(name):
    """Gradients of tasks, of examples, and at the representation; with slices and without."""
    moves, norms = [], []
    for settings in (precision.PLAIN, SMALL):
        with tf.Graph().as_default():
            before, after, monitors = _step_of(name, settings)
        moves.append({name: after[name] - before[name] for name in before})
        norms.append([v for name, v in sorted(monitors.items()) if "norm" in name])
    assert 1e-6 < _error(moves[1], moves[0]) < 0.01
    np.testing.assert_allclose(norms[1], norms[0], rtol=0.01)


@pytest.mark.parametrize("name", SURGERIES)
def test_no_balancing_hides_an_overflow(name):
    """A task whose gradient is infinite is left out of the decision, yet the update sees it."""
    with tf.Graph().as_default():
        before, after, monitors = _step_of(name, SMALL, size=1e7)
    assert monitors["skipped_steps"] == 1
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def _run(settings, **run):
    one = tiny.make(precision=settings, **{"checkpoint_steps": 40, **run})
    held = freezing.Freezing(frozen=["^network/tower_kind/"])
    return dataclasses.replace(one, model=dataclasses.replace(one.model, freezing=held))


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit_and_serves_float32(tmp_path):
    settings = dataclasses.replace(FLOAT16, growth_steps=7)
    metrics, _ = verbs.train(_run(settings, check_rows=256), str(tmp_path / "whole"))
    tiny.train(_run(settings, train_steps=12), tmp_path / "parts")
    parts = tiny.train(_run(settings), tmp_path / "parts")
    whole = tiny.variables(tmp_path / "whole")
    assert whole.keys() == parts.keys()
    assert whole["loss_scale/value"] != settings.initial_scale
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    assert {value.dtype.name for value in whole.values()} == {"float32", "int64"}
    plain = verbs.evaluate(_run(precision.PLAIN), str(tmp_path / "whole"))
    assert plain == pytest.approx(metrics)
    served = tiny.served(tmp_path / "whole")
    kinds = {spec.dtype for spec in served.structured_outputs.values()}
    assert kinds == {tf.float32, tf.int64, tf.string}
    start = transfer.WarmStart(source=str(tmp_path / "whole"))
    plan = verbs.plan_warm_start(dataclasses.replace(_run(settings), warm_start=start))
    outcomes = {entry.name: entry.outcome for entry in plan.entries}
    assert outcomes["network/trunk/hidden_0/kernel"] == "warmed"
    assert outcomes["loss_scale/value"] != "warmed"


@pytest.mark.slow
def test_two_replicas_train_as_one_device_does(tmp_path):
    """With a scale that grows."""
    settings = precision.Precision(dtype="float16", initial_scale=2.0**4, growth_steps=4)
    layers = [networks.MLP(layers=[size]) for size in (8, 4)]
    network = networks.SharedBottom(trunk=layers[0], tower=layers[1])
    sgd = optimizers.SGD(learning_rate=0.02)
    alone, mirrored = tmp_path / "alone", tmp_path / "mirrored"
    tiny.train(tiny.make(precision=settings, network=network, optimizer=sgd, train_steps=1), alone)
    shutil.copytree(alone, mirrored)
    one = tiny.make(precision=settings, network=network, optimizer=sgd, train_steps=12)
    devices = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    two = dataclasses.replace(one, distribution=devices)
    found = [tiny.train(one, alone), tiny.train(two, mirrored)]
    assert found[0]["loss_scale/value"] == 2.0**7
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dtype": "float8"},
            "Precision.dtype must be one of float32, bfloat16, float16, got",
        ),
        ({"initial_scale": 3.0}, "Precision.initial_scale must be a power of 2, got 3.0"),
        ({"growth_steps": 0}, "Precision.growth_steps must be at least 1, got 0"),
        ({"xla": 1}, "Precision.xla must be True or False, got 1"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        precision.Precision(**settings)


def test_a_tensorflow_without_xla(monkeypatch):
    monkeypatch.setattr(tf.test, "is_built_with_xla", lambda: False)
    with pytest.raises(checks.UserError, match="Precision.xla must be False, got True. This Tens"):
        precision.Precision(xla=True)


def test_a_part_that_is_not_built():
    with pytest.raises(checks.UserError, match=re.escape("Run.precision must be built, such as @")):
        tiny.make(precision="bfloat16")


FILES = {
    "bfloat16": BFLOAT16,
    "float16": precision.Precision(dtype="float16", initial_scale=2.0**15, growth_steps=2000),
    "xla": precision.Precision(xla=True),
}


@pytest.mark.parametrize("name", FILES)
def test_gin_files(name):
    folder = pathlib.Path(__file__).parents[2] / "gin_configs" / "precision"
    assert {path.stem for path in folder.glob("*.gin")} == FILES.keys()
    gin.clear_config()
    gin.parse_config((folder / f"{name}.gin").read_text())
    assert gin.get_configurable(precision.Precision)() == FILES[name]
    gin.clear_config()
