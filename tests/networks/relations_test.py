"""Relations between tasks: their equations, whose loss moves what, and orders that cannot be."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.balancing import task_gradients
from mtl.variables import stacks

tf1 = tf.compat.v1

TASKS = ("order", "click", "click_long")  # In no order, and one name is the start of another.
CHAIN = {"click_long": "click", "order": ["click_long", "click"]}
X = np.random.default_rng(0).normal(size=[7, 5]).astype(np.float32)


def _inner(tower=4):
    towers = networks.MLP(layers=[tower]) if tower else None
    return networks.SharedBottom(trunk=networks.MLP(layers=[6]), tower=towers)


def _dbmtl(**settings):
    relation = networks.MLP(layers=[3], activation="tanh")
    return networks.DBMTL(**{"network": _inner(), "after": CHAIN, "relation": relation, **settings})


def _aitm(**settings):
    return networks.AITM(**{"network": _inner(), "after": CHAIN, **settings})


def _res_flow(**settings):
    return networks.ResFlow(
        **{"network": _inner(None), "after": CHAIN, "layers": [4, 3], **settings}
    )


class Built:
    """A network in a new graph: values, towers, and the variables that each task's loss moves."""

    def __init__(self, network, apart=False):
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.set_random_seed(1)
            tf1.train.get_or_create_global_step()
            with tf1.variable_scope("network"), stacks.separate_tasks(apart):
                towers = network({"x": tf.constant(X)}, TASKS, True)
            variables = tf1.trainable_variables()
            losses = [tf.reduce_sum(tower**2) for tower in towers.values()]
            self.moves = {
                task: {
                    variable.op.name.removeprefix("network/")
                    for variable, gradient in zip(
                        variables, tf1.gradients(loss, variables), strict=True
                    )
                    if gradient is not None
                }
                for task, loss in zip(towers, losses, strict=True)
            }
            found = task_gradients.TaskGradients.from_losses(losses, variables, towers.shared)
            self.shared = {variables[n].op.name.removeprefix("network/") for n in found.shared}
            session.run(tf1.global_variables_initializer())
            names = [v.op.name.removeprefix("network/") for v in variables]
            # Biases that are 0 would hide a bias that is left out.
            for name, variable in zip(names, variables, strict=True):
                if name.endswith("/bias"):
                    variable.load(np.random.default_rng(len(name)).normal(size=variable.shape))
            self.values = dict(zip(names, session.run(variables), strict=True))
            self.towers = session.run(dict(towers))

    def dense(self, name, x):
        return x @ self.values[f"{name}/kernel"] + self.values[f"{name}/bias"]

    def relu(self, name, x):
        return np.maximum(self.dense(name, x), 0)

    def scopes(self, task):
        return {re.match("[^/]*", name).group() for name in self.moves[task]}


