import numpy as np
import pytest
import tensorflow as tf

from mtl.optimization import clipping, optimizers, regularization, update
from tests.optimization import training

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(1)
WEIGHTS = {
    "network/kernel": RANDOM.normal(size=[3, 2]),
    "network/bias": RANDOM.normal(size=[2]),
    "features/table": RANDOM.normal(size=[6, 2]),
    "head/income/kernel": RANDOM.normal(size=[2, 1]),
}
IDS = [4, 1, 4]
SETTINGS = {"l1": {"/kernel$": 0.3}, "l2": {"^network/": 0.5, "table": 0.2, "network/k": 0.25}}
RATE = 0.125


def _penalty(weights):
    """The penalty of `SETTINGS`, over the rows that are looked up."""
    rows = weights["features/table"][sorted(set(IDS))]
    return (
        0.3 * np.abs(weights["network/kernel"]).sum()
        + 0.3 * np.abs(weights["head/income/kernel"]).sum()
        + 0.5 / 2 * (weights["network/kernel"] ** 2).sum()
        + 0.25 / 2 * (weights["network/kernel"] ** 2).sum()
        + 0.5 / 2 * (weights["network/bias"] ** 2).sum()
        + 0.2 / 2 * (rows**2).sum()
    )


def _slopes(function, weights, width=1e-5):
    """{name: gradient} by central differences."""
    slopes = {}
    for name, value in weights.items():
        slopes[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: entry.copy() for key, entry in weights.items()}
                moved[name][index] += sign * width
                ends.append(function(moved))
            slopes[name][index] = (ends[0] - ends[1]) / (2 * width)
    return slopes


def _step_fn(settings, collect=None, max_norm=float("inf")):
    """A step whose tasks' gradients are zero, so that only the penalty moves weights."""

    def step_fn(step):
        del step
        variables = []
        for name, value in WEIGHTS.items():
            initializer = tf1.constant_initializer(value)
            regularizer = collect if name == "network/kernel" else None
            variables.append(
                tf1.get_variable(name, value.shape, tf.float32, initializer, regularizer)
            )
        kernel, bias, table, _ = variables
        loss = 0.0 * (tf.reduce_sum(kernel) + tf.reduce_sum(bias))
        loss += 0.0 * tf.reduce_sum(tf.gather(table, IDS))
        gradients = tf.gradients(loss, variables)
        assert isinstance(gradients[2], tf.IndexedSlices)
        assert gradients[3] is None
        return update.Update(
            optimizer=optimizers.SGD(learning_rate=RATE),
            regularization=regularization.Regularization(**settings),
            clipping=clipping.GlobalNorm(max_norm=max_norm),
        )(gradients, variables)

    return step_fn


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_gradient_by_finite_differences(looped):
    result = training.train(_step_fn(SETTINGS), 3, looped)
    weights = {name: value.copy() for name, value in WEIGHTS.items()}
    for _ in range(3):
        before = _penalty(weights)
        slopes = _slopes(_penalty, weights)
        weights = {name: value - RATE * slopes[name] for name, value in weights.items()}
    for name, expected in weights.items():
        np.testing.assert_allclose(result.variables[name], expected, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(result.monitors["regularization"], before, rtol=1e-6)
    norm = np.sqrt(sum((slope**2).sum() for slope in slopes.values()))
    np.testing.assert_allclose(result.monitors["gradient_norm"], norm, rtol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_the_graphs_own_losses_are_added(looped):
    def collect(weights):
        return 0.5 * tf.reduce_sum(tf.square(weights))

    result = training.train(_step_fn({"l2": {"/kernel$": 0.5}}, collect), 4, looped).variables
    shrunk = {"network/kernel": 1 + 0.5, "network/bias": 0, "head/income/kernel": 0.5}
    for name, slope in shrunk.items():
        expected = WEIGHTS[name] * (1 - RATE * slope) ** 4
        np.testing.assert_allclose(result[name], expected, rtol=1e-5, err_msg=name)


def test_the_penalty_is_clipped_with_the_rest():
    result = training.train(_step_fn(SETTINGS, max_norm=0.01), 1, looped=False)
    moved = sum(((result.variables[name] - WEIGHTS[name]) ** 2).sum() for name in WEIGHTS)
    np.testing.assert_allclose(np.sqrt(moved), RATE * 0.01, rtol=1e-3)


def test_without_penalties_there_is_nothing_to_watch():
    result = training.train(_step_fn({}), 1, looped=False)
    assert set(result.monitors) == {"learning_rate", "gradient_norm"}


def test_a_pattern_without_a_match_names_the_nearest_variables():
    message = r"Regularization.l2 must match a variable, got 'netwrok/'. Nearest: network"
    with pytest.raises(ValueError, match=message):
        training.train(_step_fn({"l2": {"netwrok/": 0.1}}), 1, looped=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l1": {"x": 0}}, r"Regularization.l1\['x'\] must be above 0, got 0"),
        ({"l2": {"(": 1.0}}, r"Regularization.l2 must hold regular expressions, got '\('"),
        ({"l2": 0.1}, "Regularization.l2 must map patterns to factors, got 0.1"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        regularization.Regularization(**settings)
