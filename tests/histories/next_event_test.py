"""The auxiliary loss of DIEN: against NumPy, and in a step that the balancing sees it in."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, features, heads, histories, model, networks
from mtl.histories import recurrent
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.step import outlets

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(7)


def test_the_loss_is_that_of_the_next_event_and_of_another():
    states = RANDOM.normal(size=[3, 4, 2])
    values = RANDOM.normal(size=[3, 4, 5])
    lengths, other = np.array([4, 1, 2]), RANDOM.normal(size=5)
    is_event = np.arange(4) < lengths[:, None]
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        pool = np.tile(other, [7, 1])  # Whatever is drawn is the same.
        losses = recurrent._tell_next_events(*map(tf.constant, (states, values, is_event, pool)))
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        found, (kernel, bias) = session.run(
            [losses, [variables[f"next_event/{n}"] for n in ("kernel", "bias")]]
        )
    expected = np.zeros(3)
    for row, length in enumerate(lengths):
        each = [
            np.logaddexp(0, -(states[row, t] @ kernel + bias) @ values[row, t + 1])
            + np.logaddexp(0, (states[row, t] @ kernel + bias) @ other)
            for t in range(length - 1)
        ]
        expected[row] = np.mean(each) if each else 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def _take_step(weight, names=("clicks",)):
    """The monitors of a step, and the variables after it."""
    columns = [features.Identity(names=["item"], size=20, dimension=4, table="items")]
    columns += [
        features.History(
            name=name,
            events=[features.Identity(names=[name], size=20, dimension=4, table="items")],
            encoder=histories.InterestEvolution(units=4, next_event_weight=weight),
            target=["identity_item"],
        )
        for name in names
    ]
    made = model.MultiTaskModel(
        columns=columns,
        network=networks.SharedBottom(trunk=networks.MLP(layers=[4])),
        heads=[heads.Binary(name="y")],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=0.1)),
    )
    results = []
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        given = {"item": tf.constant(np.arange(8) % 20)}
        for name in names:
            lists = [list(np.arange(n) % 20) for n in (0, 1, 2, 5, 9, 3, 0, 4)]
            given[name] = tf.ragged.constant(lists, tf.int64)
        spec = made.model_fn(
            given,
            {"y": tf.constant(np.arange(8) % 2)},
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=features.Statistics(directory="", entries={}),
                training_hooks=lambda result: results.append(result) or {},
            ),
        )
        session.run(tf1.global_variables_initializer())
        _, values = session.run([spec.train_op, results[0].values])
        variables = session.run({v.op.name: v for v in tf1.global_variables()})
    return made, dict(zip(results[0].names, values, strict=True)), variables


@pytest.mark.medium
def test_every_history_has_a_loss_that_is_balanced():
    made, monitors, variables = _take_step(0.5, ("clicks", "buys"))
    assert made.loss_names == ("y", "clicks_next_event", "buys_next_event")
    assert monitors["weight/clicks_next_event"] == 0.5
    # Other events come from other rows: no audit of single rows sees this loss.
    assert not made.are_rows_apart
    # An inner product near 0 tells nothing apart; a quarter of the rows have no next event.
    assert monitors["clicks_next_event/loss"] == pytest.approx(2 * np.log(2) * 5 / 8, rel=0.1)
    assert "features/buys/next_event/kernel" in variables


@pytest.mark.medium
def test_without_a_weight_there_is_no_loss():
    made, monitors, variables = _take_step(0.0)
    assert made.loss_names == ("y",) and made.are_rows_apart
    assert not [name for name in (*monitors, *variables) if "next_event" in name]


def test_nothing_is_computed_where_no_step_collects():
    encoder = histories.InterestEvolution(units=4, next_event_weight=1.0)
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        events = tf.RaggedTensor.from_row_lengths(tf.ones([5, 3]), [2, 0, 3])
        with tf1.variable_scope("features/clicks"):
            encoder(events, tf.ones([3, 4]))
        assert not [v for v in tf1.global_variables() if "next_event" in v.op.name]
        with outlets.collect_losses() as found, tf1.variable_scope("features/again"):
            dataclasses.replace(encoder)(events, tf.ones([3, 4]))
        assert list(found) == ["again_next_event"]
