"""Trees that are learned: the equation, one branch alone, draws and their temperature."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.balancing import task_gradients
from mtl.optimization import schedules
from mtl.step import draws, outlets
from mtl.variables import stacks

tf1 = tf.compat.v1

TASKS = ("click", "click_long")
X = np.random.default_rng(0).normal(size=[7, 5]).astype(np.float32)


def _ltb(**settings):
    levels, tower = [_tanh(6), _tanh(4)], _tanh(2)
    return networks.LTB(**{"levels": levels, "num_nodes": [2, 3], "tower": tower, **settings})


def _tanh(*sizes):
    return networks.MLP(layers=sizes, activation="tanh")


def _random(values):
    """Probabilities that are not all alike."""
    random = np.random.default_rng(2)
    return {n: random.normal(size=v.shape) if "choice" in n else v for n, v in values.items()}


def _certain(chosen):
    """Probabilities of 0 and 1: {the end of the variable's name: the parent}."""

    def change(values):
        made = dict(values)
        for name, parent in chosen.items():
            made[f"network/{name}"] = 1e4 * np.eye(len(values[f"network/{name}"]))[parent]
        return made

    return change


class Built:
    """A network in a new graph, with its values, towers and gradients at a step."""

    def __init__(self, network, change=_random, training=True, apart=False, step=0, seed=1):
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.set_random_seed(seed)
            global_step = tf1.train.get_or_create_global_step()
            with tf1.variable_scope("network"), stacks.separate_tasks(apart):
                towers = network({"x": tf.constant(X)}, TASKS, training)
            variables = tf1.trainable_variables()
            self.names = [v.op.name for v in variables]
            losses = [tf.reduce_sum(tower**2) for tower in towers.values()]
            found = [tf1.gradients(loss, variables) for loss in losses]
            shared = task_gradients.TaskGradients.from_losses(losses, variables, towers.shared)
            self.shared = {self.names[n] for n in shared.shared}
            shown = outlets.take_scalars()
            noise = {
                variable.op.name: -tf.math.log(
                    -tf.math.log(
                        tf.random.stateless_uniform(variable.shape, _seed(variable.op.name))
                    )
                )
                for variable in variables
                if "choice" in variable.op.name
            }
            session.run(tf1.global_variables_initializer())
            global_step.load(step, session)
            start = dict(zip(self.names, session.run(variables), strict=True))
            self.values = change(dict(start))
            for variable in variables:
                variable.load(self.values[variable.op.name], session)
            self.towers, self.shown, self.noise = session.run([dict(towers), shown, noise])
            self.gradients = {
                task: {
                    name: None if g is None else session.run(g)
                    for name, g in zip(self.names, of_task, strict=True)
                }
                for task, of_task in zip(TASKS, found, strict=True)
            }


def _seed(name):
    """The seed of a variable's draw, made in the scope where the network makes it."""
    scope, _, last = name.rpartition("/")
    with tf1.variable_scope(scope):
        return draws.make_step_seed(f"{last}/draw")


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def _mlp(values, scope, x):
    name = f"network/{scope}/hidden_0"
    return np.tanh(x @ values[f"{name}/kernel"] + values[f"{name}/bias"])


def _towers(made, choose):
    """The towers by the equation; `choose` gives what a child takes of its parents."""
    nodes = [_mlp(made.values, f"level_0/node_{i}", X) for i in range(2)]

    def read(scope, parents):
        shares = choose(f"network/{scope}")
        return sum(share * parent for share, parent in zip(shares, parents, strict=True))

    given = [read(f"level_1/choice_{i}", nodes) for i in range(3)]
    nodes = [_mlp(made.values, f"level_1/node_{i}", x) for i, x in enumerate(given)]
    return {t: _mlp(made.values, f"tower_{t}", read(f"choice_{t}", nodes)) for t in TASKS}


@pytest.mark.medium
@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.always
def test_ltb_is_what_the_paper_says(temperature):
    made = Built(_ltb(temperature=temperature))
    expected = _towers(
        made, lambda name: _softmax((made.values[name] + made.noise[name]) / temperature)
    )
    for task in TASKS:
        np.testing.assert_allclose(made.towers[task], expected[task], rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_outside_of_training_the_most_likely_parent_counts_alone():
    made = Built(_ltb(), training=False)
    expected = _towers(made, lambda n: np.eye(len(made.values[n]))[made.values[n].argmax()])
    for task in TASKS:
        np.testing.assert_allclose(made.towers[task], expected[task], rtol=1e-4, atol=1e-5)
    assert made.shown == {}


CHOSEN = {
    "level_1/choice_0": 1,
    "level_1/choice_1": 0,
    "level_1/choice_2": 1,
    "choice_click": 2,
    "choice_click_long": 0,
}


@pytest.mark.medium
@pytest.mark.parametrize("training", [False, True])
def test_a_certain_branch_is_the_plain_network_of_it(training):
    made = Built(_ltb(), _certain(CHOSEN), training)
    plain = networks.SingleTask(trunk=_tanh(6, 4, 2))
    of_layers = {"click": ["level_0/node_1", "level_1/node_2", "tower_click"]}
    of_layers["click_long"] = ["level_0/node_1", "level_1/node_0", "tower_click_long"]

    def renamed(values):
        found = {}
        for name in values:
            task, layer, kind = name.removeprefix("network/tower_").split("/")
            scope = of_layers[task][int(layer.removeprefix("hidden_"))]
            found[name] = made.values[f"network/{scope}/hidden_0/{kind}"]
        return found

    alone = _of_plain(plain, renamed)
    for task in TASKS:
        np.testing.assert_allclose(made.towers[task], alone[task], rtol=1e-5, atol=1e-6)
        for name, gradient in made.gradients[task].items():
            if "/node_" in name:
                is_reached = any(f"/{scope}/" in name for scope in of_layers[task])
                assert (np.abs(gradient).max() > 0) == is_reached, name


def _of_plain(network, change):
    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("network"):
            towers = network({"x": tf.constant(X)}, TASKS, False)
        values = change([variable.op.name for variable in tf1.trainable_variables()])
        for variable in tf1.trainable_variables():
            variable.load(values[variable.op.name], session)
        return session.run(dict(towers))


@pytest.mark.medium
def test_choices_are_drawn_anew_at_every_step_and_repeat():
    first, again, later = (Built(_ltb(), step=step) for step in (3, 3, 4))
    np.testing.assert_array_equal(first.towers["click"], again.towers["click"])
    assert np.abs(first.towers["click"] - later.towers["click"]).max() > 1e-4


def test_all_slices_of_a_batch_take_the_same_branches():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        found = []
        for index in (0, 3):
            with draws.draw_for_slice(index):
                found.append(_ltb()._draw(tf.zeros([2, 4]), ["a", "b"]))
        session.run(tf1.global_variables_initializer())
        first, other = session.run(found)
    np.testing.assert_array_equal(first, other)
    assert np.ptp(first) > 0


@pytest.mark.medium
def test_the_temperature_may_fall_with_the_step():
    schedule = schedules.Polynomial(value=9.0, end_value=1.0, decay_steps=8)
    for step, temperature in [(0, 9.0), (4, 5.0), (20, 1.0)]:
        falling = Built(_ltb(temperature=schedule), step=step)
        fixed = Built(_ltb(temperature=temperature), step=step)
        np.testing.assert_allclose(falling.towers["click"], fixed.towers["click"], rtol=1e-5)
    cold = schedules.Polynomial(value=1.0, decay_steps=8)  # Down to 0.
    assert np.isfinite(Built(_ltb(temperature=cold), step=9).towers["click"]).all()


@pytest.mark.medium
def test_warm_steps_leave_the_probabilities_as_they_are():
    for step in (1, 2):
        of_task = Built(_ltb(warm_steps=2), step=step).gradients["click"]
        choices = [g for n, g in of_task.items() if "choice" in n and g is not None]
        assert (max(np.abs(g).max() for g in choices) > 0) == (step == 2)
        assert np.abs(of_task["network/level_0/node_0/hidden_0/kernel"]).max() > 0


@pytest.mark.medium
def test_what_belongs_to_one_task_is_not_shared():
    made = Built(_ltb(), apart=True)
    for task, other in (TASKS, TASKS[::-1]):
        own = {n for n in made.names if re.match(f"network/(tower_{task}/|choice_{task}$)", n)}
        assert own == {n for n in made.names if made.gradients[other][n] is None}
        assert not own & made.shared
    together = Built(_ltb())
    for task in TASKS:  # The same draws, in one product or each by itself.
        np.testing.assert_allclose(made.towers[task], together.towers[task], rtol=1e-5, atol=1e-6)


@pytest.mark.medium
def test_monitors_show_the_probabilities_of_branches():
    made = Built(_ltb())
    for child, variable, count in [
        ("level_1/node_2", "level_1/choice_2", 2),
        ("task_click_long", "choice_click_long", 3),
    ]:
        shown = [made.shown[f"branch/{child}/node_{parent}"] for parent in range(count)]
        expected = _softmax(made.values[f"network/{variable}"])
        np.testing.assert_allclose(shown, expected, rtol=1e-5)
    assert len(made.shown) == 3 * 2 + 2 * 3


@pytest.mark.medium
def test_a_level_of_one_node_leaves_no_choice():
    made = Built(_ltb(num_nodes=[1, 1]))
    assert not any("choice" in name for name in made.names) and made.shown == {}
    hidden = _mlp(made.values, "level_1/node_0", _mlp(made.values, "level_0/node_0", X))
    for task in TASKS:
        expected = _mlp(made.values, f"tower_{task}", hidden)
        np.testing.assert_allclose(made.towers[task], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"levels": []}, "LTB.levels must hold a trunk"),
        ({"levels": networks.MLP()}, "LTB.levels must be a list of trunks"),
        ({"num_nodes": [2]}, "LTB.num_nodes must hold a number for each of 2 levels, got [2]"),
        ({"num_nodes": [2, 0]}, "LTB.num_nodes must be above 0"),
        ({"tower": networks.MLP}, "LTB.tower must be a part"),
        ({"temperature": 0}, "LTB.temperature must be above 0"),
        ({"temperature": schedules.Polynomial}, "LTB.temperature must be a number or a schedule"),
        ({"warm_steps": -1}, "LTB.warm_steps must be at least 0"),
    ],
)
def test_bad_settings_are_one_line(settings, says):
    with pytest.raises(checks.UserError) as error:
        _ltb(**settings)
    assert says in str(error.value) and "\n" not in str(error.value)
