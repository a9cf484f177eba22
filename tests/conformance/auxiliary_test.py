"""What every auxiliary loss must do, on each row of `tests.conformance.auxiliary`."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, networks
from mtl.auxiliary import activations as activations_lib
from mtl.balancing import methods, surgery, weighting
from mtl.variables import freezing
from tests import images
from tests.conformance.auxiliary import LOSSES

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1
ModeKeys = compat.estimator.ModeKeys


@pytest.fixture(params=LOSSES, ids=lambda row: row.name, scope="module")
def row(request):
    return request.param


@pytest.fixture(scope="module")
def trained(row):
    """Variables and monitors after two steps with the loss, on the whole batch."""
    return images.take_steps(_make_model(row))


@pytest.fixture(scope="module")
def without():
    """What functions found on models without a loss, which many rows share: {of what: found}."""
    return {}


@pytest.fixture
def plain(row, without):
    """The same without the loss."""
    made = _make_model(row, weight=None)
    return _remember(without, ("steps", made), lambda: images.take_steps(made))


def _remember(memory, key, find):
    key = repr(key)
    if key not in memory:
        memory[key] = find()
    return memory[key]


def _make_model(row, weight=1.0, **settings):
    return images.make_model(**{**row.choose_settings(weight), **settings})


def _assert_equal(actual, expected, left_out=None):
    """Variables are equal to the bit; an auxiliary loss may have some of its own."""
    for name, value in expected.items():
        if left_out and name.endswith(left_out):
            continue
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def _assert_close(row, actual, expected):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        tolerance = {"rtol": row.rtol, "atol": row.rtol / 100}
        np.testing.assert_allclose(actual[name], value, err_msg=name, **tolerance)


def test_it_is_balanced_and_shown_as_a_task_and_moves_the_network(row, trained, plain):
    variables, monitors = trained
    name = row.loss_name
    assert np.isfinite(monitors[f"{name}/loss"])
    assert monitors[f"weight/{name}"] == 1
    tasks = sum(monitors[f"{task}/loss"] for task in _make_model(row).loss_names)
    assert monitors["loss"] == pytest.approx(tasks, rel=1e-5)
    assert np.abs(variables[row.kernel] - plain[0][row.kernel]).max() > 0
    assert all(np.isfinite(value).all() for value in variables.values())


def test_a_seed_repeats_it(row, trained):
    _assert_equal(images.take_steps(_make_model(row))[0], trained[0])


@pytest.mark.parametrize("how", ["its own", "of the balancing", "of a schedule"])
def test_a_weight_of_0_is_a_run_without_it(row, plain, how):
    name = row.loss_name
    if row.emits and how != "of the balancing":
        pytest.skip("its weight is a number, and with 0 there is the same network")
    weights = {task: float(task != name) for task in _make_model(row).loss_names}
    made = {
        "its own": lambda: _make_model(row, weight=0.0),
        "of the balancing": lambda: _make_model(row, weighting=weighting.Fixed(weights=weights)),
        "of a schedule": lambda: _make_model(
            row, weight=lambda step: 0.0 * tf.cast(step, tf.float32)
        ),
    }[how]()
    variables, monitors = images.take_steps(made)
    _assert_equal(variables, plain[0], row.state)
    assert monitors["loss"] == plain[1]["loss"]
    if how == "its own":
        assert set(variables) == set(plain[0])
        assert f"{name}/loss" not in monitors


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_graphs_that_do_not_train_hold_no_op_more(row, mode, without):
    plain = _make_model(row, weight=None)
    expected = _remember(without, (mode, plain), lambda: images.build_graph(plain, mode))
    assert images.build_graph(_make_model(row), mode) == expected


def test_slices_on_replicas_add_up_to_the_whole_batch(row, trained):
    if row.is_of_slice:
        pytest.skip(row.is_of_slice)
    _assert_close(row, images.take_steps_on_replicas(_make_model(row), slices=2), trained[0])


def test_surgery_takes_it_for_a_task(row):
    made = _make_model(row, surgery=surgery.Combine(method=methods.PCGrad()))
    variables, monitors = images.take_steps(made)
    assert all(np.isfinite(value).all() for value in variables.values())
    assert np.isfinite(monitors[f"{row.loss_name}/loss"])
    if row.is_of_slice is None:
        sliced, of_slices = images.take_steps(made, slices=4)
        name = f"{row.loss_name}/loss"
        assert of_slices[name] == pytest.approx(monitors[name], rel=row.rtol)
        _assert_close(row, sliced, variables)


def test_frozen_parts_stay(row):
    layer = row.kernel.rpartition("/")[0]
    made = _make_model(row, freezing=freezing.Freezing(frozen=[layer]))
    start, _, second = (variables[row.kernel] for variables, _ in images.follow_steps(made))
    np.testing.assert_array_equal(second, start)


def test_averages_of_normalisations_move_by_the_plain_pass_alone(row, without):
    plain, made = (
        dataclasses.replace(found, network=_normalise(found.network))
        for found in (_make_model(row, weight=None), _make_model(row))
    )
    expected, _ = _remember(without, ("step", plain), lambda: images.take_steps(plain, steps=1))
    found, _ = images.take_steps(made, steps=1)
    names = [name for name in expected if "/moving_" in name and not name.endswith("average")]
    assert len(names) == 2
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def _normalise(part):
    """Return the network with batch norm in its first layers."""
    if isinstance(part, networks.MLP):
        return dataclasses.replace(part, batch_norm=True)
    if isinstance(part, networks.Stacked):
        return dataclasses.replace(part, trunks=[_normalise(part.trunks[0]), *part.trunks[1:]])
    return dataclasses.replace(part, trunk=_normalise(part.trunk))


@pytest.mark.parametrize("row", [r for r in LOSSES if r.held], ids=lambda row: row.name)
def test_a_step_with_what_is_held_fed_as_a_constant_is_the_same_step(row, monkeypatch):
    (owner, name), kept = row.held, []
    compute = getattr(owner, name)

    def record(self, *args):
        kept.append(compute(self, *args))
        return kept[-1]

    monkeypatch.setattr(owner, name, record)
    first, values = _first_step(_make_model(row), lambda: kept)
    (held,) = values

    def feed(self, *args):
        compute(self, *args)  # What it leaves for later steps.
        return tf.nest.map_structure(tf.constant, held)

    monkeypatch.setattr(owner, name, feed)
    fed, _ = _first_step(_make_model(row), lambda: ())
    for variable, value in first.items():
        np.testing.assert_allclose(fed[variable], value, rtol=1e-6, err_msg=variable)


def test_no_gradient_goes_through_what_inputs_are_moved_by(row, trained, monkeypatch):
    """A step with the perturbations, and what a teacher says, fed as constants is the same step."""
    run, moves, teachers = activations_lib.Activations.run, [], []

    def record(self, inputs, **settings):
        found = run(self, inputs, **settings)
        moves.append({name: inputs[name] - self.inputs[name] for name in inputs})
        teachers.append(found.logits if settings.get("replace") else {})
        return found

    monkeypatch.setattr(activations_lib.Activations, "run", record)
    first = _first_step(_make_model(row), lambda: (moves, teachers))
    if not moves:
        pytest.skip("it does not run the network again")
    values, called = first[1], iter(range(len(moves)))

    def feed(self, inputs, **settings):
        index = next(called)
        given = {name: self.inputs[name] + values[0][index][name] for name in inputs}
        found = run(self, given, **settings)
        held = {task: tf.constant(value) for task, value in values[1][index].items()}
        return dataclasses.replace(found, logits=held or found.logits)

    monkeypatch.setattr(activations_lib.Activations, "run", feed)
    fed = _first_step(_make_model(row), lambda: ())
    for name, value in first[0].items():
        np.testing.assert_allclose(fed[0][name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def _first_step(made, fetches):
    """The variables after a step, and the values of fetches before it."""
    with tf.Graph().as_default() as graph:
        graph.seed = 1
        tf1.train.create_global_step()
        train_op = images.build_step(made)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            values = session.run(fetches())
            session.run(train_op)
            variables = {variable.op.name: variable for variable in tf1.global_variables()}
            return session.run(variables), values
