import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.balancing import monitored, surgery
from mtl.optimization import optimizers, update
from mtl.step import whole_batch
from tests.optimization import training

tf1 = tf.compat.v1

STEPS, EVERY = 6, 3
TARGETS = {"up": np.array([1.0, 2.0, -1.0]), "down": np.array([-3.0, 1.0, 2.0]), "far": np.ones(3)}


def _step_fn(part):
    """Tasks pull a kernel and two rows of a table to their targets; `far` has only the kernel."""

    def step_fn(number):
        del number
        kernel = training.variable("network/a/kernel", [0.5, -0.5, 0.0])
        table = training.variable("network/b/table", np.arange(12).reshape(4, 3) / 10)
        rows = tf.reduce_sum(tf.gather(table, [1, 3, 1]), 0)
        losses = {name: tf.reduce_sum((kernel - target) ** 2) for name, target in TARGETS.items()}
        losses["up"] += tf.reduce_sum(rows * TARGETS["up"])
        losses["down"] += tf.reduce_sum(rows * TARGETS["down"])
        variables = tf1.trainable_variables()
        gradients, monitors = part(losses, variables)
        optimizer = optimizers.SGD(learning_rate=0.1)
        train_op, _ = update.Update(optimizer=optimizer)(gradients, variables, losses)
        return train_op, {**losses, **monitors}

    return step_fn


def _expected(kernel, with_table):
    """Return {name: value} of the norms, cosines and conflicts that are shown at a kernel."""
    rows = {}
    for name, target in TARGETS.items():
        table = np.zeros([4, 3])
        if with_table and name != "far":
            table[1], table[3] = 2 * target, target
        rows[name] = np.concatenate([2 * (kernel - target), table.ravel()])
    shown = {f"surgery/norm/{name}": np.linalg.norm(row) for name, row in rows.items()}
    for a, b in (("up", "down"), ("up", "far"), ("down", "far")):
        cosine = rows[a] @ rows[b] / np.linalg.norm(rows[a]) / np.linalg.norm(rows[b])
        shown[f"surgery/cosine/{a}/{b}"] = cosine
    cosines = [value for name, value in shown.items() if "cosine" in name]
    shown["surgery/conflicts"] = np.mean(np.array(cosines) < 0)
    return shown


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_shows_the_gradients_of_the_tasks_and_changes_nothing(looped):
    part = monitored.Monitored(every_steps=EVERY, scopes={"a": "^network/a/"})
    run = training.train(_step_fn(part), STEPS, looped)
    plain = training.train(_step_fn(surgery.Sum()), STEPS, looped)
    for name, value in plain.variables.items():
        np.testing.assert_array_equal(run.variables[name], value, err_msg=name)
    before = training.train(_step_fn(surgery.Sum()), STEPS - 1, looped).variables[
        "network/a/kernel"
    ]
    expected = _expected(before, with_table=True)
    expected |= {f"a/{name}": value for name, value in _expected(before, False).items()}
    assert expected.keys() == run.monitors.keys() - TARGETS.keys()
    for name, value in expected.items():
        assert run.monitors[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.medium
@pytest.mark.parametrize("on", ["representation", None])
def test_on_the_representation(on):
    def step_fn(number):
        del number
        kernel = training.variable("network/kernel", [0.5, -0.5, 0.0])
        shared = kernel * tf.constant([1.0, 2.0, 3.0])
        losses = {name: tf.reduce_sum((shared - target) ** 2) for name, target in TARGETS.items()}
        part = monitored.Monitored(every_steps=1, on=on)
        batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses, [shared]))
        gradients, monitors = part(losses, [kernel], batch)
        optimizer = optimizers.SGD(learning_rate=0.1)
        return update.Update(optimizer=optimizer)(gradients, [kernel], losses)[0], monitors

    shown = training.train(step_fn, 1, True).monitors
    for name, value in _expected(np.array([0.5, -1.0, 0.0]), with_table=False).items():
        assert shown[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.medium
def test_is_nan_when_it_is_not_due():
    shown = training.train(
        _step_fn(monitored.Monitored(every_steps=EVERY)), STEPS - 1, False
    ).monitors
    assert all(math.isnan(value) for name, value in shown.items() if name not in TARGETS)
    assert any(name.startswith("surgery/cosine/") for name in shown)


@pytest.mark.medium
def test_bad_settings_are_refused():
    with pytest.raises(checks.UserError, match="Monitored.every_steps must be at least 1, got 0"):
        monitored.Monitored(every_steps=0)
    with pytest.raises(checks.UserError, match="Monitored.surgery must be a part such as"):
        monitored.Monitored(surgery=surgery.Sum)
    with pytest.raises(checks.UserError, match="Monitored.scopes must be empty on the repr"):
        monitored.Monitored(on="representation", scopes={"x": "y"})
    with pytest.raises(checks.UserError, match="Monitored.on must suit the network"):
        training.train(_step_fn(monitored.Monitored(on="representation")), 1, False)
    part = monitored.Monitored(scopes={"x": "^network/c/"})
    with pytest.raises(checks.UserError, match="Monitored.scopes must match a variable"):
        training.train(_step_fn(part), 1, False)
