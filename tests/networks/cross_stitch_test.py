"""Networks whose stages read from each other: their equations, and where they meet others."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.variables import stacks

tf1 = tf.compat.v1

TASKS = ("a", "a_b", "c")
X = np.random.default_rng(0).normal(size=[9, 5]).astype(np.float32)


def _stages(*units):
    return [networks.MLP(layers=[size]) for size in units]


def _built(network, change=lambda values: values, training=False):
    """Values of the variables, the towers, and the penalties of a training step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        with tf1.variable_scope("network"):
            towers = network({"x": tf.constant(X)}, TASKS, training)
        penalties = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        variables = tf1.trainable_variables()
        session.run(tf1.global_variables_initializer())
        start = {v.op.name: session.run(v) for v in variables}
        values = change(dict(start))
        for variable in variables:
            variable.load(values[variable.op.name], session)
        return values, session.run(dict(towers)), session.run(penalties)


def _random_stitches(values):
    rng = np.random.default_rng(2)
    return {
        name: rng.normal(size=value.shape) if "stitch" in name or "mixture" in name else value
        for name, value in values.items()
    }


def _stage(values, level, task, x):
    name = f"network/stage_{level}/task_{task}/hidden_0"
    return np.maximum(x @ values[f"{name}/kernel"] + values[f"{name}/bias"], 0)


@pytest.mark.parametrize("per_unit", [False, True])
def test_cross_stitch_is_what_the_paper_says(per_unit):
    network = networks.CrossStitch(stages=_stages(4, 6), per_unit=per_unit)
    values, towers, _ = _built(network, _random_stitches)
    given = dict.fromkeys(TASKS, X)
    for level in range(2):
        found = [_stage(values, level, task, given[task]) for task in TASKS]
        weights = values[f"network/stitch_{level}"]  # [T, T] or [T, T, H]
        given = {
            task: sum(weights[t, s] * found[s] for s in range(len(TASKS)))
            for t, task in enumerate(TASKS)
        }
    for task in TASKS:
        np.testing.assert_allclose(towers[task], given[task], rtol=1e-4, atol=1e-5)


def test_sluice_is_what_the_paper_says():
    network = networks.Sluice(stages=_stages(6, 6), num_subspaces=2, orthogonality=0.1)
    values, towers, penalties = _built(network, _random_stitches, training=True)
    given, stages, expected = dict.fromkeys(TASKS, X), [], []
    for level in range(2):
        found = {task: _stage(values, level, task, given[task]) for task in TASKS}
        parts = [found[task][:, k : k + 3] for task in TASKS for k in (0, 3)]
        centred = [part - part.mean(axis=0) for part in parts]
        products = [centred[k + 1].T @ centred[k] / len(X) for k in (0, 2, 4)]
        expected.append(0.1 * sum((product**2).sum() for product in products))
        weights = values[f"network/stitch_{level}"]
        mixed = [sum(weights[i, j] * parts[j] for j in range(6)) for i in range(6)]
        given = {t: np.concatenate(mixed[2 * k : 2 * k + 2], 1) for k, t in enumerate(TASKS)}
        stages.append(given)
    for index, task in enumerate(TASKS):
        shares = values["network/mixture"][index]
        tower = sum(share * stage[task] for share, stage in zip(shares, stages, strict=True))
        np.testing.assert_allclose(towers[task], tower, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(penalties, expected, rtol=1e-4)


@pytest.mark.parametrize("kind", [networks.CrossStitch, networks.Sluice])
def test_stitches_start_with_most_of_a_tasks_own(kind):
    values, _, penalties = _built(kind(stages=_stages(4, 4), own=0.7))
    for name, weights in values.items():
        if "stitch" in name:
            first = weights if weights.ndim == 2 else weights[:, :, 0]
            np.testing.assert_allclose(np.diag(first), 0.7, rtol=1e-6)
            np.testing.assert_allclose(first.sum(axis=1), 1, rtol=1e-6)
    assert not penalties


@pytest.mark.parametrize("kind", [networks.CrossStitch, networks.Sluice])
def test_tasks_that_keep_to_themselves_are_single_tasks(kind):
    """With nothing of the others, at the values of a network for each task."""
    values, towers, _ = _built(kind(stages=_stages(4, 4), own=1.0))
    single = networks.SingleTask(trunk=networks.MLP(layers=[4, 4]))

    def of_stitched(start):
        renamed = {}
        for name in start:
            task, layer, kind_ = name.removeprefix("network/tower_").rsplit("/", 2)
            level = layer.removeprefix("hidden_")
            renamed[name] = values[f"network/stage_{level}/task_{task}/hidden_0/{kind_}"]
        return renamed

    _, alone, _ = _built(single, of_stitched)
    for task in TASKS:
        np.testing.assert_allclose(towers[task], alone[task], rtol=1e-5, atol=1e-6)


def test_what_the_last_stitch_reads_is_shared():
    with tf.Graph().as_default(), stacks.separate_tasks(True):
        towers = networks.CrossStitch(stages=_stages(4, 6))({"x": tf.constant(X)}, TASKS, True)
        (shared,) = towers.shared
        assert shared.shape == [9, 3, 6]
        assert None not in tf1.gradients(towers["a"], [shared, *tf1.trainable_variables()])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: networks.CrossStitch(stages=[]), "CrossStitch.stages must hold a trunk"),
        (
            lambda: networks.CrossStitch(stages=_stages(2), own=0),
            "CrossStitch.own must be in (0, 1]",
        ),
        (lambda: networks.Sluice(stages=networks.MLP()), "Sluice.stages must be a list of trunks"),
        (lambda: _built(networks.Sluice(stages=_stages(4, 6))), "have equally many units"),
        (
            lambda: _built(networks.Sluice(stages=_stages(5), num_subspaces=2)),
            "Sluice.num_subspaces must divide 5 units",
        ),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)
