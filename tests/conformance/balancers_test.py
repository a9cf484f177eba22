"""What every balancer must do: train, keep sparse gradients sparse, leave each head its own task.

Three regression tasks share a looked-up table and a kernel; each has a head of its own, and one
variable serves no task.
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


# What the best constant prediction would leave of each loss.
UNTRAINED = {task: np.var(TARGETS[task]) for task in TASKS}


def _ids(row):
    return row.name


class Built:
    """What a balancer leaves in the graph of a step, and the losses after training."""

    def __init__(self, row):
        self.row = row

    def train(self):
        """The losses after training in the loop, as runs train."""
        return training.train(self.build, 150, looped=True).monitors

    def build(self, step):
        del step
        losses, batch = _losses()
        before = {variable.op.name for variable in tf1.global_variables()}
        self.weighted, self.gradients, self.variables = _balance(self.row, losses, batch)
        self.graph = tf1.get_default_graph()
        self.state = {variable.op.name for variable in tf1.global_variables()} - before
        optimizer = optimizers.LazyAdam(learning_rate=0.02)
        train_op, _ = update.Update(optimizer=optimizer)(self.gradients, self.variables, losses)
        return train_op, losses


# One graph for all that is asked of it: to build it is what takes time.
@pytest.fixture(scope="module", params=balancers.ROWS, ids=_ids)
def built(request):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        made = Built(request.param)
        made.build(0)
    return made


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


@pytest.mark.medium
@pytest.mark.parametrize("row", balancers.ROWS, ids=_ids)
def test_every_task_gets_better(row):
    losses = Built(row).train()
    for task in TASKS:
        assert losses[task] < 0.7 * UNTRAINED[task], (task, losses)


@pytest.mark.medium
def test_one_gradient_per_variable_of_its_kind(built):
    kinds = {
        variable.op.name: gradient
        for variable, gradient in zip(built.variables, built.gradients, strict=True)
    }
    assert isinstance(kinds["features/table"], tf.IndexedSlices)
    assert kinds["network/unused"] is None
    for task in TASKS:
        assert isinstance(kinds[f"head/{task}/output/kernel"], tf.Tensor)


@pytest.mark.medium
def test_a_head_gets_the_gradient_of_its_own_weighted_loss(built):
    with built.graph.as_default(), tf1.Session() as session:
        pairs = {}
        for variable, gradient in zip(built.variables, built.gradients, strict=True):
            if variable.op.name.startswith("head/"):
                task = variable.op.name.split("/")[1]
                own = tf.gradients(built.weighted[task], variable)[0]
                pairs[variable.op.name] = (gradient, own)
        session.run(tf1.global_variables_initializer())
        for name, pair in session.run(pairs).items():
            np.testing.assert_allclose(*pair, rtol=1e-6, err_msg=name)


@pytest.mark.medium
def test_state_is_in_its_scope(built):
    assert built.state == {f"balancing/{name}" for name in built.row.state}
