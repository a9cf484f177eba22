import dataclasses
import functools
import itertools
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, heads, networks, transfer, verbs
from mtl.layers import precision
from mtl.model import graph_options
from mtl.networks import rbm
from mtl.step import draws, outlets
from mtl.variables import freezing
from tests import images, tiny

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(8)
BINARY = RANDOM.integers(0, 2, [6, 4]).astype(np.float32)
NUMBERS = RANDOM.normal(size=[6, 4]).astype(np.float32)
VALUES = {
    "hidden_0/kernel": RANDOM.normal(size=[4, 3]),
    "hidden_0/bias": RANDOM.normal(size=[3]),
    "visible/bias": RANDOM.normal(size=[4]),
}
KERNEL, HIDDEN, VISIBLE = VALUES.values()
STATES = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
both_kinds = pytest.mark.parametrize(
    ("visible", "given"), [("binary", BINARY), ("gaussian", NUMBERS)]
)


def _run(part, given, step=0, chains=None):
    """The output, losses, their gradients, and chains after the step."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 2
        global_step = tf1.train.create_global_step()
        x = tf.constant(given)
        with tf1.variable_scope("network"), outlets.collect_losses() as losses:
            out = part({"x": x}, True)
        variables = {v.op.name.removeprefix("network/"): v for v in tf1.trainable_variables()}
        (loss,) = losses.values()
        gradients = dict(zip(variables, tf.gradients(loss, [*variables.values()]), strict=True))
        assert tf.gradients(loss, x) == [None]
        session.run(tf1.global_variables_initializer())
        global_step.load(step, session)
        for name, variable in variables.items():
            variable.load(VALUES[name], session)
        (kept,) = [v for v in tf1.global_variables() if v.op.name.endswith("chains")] or [None]
        if kept is not None and chains is not None:
            kept.load(chains, session)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        assert len(updates) == (part.chains > 0)
        found = session.run([out, loss, gradients])
        session.run(updates)
        return *found, None if kept is None else session.run(kept)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _energies(visible, rows):
    """Minus the logarithms of the sums over all states of the hidden units."""
    joint = rows @ KERNEL @ STATES.T + STATES @ HIDDEN
    if visible == "binary":
        joint = joint + (rows @ VISIBLE)[:, np.newaxis]
    else:
        joint = joint - ((rows - VISIBLE) ** 2).sum(1)[:, np.newaxis] / 2
    return -np.log(np.exp(joint).sum(1))


def _products(visible, rows):
    """The means over rows of minus the derivatives of the free energy."""
    hidden = _sigmoid(rows @ KERNEL + HIDDEN)
    own = rows if visible == "binary" else rows - VISIBLE
    return rows.T @ hidden / len(rows), hidden.mean(0), own.mean(0)


def _resample(visible, rows, drawn):
    """One Gibbs step by hand, with the same uniform numbers."""
    hidden = (drawn[:, :3] < _sigmoid(rows @ KERNEL + HIDDEN)).astype(float)
    sums = VISIBLE + hidden @ KERNEL.T
    if visible == "binary":
        return (drawn[:, 3:] < _sigmoid(sums)).astype(float)
    with tf.Graph().as_default(), tf1.Session() as session:
        return sums + session.run(tf.math.ndtri(tf.constant(drawn[:, 3:] + 2.0**-24)))


def _draw(make, step):
    """The numbers that a step draws."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 2
        global_step = tf1.train.create_global_step()
        with tf1.variable_scope("network"):
            numbers = make()
        session.run(tf1.global_variables_initializer())
        global_step.load(step, session)
        return session.run(numbers)


@both_kinds
def test_the_free_energy_sums_over_all_states(visible, given):
    part = networks.RBM(units=3, visible=visible, output="free_energy")
    out = _run(part, given)[0]
    np.testing.assert_allclose(out, _energies(visible, given)[:, np.newaxis], rtol=1e-5)


@both_kinds
def test_cd_compares_rows_with_what_gibbs_sampling_makes_of_them(visible, given):
    out, loss, gradients, _ = _run(networks.RBM(units=3, visible=visible, steps=2), given, step=5)
    np.testing.assert_allclose(out, _sigmoid(given @ KERNEL + HIDDEN), rtol=1e-5)
    samples = given
    for name in ("gibbs_0", "gibbs_1"):
        drawn = _draw(functools.partial(draws.draw_rows, name, 6, 7), 5)
        samples = _resample(visible, samples, drawn)
    assert (samples != given).any()
    expected = _energies(visible, given) - _energies(visible, samples)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    wanted = zip(_products(visible, samples), _products(visible, given), strict=True)
    for name, (of_model, of_data) in zip(VALUES, wanted, strict=True):
        apart = len(given) * (of_model - of_data)
        np.testing.assert_allclose(gradients[name], apart, rtol=1e-4, atol=1e-5, err_msg=name)


