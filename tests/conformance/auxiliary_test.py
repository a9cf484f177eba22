"""The contract of auxiliary losses, for every row of `tests.conformance.auxiliary`."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

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
_SURGERY = surgery.Combine(method=methods.PCGrad())


@pytest.fixture(params=LOSSES, ids=lambda row: row.name, scope="module")
def row(request):
    return request.param


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Built:
    """A step with the loss, on the whole batch.

    Attributes:
      weights: {whose: the weight of the loss}, which a session may feed.
      constants: tensors that are constant to gradients, see `_record`.
    """

    step: images.Step
    weights: Mapping[str, tf.Tensor]
    constants: Mapping[str, list]


class _Fed:
    """A schedule whose value is 1 unless a session feeds another value."""

    def __call__(self, step):
        self.value = tf1.placeholder_with_default(1.0, [])
        return self.value


@pytest.fixture(scope="module")
def built(row):
    fed = {"the balancing": _Fed(), "a schedule": _Fed()}
    weight = 1.0 if row.emits else fed["a schedule"]
    weights = dict.fromkeys(_make_model(row).loss_names, 1.0)
    weights[row.loss_name] = fed["the balancing"]
    with _record(row) as constants:
        made = _make_model(row, weight, weighting=weighting.Scheduled(weights=weights))
        step = images.Step(made)
    tensors = {whose: part.value for whose, part in fed.items() if hasattr(part, "value")}
    return _Built(step=step, weights=tensors, constants=constants)


@pytest.fixture(scope="module")
def trained(built):
    """Variables and monitors at first, and after each of two steps."""
    return list(built.step.follow())


@pytest.fixture(scope="module")
def without():
    """A cache {key: result} for models without a loss, which many rows share."""
    return {}


@pytest.fixture
def plain(row, without):
    """Variables and monitors after two steps without the loss."""
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
    """Fail unless the expected variables are equal to the bit; a loss may add variables."""
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
    variables, monitors = trained[-1]
    name = row.loss_name
    assert np.isfinite(monitors[f"{name}/loss"])
    assert monitors[f"weight/{name}"] == 1
    tasks = sum(monitors[f"{task}/loss"] for task in _make_model(row).loss_names)
    assert monitors["loss"] == pytest.approx(tasks, rel=1e-5)
    assert np.abs(variables[row.kernel] - plain[0][row.kernel]).max() > 0
    assert all(np.isfinite(value).all() for value in variables.values())


def test_a_seed_repeats_it(row, built, trained):
    """Only losses of a slice need another graph: the test of replicas builds one for the others."""
    step = images.Step(_make_model(row)) if row.is_of_slice else built.step
    _assert_equal(step.take()[0], trained[-1][0])


@pytest.mark.parametrize("whose", ["the balancing", "a schedule"])
def test_a_weight_of_0_is_a_run_without_it(row, built, plain, whose):
    if row.emits and whose == "a schedule":
        pytest.skip("its weight is a number")
    variables, monitors = built.step.take(feed={built.weights[whose]: 0.0})
    _assert_equal(variables, plain[0], row.state)
    assert monitors["loss"] == plain[1]["loss"]


@pytest.mark.parametrize(
    ("mode", "weight"), [(ModeKeys.EVAL, 1.0), (ModeKeys.PREDICT, 1.0), (ModeKeys.TRAIN, 0.0)]
)
def test_graphs_that_do_not_train_with_it_hold_no_op_more(row, mode, weight, without):
    plain, made = _make_model(row, weight=None), _make_model(row, weight)
    if made == plain:
        pytest.skip("the network of weight 0 is the network without it")
    expected = _remember(without, (mode, plain), lambda: images.build_graph(plain, mode))
    assert images.build_graph(made, mode) == expected


@pytest.mark.always
@pytest.mark.drawn(4)
def test_slices_on_replicas_add_up_to_the_whole_batch(row, trained):
    if row.is_of_slice:
        pytest.skip(row.is_of_slice)
    _assert_close(row, images.take_steps_on_replicas(_make_model(row), slices=2), trained[-1][0])


@pytest.fixture(scope="module")
def changed(row):
    """The same as `trained` under surgery, of a network that normalises and has a frozen kernel."""
    made = _make_model(row, surgery=_SURGERY, freezing=freezing.Freezing(frozen=[row.kernel]))
    made = dataclasses.replace(made, network=_normalise(made.network))
    return list(images.Step(made).follow())


def test_surgery_takes_it_for_a_task(row, changed):
    variables, monitors = changed[-1]
    assert all(np.isfinite(value).all() for value in variables.values())
    assert np.isfinite(monitors[f"{row.loss_name}/loss"])


# One loss runs the network again, one has variables, and one emits state. The same code computes
# and adds up the gradients of slices for every loss.
@pytest.mark.parametrize("name", ["fgm", "gradient_reversal", "rbm"])
def test_surgery_of_slices_is_that_of_the_whole_batch(name):
    row = next(row for row in LOSSES if row.name == name)
    made = _make_model(row, surgery=_SURGERY)
    (expected, monitors), (sliced, of_slices) = (images.take_steps(made, n) for n in (1, 2))
    name = f"{row.loss_name}/loss"
    assert of_slices[name] == pytest.approx(monitors[name], rel=row.rtol)
    _assert_close(row, sliced, expected)


def test_frozen_parts_stay(row, changed):
    start, _, second = (variables[row.kernel] for variables, _ in changed)
    np.testing.assert_array_equal(second, start)


def test_averages_of_normalisations_move_by_the_plain_pass_alone(row, changed, without):
    plain = _make_model(row, weight=None)
    plain = dataclasses.replace(plain, network=_normalise(plain.network))
    expected, _ = _remember(without, ("step", plain), lambda: images.take_steps(plain, steps=1))
    names = [name for name in expected if "/moving_" in name and not name.endswith("average")]
    assert len(names) == 2
    for name in names:
        np.testing.assert_array_equal(changed[1][0][name], expected[name], err_msg=name)


def _normalise(part):
    """Return the network with batch norm in its first layers."""
    if isinstance(part, networks.MLP):
        return dataclasses.replace(part, batch_norm=True)
    if isinstance(part, networks.Stacked):
        return dataclasses.replace(part, trunks=[_normalise(part.trunks[0]), *part.trunks[1:]])
    return dataclasses.replace(part, trunk=_normalise(part.trunk))


def test_a_step_with_what_is_constant_to_gradients_fed_is_the_same_step(row, built, trained):
    """Constants are the moves of inputs, the logits of teachers, and the `held` of a row."""
    if not any(built.constants.values()):
        pytest.skip("it does not run the network again")
    with _feed(row, built.step.compute(built.constants)):
        fed, _ = images.Step(_make_model(row)).take(steps=1)
    tolerance = {"rtol": 1e-6} if row.held else {"rtol": 2e-5, "atol": 1e-6}
    for name, value in trained[1][0].items():
        np.testing.assert_allclose(fed[name], value, err_msg=name, **tolerance)


@contextlib.contextmanager
def _record(row):
    """Yield the tensors that are constant to gradients in the steps built within the context."""
    found: dict[str, list[Any]] = {"moves": [], "teachers": [], "held": []}
    run = activations_lib.Activations.run

    def record_run(self, inputs, **settings):
        again = run(self, inputs, **settings)
        found["moves"].append({name: inputs[name] - self.inputs[name] for name in inputs})
        found["teachers"].append(again.logits if settings.get("replace") else {})
        return again

    def record_held(compute, self, *args):
        found["held"].append(compute(self, *args))
        return found["held"][-1]

    with _replace_calls(row, record_run, record_held):
        yield found


def _feed(row, values):
    """Replace the tensors of `_record` by these values in the steps built within the context."""
    run, called = (
        activations_lib.Activations.run,
        zip(values["moves"], values["teachers"], strict=True),
    )
    held = iter(values["held"])

    def feed_run(self, inputs, **settings):
        moves, teacher = next(called)
        given = {name: self.inputs[name] + moves[name] for name in inputs}
        again = run(self, given, **settings)
        logits = {task: tf.constant(value) for task, value in teacher.items()}
        return dataclasses.replace(again, logits=logits or again.logits)

    def feed_held(compute, self, *args):
        compute(self, *args)  # It updates the state for later steps.
        return tf.nest.map_structure(tf.constant, next(held))

    return _replace_calls(row, feed_run, feed_held)


@contextlib.contextmanager
def _replace_calls(row, run, hold):
    """Replace second passes by `run(self, ...)`, and `row.held` by `hold(method, self, ...)`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(activations_lib.Activations, "run", run))
        if row.held:
            compute = getattr(*row.held)
            held = mock.patch.object(*row.held, lambda *args: hold(compute, *args))
            stack.enter_context(held)
        yield
