import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.balancing import methods, surgery
from mtl.networks import codes as codes_lib
from mtl.step import outlets
from tests import images

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=[6, 4]).astype(np.float32)
PASS = networks.MLP(layers=[])
"""A trunk that passes the joined inputs on."""


def _build(part, training=True):
    """Run a network part on X: its output, losses by name, gradients and variables."""
    with tf.Graph().as_default() as graph:
        graph.seed = 2
        tf1.train.create_global_step()
        x = tf.constant(X)
        with tf1.variable_scope("network/trunk"), outlets.collect_losses() as losses:
            out = part({"x": x}, training)
        variables = {v.op.name.removeprefix("network/trunk/"): v for v in tf1.trainable_variables()}
        wanted = [x, *variables.values()]

        def differentiate(value):
            found = tf.gradients(value, wanted, unconnected_gradients="zero")
            found = [tf.convert_to_tensor(gradient) for gradient in found]
            return dict(zip(["x", *variables], found, strict=True))

        upstream = tf.constant(np.arange(1.0, 1 + X.size).reshape(len(X), -1), tf.float32)
        gradients = {name: differentiate(value) for name, value in losses.items()}
        if out.shape[1] == X.shape[1]:
            gradients["out"] = differentiate(out * upstream)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run((out, dict(losses), gradients, variables, upstream))


def _nearest(codes, groups):
    """The nearest codes of X by brute force: [B, G] and [B, H]."""
    size, number = codes.shape[1], len(codes) // groups
    own = codes.astype(np.float64).reshape(groups, number, size)
    cut = X.astype(np.float64).reshape(len(X), groups, 1, size)
    ids = ((cut - own) ** 2).sum(-1).argmin(-1)
    chosen = np.stack([own[g][ids[:, g]] for g in range(groups)], 1)
    return ids, chosen.reshape(len(X), -1)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rounds_to_the_nearest_codes_and_passes_the_gradient_on(groups):
    part = networks.Codes(trunk=PASS, num_codes=3, num_groups=groups)
    out, losses, gradients, variables, upstream = _build(part)
    codes = variables["codes"]
    ids, chosen = _nearest(codes, groups)
    np.testing.assert_array_equal(out, chosen.astype(np.float32))
    np.testing.assert_array_equal(gradients["out"]["x"], upstream)
    np.testing.assert_array_equal(gradients["out"]["codes"], np.zeros_like(codes))
    apart = X - chosen
    for name in ("codebook", "commitment"):
        np.testing.assert_allclose(losses[name], (apart**2).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(gradients["codebook"]["x"], np.zeros_like(X))
    np.testing.assert_allclose(gradients["commitment"]["x"], 2 * apart, rtol=1e-5)
    np.testing.assert_array_equal(gradients["commitment"]["codes"], np.zeros_like(codes))
    expected = np.zeros([groups, 3, 4 // groups])
    for row, found in enumerate(ids):
        for group, code in enumerate(found):
            expected[group, code] += -2 * apart[row].reshape(groups, -1)[group]
    np.testing.assert_allclose(
        gradients["codebook"]["codes"], expected.reshape(codes.shape), rtol=1e-4, atol=1e-6
    )


def test_the_gradient_of_codes_holds_the_rows_chosen_alone():
    with tf.Graph().as_default(), outlets.collect_losses() as losses:
        networks.Codes(trunk=PASS, num_codes=3)({"x": tf.constant(X)}, True)
        (codes,) = tf1.trainable_variables()
        assert isinstance(tf.gradients(losses["codebook"], codes)[0], tf.IndexedSlices)


def test_emits_nothing_outside_of_the_plain_pass_and_rounds_there_too():
    part = networks.Codes(trunk=PASS, num_codes=3, num_groups=2)
    with tf.Graph().as_default(), tf1.Session() as session:
        out = part({"x": tf.constant(X)}, training=False)
        session.run(tf1.global_variables_initializer())
        values, codes = session.run([out, tf1.trainable_variables()[0]])
    np.testing.assert_array_equal(values, _nearest(codes, 2)[1].astype(np.float32))


def test_shows_how_many_codes_are_used():
    ids = np.array([[0, 0], [0, 1], [0, 2], [0, 3]])
    with tf.Graph().as_default(), tf1.Session() as session:
        used, perplexity = session.run(codes_lib._describe(tf.constant(ids), 4))
    assert used == pytest.approx((1 / 4 + 1) / 2)
    assert perplexity == pytest.approx((1 + 4) / 2, rel=1e-5)


def _model(**settings):
    trunk = networks.MLP(layers=[4], activation="tanh")
    part = networks.Codes(trunk=trunk, num_codes=4, num_groups=2, **settings)
    return {"network": networks.SharedBottom(trunk=part)}


@pytest.mark.medium
def test_its_losses_are_balanced_and_move_what_they_concern():
    variables, monitors = images.take_steps(images.make_model(**_model()), steps=3)
    assert monitors["weight/commitment"] == 0.25
    assert monitors["weight/codebook"] == 1
    assert 0 < monitors["codes/trunk/used"] <= 1
    start = images.take_steps(images.make_model(**_model()), steps=0)[0]
    name = "network/trunk/codes"
    moved = np.abs(variables[name] - start[name]).max(1) > 0
    assert moved.any()
    free, monitors = images.take_steps(images.make_model(**_model(commitment=0.0)), steps=1)
    assert "commitment/loss" not in monitors
    held, _ = images.take_steps(images.make_model(**_model(commitment=5.0)), steps=1)
    np.testing.assert_array_equal(free[name], held[name])
    kernel = "network/trunk/coded/hidden_0/kernel"
    assert np.abs(free[kernel] - held[kernel]).max() > 1e-4


@pytest.mark.medium
def test_surgery_sees_the_codes_of_the_whole_batch():
    """By the parameters, because the commitment does not reach the codes, which tasks share."""
    made = images.make_model(**_model(), surgery=surgery.Combine(method=methods.PCGrad()))
    whole, sliced = images.take_steps(made)[0], images.take_steps(made, slices=4)[0]
    for name, value in whole.items():
        np.testing.assert_allclose(sliced[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_groups_have_to_divide_the_trunk():
    with pytest.raises(checks.UserError, match=r"num_groups must divide the 4 values .* got 3"):
        _build(networks.Codes(trunk=PASS, num_groups=3))


def test_two_parts_with_different_weights_are_refused():
    parts = [networks.Codes(trunk=PASS, commitment=weight) for weight in (0.25, 0.5)]
    with pytest.raises(checks.UserError, match="'commitment' must be the same in all parts"):
        images.make_model(network=networks.SharedBottom(trunk=networks.Stacked(trunks=parts)))


def test_categories_are_drawn_in_training_and_the_likeliest_elsewhere():
    part = networks.Categories(trunk=PASS, num_variables=2, num_classes=3)
    drawn, _, _, variables, _ = _build(part)
    likeliest, _, _, same, _ = _build(part, training=False)
    for name, value in variables.items():
        np.testing.assert_array_equal(value, same[name])
    for found in (drawn, likeliest):
        assert set(np.unique(found)) == {0.0, 1.0}
        np.testing.assert_array_equal(found.reshape(6, 2, 3).sum(-1), 1)
    logits = X @ variables["logits/kernel"] + variables["logits/bias"]
    np.testing.assert_array_equal(
        likeliest.reshape(6, 2, 3).argmax(-1), logits.reshape(6, 2, 3).argmax(-1)
    )
    assert (drawn != likeliest).any()
