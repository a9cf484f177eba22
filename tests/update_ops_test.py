"""The traps of UPDATE_OPS that docs/update_ops.md lists and no other test holds."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import distribution, layers
from mtl.optimization import optimizers, update
from tests import tiny
from tests.optimization import training

tf1 = tf.compat.v1

BATCHES = np.random.default_rng(0).normal(2, 3, size=[8, 2, 16, 3]).astype(np.float32)
MEAN = "norm/moving_mean"


def _loss(inputs):
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return tf.reduce_sum(layers.batch_norm(inputs, "norm", True, momentum=0.5) ** 2)


def _train_op(losses, **settings):
    variables = tf1.trainable_variables()
    gradients = tf.gradients(losses, variables)
    return update.Update(optimizer=optimizers.SGD(), **settings)(
        gradients, variables, dict(enumerate(losses))
    )


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_two_towers_share_a_layer(looped):
    """Its averages move twice a step, by one batch after the other and never by half a move."""

    def step_fn(step):
        return _train_op([_loss(tf.gather(BATCHES, step)[tower]) for tower in range(2)])

    result = training.train(step_fn, len(BATCHES), looped).variables
    expected = np.zeros(3)
    for batch in BATCHES.reshape(-1, 16, 3):
        expected = 0.5 * expected + 0.5 * batch.mean(0)
    np.testing.assert_allclose(result[MEAN], expected, rtol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
def test_a_skipped_step_moves_the_averages_of_what_is_finite(looped):
    """Averages move before it is known that the weights do not; a bad batch does not reach them."""

    def step_fn(step):
        inputs = tf.gather(BATCHES, step)[0]
        bad = tf.where(tf.equal(step, 2), np.nan, 1.0)
        weight = training.variable("weight", [1.0])
        outside = tf.reduce_sum(weight * tf.where(tf.equal(step, 1), np.inf, 1.0))
        return _train_op([_loss(inputs * bad), outside], if_not_finite="skip")

    result = training.train(step_fn, 4, looped)
    expected = np.zeros(3)
    for step in (0, 1, 3):
        expected = 0.5 * expected + 0.5 * BATCHES[step, 0].mean(0)
    np.testing.assert_allclose(result.variables[MEAN], expected, rtol=1e-5)
    assert result.monitors["skipped_steps"] == 2


@pytest.mark.slow
def test_replicas_save_the_mean_of_their_averages(tmp_path):
    """Each replica normalises half of the batch; the mean of both halves is the batch's mean."""
    name = "network/trunk/hidden_0_norm/moving_mean"
    means = []
    for where in (
        distribution.Distribution(strategy="none"),
        distribution.Distribution(
            strategy="mirrored", devices=["/cpu:0", "/cpu:1"], batch_norm="replica"
        ),
    ):
        one = dataclasses.replace(tiny.make(train_steps=1), distribution=where)
        means.append(tiny.train(one, tmp_path / where.strategy)[name])
    assert means[0].any()
    np.testing.assert_allclose(means[1], means[0], rtol=1e-4, atol=1e-7)
