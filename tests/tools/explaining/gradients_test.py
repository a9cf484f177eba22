"""Cosines of the tasks' gradients beside tf.gradients, layer by layer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl.tools.explaining import gradients, rows
from mtl.variables import freezing, patterns
from tests.tools.explaining import conftest

tf1 = tf.compat.v1
TASKS = ["first", "second", "kind"]


def plain(made):
    """{variable: its gradient for each task}, dense, of the losses that the heads have."""
    variables = tf1.trainable_variables()
    losses = [made.heads[task].loss(made.logits[task], made.labels) for task in TASKS]
    rows_of = [tf.gradients(loss, variables) for loss in losses]
    return {
        patterns.variable_name(variable): [
            tf.convert_to_tensor(own[n]) if own[n] is not None else tf.zeros(variable.shape)
            for own in rows_of
        ]
        for n, variable in enumerate(variables)
    }


def cosines(found, names):
    """Return the cosines [T, T] of the tasks' gradients for the variables with these names."""
    flat = [np.concatenate([np.ravel(found[name][t]) for name in names]) for t in range(len(TASKS))]
    stacked = np.stack(flat).astype(np.float64)
    norms = np.linalg.norm(stacked, axis=1)
    return stacked @ stacked.T / np.outer(norms, norms)


@pytest.mark.medium
def test_they_are_those_of_tf_gradients(run, held, open_run):
    batches = list(rows.read_batches(run[0], "test", 3))
    with open_run(gradients.build(TASKS), is_trained=True) as made:
        found = gradients.compare(made, TASKS, batches)
    with open_run(plain, is_trained=True) as made:
        expected = [
            made.session.run(made.extra, made.feed(one.features, one.labels)) for one in batches
        ]
    shared = [n for n, own in expected[0].items() if sum(map(np.any, own)) > 1]
    assert all(name.startswith(("features/", "network/trunk/")) for name in shared)
    trunk = [name for name in shared if name.startswith("network/trunk/hidden_0/")]
    assert trunk and found.batches == 3
    for place, names in ((gradients.ALL, shared), ("network/trunk/hidden_0", trunk)):
        each = np.stack([cosines(one, names) for one in expected])
        s = found.places.index(place)
        np.testing.assert_allclose(found.mean[s], each.mean(0), atol=1e-5)
        error = each.std(0, ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(found.error[s], error, atol=1e-5)
        assert found.sizes[s] == sum(expected[0][name][0].size for name in names)
    assert "head/first/logits" not in found.places


@pytest.mark.medium
def test_a_batch_without_a_label_says_nothing_of_a_task(run, held, open_run):
    some = held.take(np.arange(64))
    without = rows.Rows("test", some.features, {**some.labels, "kind": np.full(64, -1)})
    with open_run(gradients.build(TASKS), is_trained=True) as made:
        both = gradients.compare(made, TASKS, [some, without])
        one = gradients.compare(made, TASKS, [some])
    assert both.counts[0].tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 1]]
    np.testing.assert_array_equal(both.mean[0, 2], one.mean[0, 2])
    assert np.isnan(both.error[0, 0, 2]) and np.isfinite(both.error[0, 0, 1])
    assert np.isnan(one.error).all()


@pytest.mark.medium
def test_what_is_frozen_is_not_compared(run, held):
    experiment, folder = run
    frozen = freezing.Freezing(frozen=["/trunk/"])
    model = dataclasses.replace(experiment.model, freezing=frozen)
    held_back = dataclasses.replace(experiment, model=model)
    with conftest.open_model(
        (held_back, folder), held, gradients.build(TASKS), is_trained=True
    ) as made:
        found = gradients.compare(made, TASKS, [held.take(np.arange(64))])
    assert not [name for name in found.places if name.startswith("network/trunk")]
    assert "clicks" in " ".join(found.places) or "features/item_items" in found.places


def test_cosines_of_gradients_that_are_nothing_are_unknown():
    products = np.array([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    found = gradients.find_cosines(products)
    assert found[0, 1] == 0.5 and found[0, 0] == 1
    assert np.isnan(found[2]).all() and np.isnan(found[:, 2]).all()
    assert np.isnan(gradients.find_cosines(np.full([2, 2], np.inf))).all()
