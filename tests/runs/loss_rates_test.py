"""The factors that a graph computes for the rates of a mixture, from given losses."""

import types

import numpy as np
import pytest
import tensorflow as tf

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
