"""Groups of any number of rows are normalised alike in training and in serving."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.layers import partitioned_norm

tf1 = tf.compat.v1

EPSILON = 1e-3


def _run(batches, groups, count, rows_served=None):
    """Outputs of each training step, the averages after it, and outputs of serving at the end."""
    width = batches[0].shape[1]
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        values = tf1.placeholder(tf.float32, [None, width])
        places = tf1.placeholder(tf.int32, [None])
        members = tf.one_hot(places, count)
        trained = partitioned_norm.normalise(values, members, "norm", True)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf1.variable_scope("", reuse=True):
            served = partitioned_norm.normalise(values, members, "norm", False)
        averages = {v.op.name: v for v in tf1.global_variables() if "moving" in v.op.name}
        session.run(tf1.global_variables_initializer())
        steps = []
        for batch, own in zip(batches, groups, strict=True):
            feed = {values: batch, places: own}
            outputs, _ = session.run([trained, updates], feed)
            steps.append((outputs, *session.run(list(averages.values()))))
        last = rows_served and session.run(
            served, dict(zip((values, places), rows_served, strict=True))
        )
    return steps, last


def _find_moments(values, groups, group):
    """Return a group's moments in float64; a small group mixes in the moments of all rows."""
    values = values.astype(np.float64)
    own = values[groups == group]
    share = min((len(own) - 1) / 15, 1)
    variance = own.var(0, ddof=1) if len(own) > 1 else 0.0
    return np.array(
        [
            share * own.mean(0) + (1 - share) * values.mean(0),
            share * variance + (1 - share) * values.var(0, ddof=1),
        ]
    )


def _draw(random, groups):
    """Rows with a mean of 100 + 5 g and a variance of 4 in the group g."""
    means = 100 + 5.0 * groups[:, np.newaxis]
    return random.normal(means, 2, size=[len(groups), 3]).astype(np.float32)


@pytest.mark.medium
def test_outputs_and_averages_are_those_of_the_rows_that_there_are():
    random = np.random.default_rng(1)
    sizes = [[40, 16, 5, 1, 0], [1, 2, 40, 0, 0], [0, 17, 3, 2, 1]]
    groups = [np.repeat(np.arange(5), own) for own in sizes]
    batches = [_draw(random, own) for own in groups]
    steps, _ = _run(batches, groups, 5)
    averages = np.stack([np.zeros([5, 3]), np.ones([5, 3])])
    seen = np.zeros(5, bool)
    for (outputs, mean, variance), batch, own in zip(steps, batches, groups, strict=True):
        for group in np.unique(own):
            moments = _find_moments(batch, own, group)
            expected = (batch[own == group] - moments[0]) / np.sqrt(moments[1] + EPSILON)
            np.testing.assert_allclose(outputs[own == group], expected, rtol=1e-3, atol=1e-3)
            before = averages[:, group] if seen[group] else moments
            averages[:, group], seen[group] = before + 0.01 * (moments - before), True
        np.testing.assert_allclose(mean, averages[0], rtol=1e-5, err_msg="mean")
        np.testing.assert_allclose(variance, averages[1], rtol=1e-4, err_msg="variance")


@pytest.mark.medium
def test_a_rare_group_is_served_as_it_was_trained():
    """Groups of 38, 25, .8 and .2 rows a batch, all with a variance of 4."""
    random = np.random.default_rng(2)
    shares = np.array([38, 25, 0.8, 0.2]) / 64
    groups = [random.choice(4, size=64, p=shares) for _ in range(600)]
    batches = [random.normal(3, 2, size=[64, 3]).astype(np.float32) for _ in groups]
    own = np.repeat(np.arange(4), 50)
    rows = random.normal(3, 2, size=[200, 3]).astype(np.float32)
    steps, served = _run(batches, groups, 4, (rows, own))
    mean, variance = steps[-1][1:]
    np.testing.assert_allclose(mean, np.full([4, 3], 3), atol=0.35)
    np.testing.assert_allclose(variance, np.full([4, 3], 4), rtol=0.2)
    for group in range(4):
        trained = np.concatenate(
            [out[of == group] for (out, *_), of in zip(steps, groups, strict=True)]
        )
        assert trained.std() == pytest.approx(1, abs=0.12)
        np.testing.assert_allclose(served[own == group], (rows[own == group] - 3) / 2, atol=0.5)