@both_kinds
@pytest.mark.parametrize("step", [4, 5])
def test_persistent_chains_go_on_from_where_they_were(visible, given, step):
    before = np.stack([given[:2], given[2:4]])
    part = networks.RBM(units=3, visible=visible, steps=3, chains=2)
    _, loss, gradients, after = _run(part, given, step, before)
    samples, other = before[step % 2], 1 - step % 2

    def make():
        return tf.random.stateless_uniform([3, 2, 7], draws.make_step_seed("chains"))

    drawn = _draw(make, step)
    for each in drawn:
        samples = _resample(visible, samples, each)
    np.testing.assert_array_equal(after[step % 2], before[step % 2])
    np.testing.assert_allclose(after[other], samples, rtol=1e-4, atol=1e-5)
    assert (after[other] != before[step % 2]).any()
    expected = _energies(visible, given) - _energies(visible, samples).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    wanted = zip(_products(visible, samples), _products(visible, given), strict=True)
    for name, (of_model, of_data) in zip(VALUES, wanted, strict=True):
        apart = len(given) * (of_model - of_data)
        np.testing.assert_allclose(gradients[name], apart, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_mean_gradient_over_long_chains_is_that_of_the_exact_likelihood():
    every = np.array(list(itertools.product([0.0, 1.0], repeat=4)))
    share = np.exp(-_energies("binary", every))
    share /= share.sum()
    hidden = _sigmoid(every @ KERNEL + HIDDEN)
    of_model = (share[:, np.newaxis] * every).T @ hidden, share @ hidden, share @ every
    start = np.zeros([2, 5000, 4], np.float32)
    part = networks.RBM(units=3, chains=5000, steps=50)
    _, _, gradients, _ = _run(part, BINARY, 1, start)
    wanted = zip(VALUES, of_model, _products("binary", BINARY), strict=True)
    for name, model, data in wanted:
        # The standard error of a mean over 5000 chains is at most 0.007.
        np.testing.assert_allclose(gradients[name] / 6, model - data, atol=0.03, err_msg=name)


@both_kinds
def test_samples_are_finite_at_both_ends_of_what_is_drawn(visible, given):
    ends = np.stack([np.zeros(7), np.full(7, 1 - 2.0**-23)]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        values = [tf.constant(value, tf.float32) for value in VALUES.values()]
        machine = rbm.Machine(*values, visible)
        found = session.run(machine.resample(tf.constant(given[:2]), tf.constant(ends)))
    assert np.isfinite(found).all()
    assert (found[0] != found[1]).all()


@pytest.mark.parametrize("wrong", [-0.1, 1.5, np.nan])
@pytest.mark.parametrize("output", ["hidden", "free_energy"])
def test_binary_units_take_values_between_0_and_1_alone(wrong, output):
    given = BINARY.copy()
    given[3, 1] = wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match="RBM inputs must lie between 0 and 1"):
        _run(networks.RBM(units=3, output=output), given)
    assert np.isfinite(_run(networks.RBM(units=3, output=output), BINARY / 2)[0]).all()


def _model(more=MappingProxyType({}), **settings):
    """A model of images and numbers, which sigmoids bring between 0 and 1."""
    squash = networks.MLP(layers=[5], activation="sigmoid")
    part = networks.RBM(**{"units": 3, **settings})
    trunk = networks.Stacked(trunks=[squash, part])
    return images.make_model(network=networks.SharedBottom(trunk=trunk), **more)


def _is_of_rbm(name):
    return any(part in name for part in ("visible/bias", "chains"))


@pytest.mark.medium
def test_slices_and_replicas_draw_the_samples_of_the_whole_batch():
    """The table of auxiliary losses has the chains."""
    made = _model(steps=2)
    whole = images.take_steps(made)[0]
    assert np.abs(whole["network/trunk/stacked_1/visible/bias"]).max() > 0
    other = images.take_steps_on_replicas(made, slices=2)
    for name, value in whole.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.medium
def test_its_loss_is_balanced_moves_no_column_and_weighs_nothing_with_0():
    found, monitors = images.take_steps(_model(chains=7, weight=0.5), steps=1)
    assert monitors["weight/contrastive_divergence"] == 0.5
    without, plain = images.take_steps(_model(chains=7, weight=0.0), steps=1)
    assert "contrastive_divergence/loss" not in plain
    assert set(found) == set(without)
    kernel = next(name for name in found if name.endswith("stacked_1/hidden_0/kernel"))
    assert np.abs(found[kernel] - without[kernel]).max() > 1e-3
    squash = next(name for name in found if name.endswith("stacked_0/hidden_0/kernel"))
    np.testing.assert_array_equal(found[squash], without[squash])
    for name in without:
        if _is_of_rbm(name):
            np.testing.assert_array_equal(without[name], 0)
    # And a layer of sigmoids is all that remains.
    layer = networks.MLP(layers=[3], activation="sigmoid")
    squash = networks.MLP(layers=[5], activation="sigmoid")
    trunk = networks.Stacked(trunks=[squash, layer])
    same, _ = images.take_steps(
        images.make_model(network=networks.SharedBottom(trunk=trunk)), steps=1
    )
    assert set(without) - set(same) == {name for name in without if _is_of_rbm(name)}
    for name, value in same.items():
        np.testing.assert_array_equal(without[name], value, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_network_of_16_bits_has_energies_of_32(dtype):
    made = _model(chains=7)
    found = {}
    for kind in ("float32", dtype):
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            graph.seed = 1
            tf1.train.create_global_step()
            spec = made.model_fn(
                {name: tf.constant(value) for name, value in images.FEATURES.items()},
                {name: tf.constant(value) for name, value in images.LABELS.items()},
                compat.estimator.ModeKeys.TRAIN,
                options=graph_options.GraphOptions(
                    statistics=images.STATISTICS, precision=precision.Precision(dtype=kind)
                ),
            )
            session.run(tf1.global_variables_initializer())
            session.run(spec.train_op)
            found[kind] = session.run({v.op.name: v for v in tf1.trainable_variables()})
    for name, value in found["float32"].items():
        np.testing.assert_allclose(found[dtype][name], value, rtol=0.05, atol=0.01, err_msg=name)


def _experiment(part, **run):
    """The tiny experiment with a trunk, and with a score where that gives one."""
    made = tiny.make(network=networks.SharedBottom(trunk=part), **run)
    is_score = getattr(part, "output", "") == "free_energy"
    tasks = [heads.Score(name="usual")] if is_score else made.model.heads
    return dataclasses.replace(made, model=dataclasses.replace(made.model, heads=tasks))


@pytest.fixture(scope="module", name="run")
def _run_of_scores(tmp_path_factory):
    """A finished run of an RBM alone, the experiment and its folder."""
    part = networks.RBM(units=5, visible="gaussian", chains=9, output="free_energy")
    make = functools.partial(_experiment, part, checkpoint_steps=5, steps_per_call=3)
    folder = tmp_path_factory.mktemp("run")
    made = make(train_steps=10, check_rows=8)
    verbs.train(made, str(folder))
    return make, made, folder


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit(run, tmp_path):
    make, _, folder = run
    for steps in (5, 10):
        verbs.train(make(train_steps=steps), str(tmp_path))
    found, whole = tiny.variables(tmp_path), tiny.variables(folder)
    assert np.abs(whole["network/trunk/chains"]).max() > 0
    assert set(found) == set(whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_the_free_energy_is_served(run):
    _, made, folder = run
    expected = [row["usual/score"] for row in verbs.predict(made, str(folder))]
    given = tf.constant(tiny.examples("test"))
    served = tiny.served(folder)
    (name,) = served.structured_input_signature[1]
    found = served(**{name: given})["usual/score"].numpy()
    assert np.std(expected) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_layer_of_sigmoids_starts_from_it(run, tmp_path):
    _, _, folder = run
    layer = networks.MLP(layers=[5], activation="sigmoid")
    made = _experiment(layer, train_steps=1, checkpoint_steps=1)
    freeze = freezing.Freezing(frozen=["network/"])
    made = dataclasses.replace(
        made,
        model=dataclasses.replace(made.model, freezing=freeze),
        warm_start=transfer.WarmStart(source=str(folder), exclude=["^head/", "^features/"]),
    )
    verbs.train(made, str(tmp_path))
    found, source = tiny.variables(tmp_path), tiny.variables(folder)
    for name in ("network/trunk/hidden_0/kernel", "network/trunk/hidden_0/bias"):
        np.testing.assert_array_equal(found[name], source[name])
