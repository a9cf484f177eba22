"""Regrowth drops its share of the weights, the smallest ones, and grows as many new weights."""

import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import criteria, regrowth

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
MASK = (RANDOM.random([10, 8]) < 0.5).astype(np.float32)
WEIGHTS = (RANDOM.normal(size=[10, 8]) * MASK).astype(np.float32)
GRADIENT = RANDOM.normal(size=[10, 8]).astype(np.float32)


def _swap(step, mask=MASK, weights=WEIGHTS, **settings):
    part = regrowth.Regrowth(until_step=100, every_steps=10, share=0.4, **settings)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        session.run(tf1.global_variables_initializer())
        seen = criteria.Seen("w", tf.constant(weights), tf.constant(GRADIENT), None)
        return session.run(part.swap(tf.constant(mask), seen, tf.constant(step, tf.int64)))


@pytest.mark.parametrize("step", [10, 50, 90])
@pytest.mark.parametrize("by", ["gradient", "random"])
def test_the_smallest_make_room(step, by):
    found = _swap(step, by=by)
    count = round(0.2 * (1 + math.cos(math.pi * step / 100)) * MASK.sum())
    assert found.sum() == MASK.sum()
    order = np.argsort(np.where(MASK > 0, np.abs(WEIGHTS), np.inf), axis=None)
    dropped = np.isin(np.arange(80), order[:count]).reshape(MASK.shape)
    stay = (MASK > 0) & ~dropped
    assert (found[stay] == 1).all()
    if by == "gradient":
        growth = np.where(stay, -1, np.abs(GRADIENT))
        grown = np.isin(np.arange(80), np.argsort(-growth, axis=None)[:count]).reshape(MASK.shape)
        np.testing.assert_array_equal(found, stay | grown)


def test_a_layer_that_is_full_stays_full():
    np.testing.assert_array_equal(_swap(10, mask=np.ones_like(MASK)), np.ones_like(MASK))


def test_when_weights_are_swapped():
    part = regrowth.Regrowth(until_step=40, every_steps=10)
    due = [step for step in range(60) if part.is_due(tf.constant(step, tf.int64))]
    assert due == [10, 20, 30]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"until_step": 0}, "Regrowth.until_step must be at least 1, got 0"),
        ({"until_step": 9, "share": 1.0}, r"Regrowth.share must be in \(0, 1\), got 1"),
        ({"until_step": 9, "share": 0}, r"Regrowth.share must be in \(0, 1\), got 0"),
        ({"until_step": 9, "by": "gradients"}, "Regrowth.by must be one of .*mean 'gradient'"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        regrowth.Regrowth(**settings)
