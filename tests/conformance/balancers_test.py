"""Every balancer trains, keeps sparse gradients sparse, and trains each head by its task alone.

Three regression tasks share a looked-up table and a kernel; each task has a head, and one variable
serves no task.
"""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers
from mtl.balancing import methods, surgery, weighting
from mtl.optimization import optimizers, update
from mtl.step import whole_batch
from tests.conformance import balancers
from tests.optimization import training

tf1 = tf.compat.v1

TASKS = balancers.TASKS
RANDOM = np.random.default_rng(3)
IDS = RANDOM.integers(0, 8, size=[64])
TARGETS = {task: RANDOM.normal(size=[8, 1])[IDS].astype(np.float32) for task in TASKS}


# The losses of the best constant predictions.
UNTRAINED = {task: np.var(TARGETS[task]) for task in TASKS}


class Trained:
    """The gradients and the state of a balancer in a graph, and the losses after training."""

    def __init__(self, row):
        self.row = row
        # In the loop, as runs train.
        self.losses = training.train(self._build, 150, looped=True).monitors

    def _build(self, step):
        del step
        losses, batch = _losses()
        before = {variable.op.name for variable in tf1.global_variables()}
        weighted, gradients, variables = _balance(self.row, losses, batch)
        self.state = {variable.op.name for variable in tf1.global_variables()} - before
        self.gradients = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
        optimizer = optimizers.LazyAdam(learning_rate=0.02)
        train_op, _ = update.Update(optimizer=optimizer)(gradients, variables, losses)
        return train_op, losses | self._compare_heads(weighted, variables)

    def _compare_heads(self, weighted, variables):
        """Return {variable of a head: the error of its gradient above a relative 1e-6}."""
        found = {}
        for task in TASKS:
            own = [v for v in variables if v.op.name.startswith(f"head/{task}/")]
            for variable, wanted in zip(own, tf.gradients(weighted[task], own), strict=True):
                name = variable.op.name
                off = tf.abs(self.gradients[name] - wanted) - 1e-6 * tf.abs(wanted)
                found[name] = tf.reduce_max(off)
        return found


# All tests share one run, as it takes long to build the graph.
@pytest.fixture(scope="module", params=balancers.ROWS, ids=lambda row: row.name)
def trained(request):
    return Trained(request.param)


def _losses():
    """Losses, and the batch of the model, whose variables have real ones' scopes."""
    with tf1.variable_scope("features"):
        rows = layers.embedding(tf.constant(IDS), 10, 4, "table")
    with tf1.variable_scope("network"):
        tower = layers.dense(rows, 4, "hidden", tf.tanh)
        tf1.get_variable("unused", [2])
    squares = {}
    for task in TASKS:
        with tf1.variable_scope(f"head/{task}"):
            error = layers.dense(tower, 1, "output") - TARGETS[task]
        squares[task] = tf.square(error)

    def samples(count):
        cuts = [slice(first, None, count) for first in range(count)]
        return [{task: tf.reduce_mean(squares[task][cut]) for task in TASKS} for cut in cuts]

    (losses,) = samples(1)
    return losses, whole_batch.WholeBatch(whole_batch.ForwardPass(losses, [tower], samples))


def _balance(row, losses, batch):
    with tf1.variable_scope("balancing"):
        weighted = row.weighting(losses, tf1.train.get_or_create_global_step())
        variables = tf1.trainable_variables()
        weights = {task: tf.gradients(weighted[task], losses[task])[0] for task in losses}
        part = batch.first.scale_losses(weights)._replace(losses=weighted)
        gradients, _ = row.surgery(weighted, variables, whole_batch.WholeBatch(part))
    return weighted, gradients, variables


def test_every_balancer_has_a_row():
    assert {type(row.weighting).__name__ for row in balancers.ROWS} == set(weighting.__all__)
    shipped = {
        name
        for name, value in inspect.getmembers(surgery, inspect.isclass)
        if value.__module__ == surgery.__name__ and not name.startswith("_")
    }
    assert shipped == {type(row.surgery).__name__ for row in balancers.ROWS}


def test_every_method_has_a_row():
    combined = [row.surgery for row in balancers.ROWS if isinstance(row.surgery, surgery.Combine)]
    assert {type(part.method).__name__ for part in combined} == set(methods.__all__)


def test_every_task_gets_better(trained):
    for task in TASKS:
        assert trained.losses[task] < 0.7 * UNTRAINED[task], (task, trained.losses)


def test_one_gradient_per_variable_of_its_kind(trained):
    assert isinstance(trained.gradients["features/table"], tf.IndexedSlices)
    assert trained.gradients["network/unused"] is None
    for task in TASKS:
        assert isinstance(trained.gradients[f"head/{task}/output/kernel"], tf.Tensor)


def test_a_head_gets_the_gradient_of_its_own_weighted_loss(trained):
    for task in TASKS:
        for name in ("kernel", "bias"):
            assert trained.losses[f"head/{task}/output/{name}"] <= 0


def test_state_is_in_its_scope(trained):
    assert trained.state == {f"balancing/{name}" for name in trained.row.state}