def _check(towers, expected):
    assert list(towers) == list(TASKS)
    for task in TASKS:
        np.testing.assert_allclose(towers[task], expected[task], rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_dbmtl_is_what_the_paper_says():
    made = Built(_dbmtl())
    bottom = made.relu("trunk/hidden_0", X)
    own = {task: made.relu(f"tower_{task}/hidden_0", bottom) for task in TASKS}
    h = {}
    for task, before in [("click", []), ("click_long", ["click"]), ("order", CHAIN["order"])]:
        seen = np.concatenate([own[task], *(h[other] for other in before)], axis=1)
        h[task] = np.tanh(made.dense(f"relation_{task}/hidden_0", seen))
    _check(made.towers, h)


@pytest.mark.medium
def test_aitm_is_what_the_paper_says():
    made = Built(_aitm())
    bottom = made.relu("trunk/hidden_0", X)
    own = {task: made.relu(f"tower_{task}/hidden_0", bottom) for task in TASKS}
    z = {"click": own["click"]}
    for task, before in [("click_long", ["click"]), ("order", CHAIN["order"])]:
        at = f"transfer_{task}"
        seen = [own[task], *(made.relu(f"{at}/from_{other}", z[other]) for other in before)]
        scores = np.stack(
            [
                (made.dense(f"{at}/query", u) * made.dense(f"{at}/key", u)).sum(axis=1) / np.sqrt(4)
                for u in seen
            ]
        )
        weights = np.exp(scores) / np.exp(scores).sum(axis=0)
        terms = zip(weights, seen, strict=True)
        z[task] = sum(w[:, None] * made.dense(f"{at}/value", u) for w, u in terms)
    _check(made.towers, z)


@pytest.mark.medium
def test_res_flow_is_what_the_paper_says():
    made = Built(_res_flow())
    h = {task: [made.relu("trunk/hidden_0", X)] for task in TASKS}
    for task, before in [("click", []), ("click_long", ["click"]), ("order", CHAIN["order"])]:
        for level in range(2):
            found = made.relu(f"flow_{task}/hidden_{level}", h[task][-1])
            h[task].append(found + sum(h[other][level + 1] for other in before))
    _check(made.towers, {task: outputs[-1] for task, outputs in h.items()})


@pytest.mark.medium
@pytest.mark.parametrize(
    ("network", "part"),
    [(_dbmtl(), "relation"), (_aitm(), "transfer"), (_res_flow(), "flow")],
    ids=["dbmtl", "aitm", "res_flow"],
)
def test_a_task_moves_its_own_towers_and_those_it_reads(network, part):
    """Under a surgery, which weighs a tower that others read from as shared."""
    made = Built(network, apart=True)
    own = [part] if part == "flow" else ["tower", part]
    parts = {task: {f"{name}_{task}" for name in own} for task in TASKS}
    if part == "transfer":
        parts["click"] = {"tower_click"}  # With none before it, it stays as it is.
    seen = {"click": ["click"], "click_long": ["click", "click_long"], "order": TASKS}
    for task in TASKS:
        assert made.scopes(task) == {"trunk"}.union(*(parts[other] for other in seen[task]))
    alone = {name for name in made.values if name.split("/")[0] in parts["order"]}
    assert made.shared == set(made.values) - alone


@pytest.mark.medium
def test_transfer_may_leave_the_towers_before_alone():
    made = Built(_aitm(stop_gradient=True), apart=True)
    for task in TASKS:
        own = {"trunk", f"tower_{task}", f"transfer_{task}"}
        assert made.scopes(task) == own - {"transfer_click"}


@pytest.mark.medium
@pytest.mark.parametrize("network", [_dbmtl(), _aitm()], ids=["dbmtl", "aitm"])
def test_relations_keep_the_names_of_the_network_within(network):
    assert set(Built(_inner()).values) < set(Built(network).values)


@pytest.mark.parametrize(
    ("inner", "shapes"),
    [(networks.SingleTask(trunk=networks.MLP(layers=[4])), []), (_inner(), [[7, 6]])],
    ids=["nothing", "trunk"],
)
def test_what_is_shared_is_what_the_network_within_shares(inner, shapes):
    with tf.Graph().as_default():
        towers = _aitm(network=inner)({"x": tf.constant(X)}, TASKS, False)
    assert [shared.shape for shared in towers.shared] == shapes


@pytest.mark.parametrize("make", [_dbmtl, _aitm, _res_flow])
@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({}, "after must map tasks to the tasks before them, got {}"),
        (["click"], "after must be a map from texts"),
        ({"order": []}, "after['order'] must hold a task, got []"),
        ({"order": 3}, "after['order'] must be a task or a list of tasks, got 3"),
        ({"order": ["click", "click"]}, "after['order'] must hold each name once"),
        ({"order": "order"}, "after must hold no cycle, got 'order -> order'"),
        (
            {"order": ["click"], "click": ["order"]},
            "after must hold no cycle, got 'order -> click -> order'",
        ),
        ({"order": ["clik"]}, "got 'clik'. Did you mean 'click'?"),
        ({"ordr": ["click"]}, "got 'ordr'. Did you mean 'order'?"),
    ],
)
def test_an_order_that_cannot_be_is_one_line(make, after, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        make(after=after)({"x": tf.constant(X)}, TASKS, True)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _dbmtl(network=networks.SharedBottom), "DBMTL.network must be a part"),
        (lambda: _dbmtl(relation=networks.MLP), "DBMTL.relation must be a part"),
        (lambda: _aitm(stop_gradient=1), "AITM.stop_gradient must be True or False"),
        (lambda: _res_flow(layers=[]), "ResFlow.layers must hold a size"),
        (lambda: _res_flow(activation="rleu"), "Did you mean 'relu'?"),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)
