"""Every method against NumPy over several steps, one step per session call and in the loop."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.balancing import weighting
from tests.balancing.weighting import references
from tests.optimization import training

tf1 = tf.compat.v1

TASKS = ("clicks", "age", "fraud")
STEPS, RATE = 17, 0.1
RANDOM = np.random.default_rng(11)
# Falling losses of three scales.
LOSSES = np.exp(RANDOM.normal(size=[STEPS, 3]) * 0.4 - 0.1 * np.arange(STEPS)[:, np.newaxis])
LOSSES *= [1.0, 20.0, 0.05]
# One task or another is not in every batch; none is in the eighth.
GAPS = np.where(RANDOM.random([STEPS, 3]) < 0.3, np.nan, LOSSES)
GAPS[0, 1] = GAPS[7] = np.nan
STEP_NUMBERS = np.arange(STEPS)[:, np.newaxis]

CASES = {
    "Equal": (weighting.Equal(), references.equal),
    "Fixed": (
        weighting.Fixed(weights={"age": 2.0, "fraud": 0, "clicks": 0.5}),
        lambda: references.constant([0.5, 2.0, 0.0]),
    ),
    "GeometricLoss": (weighting.GeometricLoss(), references.geometric),
    "LogLoss": (weighting.LogLoss(epsilon=1e-3), lambda: references.log_loss(1e-3)),
    "SmoothTchebycheff": (
        weighting.SmoothTchebycheff(
            smoothing=0.5,
            preferences={"fraud": 2.0, "age": 0.3, "clicks": 0.5},
            ideal={"fraud": 0.01, "age": 0.5, "clicks": 0.1},
        ),
        lambda: references.smooth_tchebycheff([0.5, 0.3, 2.0], [0.1, 0.5, 0.01], 0.5),
    ),
    "SmoothTchebycheff by default": (
        weighting.SmoothTchebycheff(),
        lambda: references.smooth_tchebycheff([1 / 3] * 3, [0.0] * 3, 0.1),
    ),
    "SmoothTchebycheffMTL": (
        weighting.SmoothTchebycheffMTL(smoothing=0.7, warmup_steps=3, nadir_steps=4),
        lambda: references.smooth_tchebycheff_mtl(3, 0.7, 3, 4),
    ),
    "DynamicWeightAverage": (
        weighting.DynamicWeightAverage(period_steps=4, temperature=0.8),
        lambda: references.dynamic_weight_average(3, 4, 0.8),
    ),
    "UncertaintyWeighting": (
        weighting.UncertaintyWeighting(gaussian=["age"]),
        lambda: references.uncertainty([1.0, 0.5, 1.0], RATE),
    ),
    "IMTLL": (weighting.IMTLL(), lambda: references.imtl_l(3, RATE)),
    "FAMO": (weighting.FAMO(), lambda: references.famo(3, 0.025, 0.001, adam=True)),
    "FAMO without Adam": (
        weighting.FAMO(learning_rate=0.8, decay=0.05, adam=False),
        lambda: references.famo(3, 0.8, 0.05, adam=False),
    ),
}


def step_fn(part, losses, tasks=TASKS):
    """A step that writes the weights of each step into the variable `weights` [N, T]."""

    def step(number):
        written = tf1.get_variable(
            "weights", losses.shape, initializer=tf1.zeros_initializer(), trainable=False
        )
        values = tf.gather(tf.constant(np.nan_to_num(losses), tf.float32), number)
        given = dict(zip(tasks, tf.unstack(values), strict=True))
        global_step = tf1.train.get_global_step()
        with tf1.variable_scope("balancing"):
            weighted = part(given, global_step)
        weights = tf.stack([tf.gradients(weighted[task], given[task])[0] for task in tasks])
        total = tf.add_n(list(weighted.values()))
        trained = tf1.trainable_variables()
        gradients = tf.gradients(total, trained)
        wait = [*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), weights, *gradients]
        with tf.control_dependencies(wait):
            ops = [tf1.scatter_update(written, number, weights)]
            if trained:
                optimizer = tf1.train.GradientDescentOptimizer(RATE)
                ops.append(optimizer.apply_gradients(zip(gradients, trained, strict=True)))
        with tf.control_dependencies(ops):
            return global_step.assign_add(1).op, {"loss": total}

    return step


def weights_of(part, losses, looped=False, **files):
    result = training.train(step_fn(part, losses), len(losses), looped, **files)
    return result.variables["weights"]


@pytest.mark.medium
@pytest.mark.always
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("losses", [LOSSES, GAPS], ids=["full", "gaps"])
@pytest.mark.parametrize("name", CASES)
def test_equals_numpy(name, losses, looped):
    part, reference = CASES[name]
    expected = references.run(reference(), losses.astype(np.float32).astype(np.float64))
    there = ~np.isnan(losses)
    actual = weights_of(part, losses, looped)
    np.testing.assert_allclose(actual[there], expected[there], rtol=1e-6, atol=1e-30)
    assert np.isfinite(actual).all()


def test_every_method_is_compared():
    elsewhere = {"RandomLossWeighting", "Scheduled"}
    compared = {type(part).__name__ for part, _ in CASES.values()}
    assert compared | elsewhere == set(weighting.__all__) and not compared & elsewhere
