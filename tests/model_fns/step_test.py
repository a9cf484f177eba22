"""A step in a `model_fn` written by hand gives the weights that our own model gives."""

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, model_fns, types
from mtl.balancing import methods, surgery, weighting
from mtl.optimization import clipping, optimizers, regularization, schedules, update
from mtl.variables import average_saver, averaging
from tests import tiny
from tests.model_fns import twin

tf1 = tf.compat.v1
NORM = "network/trunk/hidden_0_norm/moving_mean"
SETTINGS = {
    "weighting": weighting.UncertaintyWeighting(),
    "surgery": surgery.Combine(method=methods.PCGrad()),
    "update": update.Update(
        optimizer=optimizers.SGD(learning_rate=schedules.Cosine(value=0.1)),
        clipping=clipping.GlobalNorm(max_norm=0.5),
    ),
}


@pytest.mark.medium
def test_weights_of_a_plain_sum_are_those_of_our_model(trained):
    """With a saved input, which changes none."""
    expected = tiny.variables(trained.ours)
    twin.assert_equal(tiny.variables(trained.twin), expected)
    first = tiny.variables(trained.ours, step=0)
    assert not np.allclose(first[NORM], expected[NORM])  # UPDATE_OPS have run.


@pytest.mark.medium
def test_weights_of_a_balanced_step_are_those_of_our_model(tmp_path):
    """A weighting with variables, a surgery, clipping and a schedule."""
    twin.our_estimator(tmp_path / "ours", **SETTINGS).train(twin.read_rows, max_steps=twin.STEPS)
    twin.start_alike(tmp_path / "ours", tmp_path / "twin")
    made = twin.estimator(tmp_path / "twin", train_steps=twin.STEPS, **SETTINGS)
    made.train(twin.read_rows, max_steps=twin.STEPS)
    twin.assert_equal(tiny.variables(tmp_path / "twin"), tiny.variables(tmp_path / "ours"))


@pytest.mark.medium
def test_a_saver_of_averages_predicts_as_our_model(tmp_path):
    average = {"update": dataclasses.replace(twin.UPDATE, average=averaging.ExponentialAverage())}
    made = twin.estimator(tmp_path, **average)
    made.train(twin.read_rows, max_steps=4)

    def model_fn(features, labels, mode, config):
        spec = made.model_fn(features, labels, mode, config)
        return spec._replace(scaffold=tf1.train.Scaffold(saver=average_saver.Saver()))

    def predict(estimator, name):
        rows = tf.data.Dataset.from_tensor_slices
        given = {"x": tiny.SPLITS["test"]["x"]}
        return np.array([row[name] for row in estimator.predict(lambda: rows(given).batch(48))])

    averaged = predict(compat.estimator.Estimator(model_fn, config=made.config), "size")
    ours = predict(twin.our_estimator(tmp_path, **average), "size/value")
    np.testing.assert_array_equal(averaged, ours)
    assert not np.allclose(predict(made, "size"), averaged)


