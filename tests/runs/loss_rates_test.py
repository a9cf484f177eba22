"""The factors that a graph computes for the rates of a mixture, from given losses."""

import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.data import moved_rates
from mtl.heads import together
from mtl.runs import loss_rates

tf1 = tf.compat.v1

_TASKS = {"first": ["a"], "second": ["b"]}


@pytest.fixture
def decide(monkeypatch):
    """decide(losses [N, 2] of tasks a and b) returns the factors [K, 2] after N steps."""
    heads = [types.SimpleNamespace(name=name) for name in "ab"]
    ones = {name: tf.constant(1.0) for name in "ab"}
    monkeypatch.setattr(together, "sum_label_weights", lambda heads, labels: dict(ones))

    def compute(losses):
        model = types.SimpleNamespace(heads_with_loss=heads)
        with tf.Graph().as_default(), tf1.Session() as session:
            ones.update({name: tf.constant(1.0) for name in "ab"})
            row, step = tf1.placeholder(tf.float32, [2]), tf1.train.create_global_step()
            rates = moved_rates.ByLosses(every=2)
            extension = loss_rates._Decide(rates, _TASKS, model, {}, {})
            with extension.around_update(
                types.SimpleNamespace(losses={"a": row[0], "b": row[1]}), None
            ):
                pass
            with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                update = step.assign_add(1)
            session.run(tf1.global_variables_initializer())
            for values in losses:
                session.run(update, {row: values})
            (factors,) = [v for v in tf1.global_variables() if "log_factors" in v.name]
            return np.exp(session.run(factors))

    return compute


def test_factors_are_the_ratios_of_the_losses_to_the_first_interval(decide):
    factors = decide([(2, 4), (4, 4), (1, 8), (2, 8)])
    np.testing.assert_allclose(factors[3], [0.5, 2.0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("step", range(4))
def test_a_loss_that_is_not_finite_counts_as_no_loss(decide, value, step):
    losses = np.array([(2, 4), (2, 4), (1, 8), (1, 8)], np.float32)
    losses[step, 0] = value
    np.testing.assert_allclose(decide(losses)[3], [0.5, 2.0])


def test_a_source_without_a_loss_is_drawn_least(decide):
    np.testing.assert_allclose(decide([(2, 4), (4, 4), (0, 8), (0, 8)])[3], [0.001, 2.0])


@pytest.mark.parametrize("first, latest", [(-0.5, 1.0), (1.0, -0.5)])
def test_a_loss_below_0_is_refused_in_each_interval(first, latest):
    """Ratios of negative losses mean nothing; a density may fall below 0 late."""
    hook = loss_rates._Publish.__new__(loss_rates._Publish)
    rates = types.SimpleNamespace(every=2)
    hook._observer = types.SimpleNamespace(rates=rates)
    hook._factors, hook._first, hook._latest = range(3)
    values = [np.zeros([4, 2]), np.array([first, 1.0]), np.array([1.0, latest])]
    session = types.SimpleNamespace(run=lambda fetched: [values[index] for index in fetched])
    with pytest.raises(checks.UserError, match="must follow losses above 0, .* got -0.5"):
        hook.on_step(types.SimpleNamespace(session=session), 4, values)


def test_a_run_goes_on_with_its_intervals(tmp_path):
    def observer(**settings):
        rates = moved_rates.ByLosses(**{"every": 10, **settings})
        return loss_rates.LossRates(rates, _TASKS, str(tmp_path))

    observer().prepare(is_new=True)
    observer(power=2.0).prepare(is_new=False)
    with pytest.raises(checks.UserError, match="ByLosses.every must be 10, as when the run was"):
        observer(every=40).prepare(is_new=False)
    with pytest.raises(checks.UserError, match="ByLosses.temperature must be 1.0, as when the"):
        observer(temperature=2.0).prepare(is_new=False)
    observer(every=40).prepare(is_new=True)
    observer(every=40).prepare(is_new=False)
