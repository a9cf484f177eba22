"""Centralisation, noise, look-ahead and optimizers by pattern, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.optimization import clipping, lookahead, optimizers, transforms, update
from tests.optimization import references, training

STEPS = 7
RANDOM = np.random.default_rng(0)
NAMES = ("kernel", "table", "bias")
START = {name: RANDOM.normal(size=[4, 3]) for name in NAMES}
GRADIENTS = RANDOM.normal(size=[STEPS, 4, 3])
ROWS = np.array([2, 0, 2])
SLICES = RANDOM.normal(size=[STEPS, 3, 3])


def _step_fn(part, variables=NAMES):
    """Steps with a dense gradient; that of `table` has rows, one of them twice."""

    def step_fn(step):
        made = [training.variable(name, START[name]) for name in variables]
        dense = tf.gather(GRADIENTS.astype(np.float32), step)
        rows = tf.gather(SLICES.astype(np.float32), step)
        sparse = tf.IndexedSlices(rows, tf.constant(ROWS), tf.constant([4, 3]))
        return part([sparse if name == "table" else dense for name in variables], made)

    return step_fn


def _moves(name):
    if name == "table":
        return [(ROWS, values) for values in SLICES]
    return [(np.arange(4), gradient) for gradient in GRADIENTS]


def _close(actual, expected, name=""):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_optimizers_by_pattern(looped):
    part = update.Update(
        optimizer=optimizers.SGD(learning_rate=0.1),
        optimizers={
            "^table$": optimizers.Adagrad(learning_rate=0.2),
            "table|kernel": optimizers.AdamW(learning_rate=0.3, weight_decay=0.2),
        },
        rates={"kernel": 0.5},
    )
    result = training.train(_step_fn(part), STEPS, looped)
    expected = {
        "kernel": (references.adam(weight_decay=0.2), 0.15),
        "table": (references.adagrad, 0.2),
        "bias": (references.sgd, 0.1),
    }
    for name, (reference, rate) in expected.items():
        value = references.train(reference, START[name], _moves(name), [rate] * STEPS, True)
        _close(result.variables[name], value, name)
    slots = {"table/Adagrad", "kernel/Adam", "kernel/Adam_1", "beta1_power", "beta2_power"}
    assert set(result.variables) == {*NAMES, *slots, "global_step"}
    assert result.monitors["learning_rate"] == np.float32(0.1)


@pytest.mark.parametrize("pattern", ["tabel", "kernel"])
def test_a_pattern_that_is_left_nothing(pattern):
    sgd = optimizers.SGD()
    part = update.Update(optimizers={"kernel$": sgd, pattern + "|zzz": sgd})
    with pytest.raises(checks.UserError, match="Update.optimizers must match a variable"):
        training.train(_step_fn(part), 1, looped=False)


def test_centralization():
    part = update.Update(
        optimizer=optimizers.SGD(learning_rate=1.0), transforms=[transforms.Centralization()]
    )
    result = training.train(_step_fn(part, ("kernel", "table")), 1, looped=False).variables
    gradient = GRADIENTS[0] - GRADIENTS[0].mean(axis=0)
    _close(result["kernel"], START["kernel"] - gradient)
    _close(result["kernel"].sum(axis=0), START["kernel"].sum(axis=0))
    table = references.train(references.sgd, START["table"], _moves("table")[:1], [1.0], True)
    _close(result["table"], table)


@pytest.mark.medium
def test_transforms_are_taken_in_order_and_know_the_norm_of_what_they_get():
    parts = [transforms.Centralization(), clipping.GlobalNorm(max_norm=1.0)]
    for transformed in (parts, parts[::-1]):
        part = update.Update(optimizer=optimizers.SGD(learning_rate=1.0), transforms=transformed)
        result = training.train(_step_fn(part, ("kernel",)), 1, looped=False).variables
        gradient = GRADIENTS[0]
        for own in transformed:
            if own is parts[0]:
                gradient = gradient - gradient.mean(axis=0)
            else:
                gradient = gradient / np.linalg.norm(gradient)
        _close(result["kernel"], START["kernel"] - gradient)


@pytest.mark.medium
def test_noise_has_its_variance_and_depends_on_the_step_alone():
    part = update.Update(
        optimizer=optimizers.SGD(learning_rate=1.0),
        transforms=[transforms.Noise(scale=0.25, decay=2.0)],
    )

    def step_fn(step):
        del step
        names = ("a", "b")
        zeros = [training.variable(name, np.zeros([100, 50])) for name in names]
        return part([tf.zeros([100, 50]) for _ in names], zeros)

    one, two = (training.train(step_fn, steps, looped=True).variables for steps in (1, 2))
    again = training.train(step_fn, 1, looped=False).variables
    np.testing.assert_array_equal(one["a"], again["a"])
    assert (one["a"] != one["b"]).mean() > 0.99
    assert abs(one["a"].mean()) < 5 * 0.5 / np.sqrt(5000)
    np.testing.assert_allclose(one["a"].std(), 0.5, rtol=0.05)
    np.testing.assert_allclose((two["a"] - one["a"]).std(), 0.25, rtol=0.05)


def test_noise_reaches_only_the_rows_of_the_batch():
    part = update.Update(optimizer=optimizers.SGD(), transforms=[transforms.Noise()])
    result = training.train(_step_fn(part, ("table",)), STEPS, looped=True).variables["table"]
    same = result == START["table"].astype(np.float32)
    assert same[[1, 3]].all() and not same[[0, 2]].any()


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_lookahead(looped):
    part = update.Update(
        optimizer=lookahead.Lookahead(
            optimizer=optimizers.Momentum(learning_rate=0.1), steps=3, rate=0.4
        )
    )
    result = training.train(_step_fn(part), STEPS, looped).variables
    weights, state = START["kernel"].copy(), {}
    slow = weights.copy()
    for t, gradient in enumerate(GRADIENTS, 1):
        references.momentum(nesterov=False)(weights, state, gradient, 0.1, t)
        if t % 3 == 0:
            slow += 0.4 * (weights - slow)
            weights[:] = slow
    _close(result["kernel"], weights)
    momentum = references.momentum(nesterov=False)
    table = references.train(momentum, START["table"], _moves("table"), [0.1] * STEPS, True)
    _close(result["table"], table)
    assert result["lookahead_steps"] == STEPS
    assert {"kernel/Lookahead", "kernel/Momentum"} <= set(result)


@pytest.mark.medium
def test_lookahead_goes_on_in_the_middle_of_a_round(tmp_path):
    part = update.Update(optimizer=lookahead.Lookahead(optimizer=optimizers.LazyAdam()))
    step_fn = _step_fn(part)

    def from_global_step(batch):
        del batch
        return step_fn(tf.compat.v1.train.get_global_step().read_value())

    path = str(tmp_path / "model.ckpt")
    training.train(from_global_step, 3, looped=True, save=path)
    resumed = training.train(from_global_step, STEPS - 3, looped=True, restore=path).variables
    whole = training.train(from_global_step, STEPS, looped=True).variables
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


SGD = optimizers.SGD()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: update.Update(optimizers=[SGD]), "Update.optimizers must map patterns"),
        (lambda: update.Update(optimizers={"(": SGD}), "Update.optimizers must hold regular"),
        (lambda: update.Update(optimizers={"x": 3}), r"Update.optimizers\['x'\] must be a part"),
        (lambda: update.Update(transforms=transforms.Noise()), "Update.transforms must be a list"),
        (lambda: update.Update(transforms=[transforms.Noise]), "Update.transforms must be a part"),
        (lambda: transforms.Noise(scale=0), "Noise.scale must be above 0, got 0"),
        (lambda: lookahead.Lookahead(optimizer=SGD, steps=1), "Lookahead.steps must be at least 2"),
        (lambda: lookahead.Lookahead(optimizer=SGD, rate=2), r"Lookahead.rate must be in \(0, 1\]"),
        (lambda: lookahead.Lookahead(optimizer=3), "Lookahead.optimizer must be a part"),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