@contextlib.contextmanager
def _losses():
    """Two tasks of two rows on a shared layer, in a graph: losses, what is shared, samples."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        shared = tf.constant([[1.0], [2.0]]) * tf1.get_variable("shared", initializer=[3.0])
        own = tf1.get_variable("own", initializer=[1.0, -2.0])
        rows = {task: (own[n] * shared[:, 0] - 1) ** 2 for n, task in enumerate("ab")}
        losses = {task: tf.reduce_mean(of) for task, of in rows.items()}

        def samples(count):
            return [
                {task: tf.reduce_mean(of[n::count]) for task, of in rows.items()}
                for n in range(count)
            ]

        yield losses, shared, samples


def _run(fetches):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(fetches)


class _Seeing(types.Surgery):
    """A plain sum that keeps what it was given."""

    def __call__(self, losses, variables, batch=None):
        self.batch = batch
        return surgery.Sum()(losses, variables, batch)


def test_surgery_gets_what_tasks_share_and_samples():
    part, factors = _Seeing(), weighting.Fixed(weights={"a": 2.0, "b": 0.5})
    with _losses() as (losses, shared, samples):
        model_fns.build_step(
            losses,
            update=update.Update(),
            weighting=factors,
            surgery=part,
            shared=[shared],
            samples=samples,
        )
        assert part.batch.first.shared == [shared]
        found, plain = _run([list(part.batch.first.samples(2)), samples(2)])
    for n in range(2):
        assert found[n] == {"a": 2 * plain[n]["a"], "b": 0.5 * plain[n]["b"]}


def test_step_tells_what_to_watch():
    with _losses() as (losses, *_):
        step = model_fns.build_step(
            losses, update=update.Update(), weighting=weighting.Fixed(weights={"a": 2.0, "b": 0.5})
        )
        monitors, loss = _run([step.monitors, step.loss])
    assert {"loss", "a/loss", "weight/b", "learning_rate", "gradient_norm"} <= monitors.keys()
    assert monitors["weight/b"] == 0.5
    assert loss == monitors["loss"] == 2 * monitors["a/loss"] + 0.5 * monitors["b/loss"]


def test_penalties_of_layers_and_of_the_update_are_watched_together():
    with _losses() as (losses, *_):
        shared, _ = tf1.trainable_variables()
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, 10.0 * tf.square(shared[0]))
        l2 = regularization.Regularization(l2={"^shared": 0.5})
        step = model_fns.build_step(losses, update=update.Update(regularization=l2))
        alone = model_fns.build_step(losses, update=update.Update())
        both, one, value = _run([step.monitors, alone.monitors, shared])
    assert one["regularization"] == pytest.approx(10 * value[0] ** 2)
    assert both["regularization"] == pytest.approx((10 + 0.5 / 2) * value[0] ** 2)


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_estimator_is_told_of_no_nan(policy):
    with _losses() as (losses, *_):
        losses["a"] *= float("nan")
        step = model_fns.build_step(losses, update=update.Update(if_not_finite=policy))
        assert _run([step.loss, step.monitors["loss"]])[0] == 0


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (dict, "hold the loss of a task"),
        (
            lambda: {"a": tf.zeros([2])},
            r"losses\['a'\] must be a float32 scalar of a graph, got <tf.T",
        ),
        (lambda: {"a": tf.zeros([], tf.float64)}, r"losses\['a'\] must be a float32 scalar"),
        (lambda: {"a": tf.constant(1)}, r"losses\['a'\] must be a float32 scalar"),
        (lambda: {"a": 1.0}, r"losses\['a'\] must be a float32 scalar of a graph, got 1.0"),
        (lambda: {"a": None}, r"losses\['a'\] must be a float32 scalar of a graph, got None"),
        (lambda: tf.zeros([]), "be {task: scalar}"),
    ],
)
def test_losses_that_are_none_are_refused(losses, message):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=message):
        model_fns.build_step(losses(), update=update.Update())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"update": update.Update}, "update must be a part such as @update.Update"),
        ({"update": optimizers.SGD()}, "update must be a part such as @update.Update"),
        ({"weighting": None}, "weighting must be a part such as @weighting.Equal"),
        ({"weighting": {"a": 1.0}}, "weighting must be a part such as @weighting.Equal"),
        ({"surgery": methods.PCGrad()}, "surgery must be a part such as @surgery.Combine"),
        ({"surgery": surgery.Combine}, "surgery must be a part such as @surgery.Combine"),
        ({"train_steps": "60"}, "train_steps must be"),
        ({"train_steps": 0}, "train_steps must be"),
        ({"weighting": lambda losses, step: {}}, "must return a loss for each of a, got"),
    ],
)
def test_arguments_that_are_no_parts_are_refused(settings, message):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=message) as error:
        loss = tf1.get_variable("w", []) * 2.0
        model_fns.build_step({"a": loss}, **{"update": update.Update(), **settings})
    assert "\n" not in str(error.value)
