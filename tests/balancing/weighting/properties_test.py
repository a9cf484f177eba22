"""Properties of all or some methods: extremes, gaps, restored states, and the order of tasks."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.balancing import surgery, weighting
from mtl.optimization import schedules
from tests.balancing.weighting import methods_test
from tests.conformance import balancers
from tests.optimization import training

tf1 = tf.compat.v1

TASKS, LOSSES, GAPS = balancers.TASKS, methods_test.LOSSES, methods_test.GAPS
ROWS = [row for row in balancers.ROWS if isinstance(row.surgery, surgery.Sum)]
DETERMINISTIC = [row for row in ROWS if not row.name.startswith("RandomLossWeighting")]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
# Zeros, the smallest and the largest numbers, alone, together and in jumps.
EXTREMES = np.array(
    [
        [0.0, 0.0, 0.0],
        [1e-40, 1e-45, 0.0],
        [1.0, 1e38, 1e-38],
        [1e-30, 1e30, 1e30],
        [1e30, 1e-30, 1e-30],
        [3e38, 3e38, 3e38],
        [0.0, 1.0, 1e-20],
        [1e20, 1.0, 0.0],
        [1.0, 2.0, 3.0],
        [1e-12, 1e12, 1.0],
    ]
)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@every_row
def test_weights_and_state_stay_finite(row, looped):
    run = training.train(methods_test.step_fn(row.weighting, EXTREMES, TASKS), 10, looped)
    for name, value in run.variables.items():
        assert np.isfinite(value).all(), (name, value)


@pytest.mark.medium
@every_row
def test_an_infinite_loss_leaves_no_trace_in_the_state(row):
    losses = np.concatenate([LOSSES[:4], LOSSES[:4]])
    losses[3, 1] = np.inf
    run = training.train(methods_test.step_fn(row.weighting, losses, TASKS), 8, False)
    for name in run.variables:
        if name.startswith("balancing/"):
            assert np.isfinite(run.variables[name]).all(), name


@pytest.mark.medium
@every_row
def test_goes_on_after_a_restore_as_if_never_stopped(row, tmp_path):
    path = str(tmp_path / "model")
    step = methods_test.step_fn(row.weighting, GAPS, TASKS)
    whole = training.train(step, len(GAPS), False)
    training.train(step, 7, True, save=path)
    resumed = training.train(step, len(GAPS) - 7, False, restore=path)
    for name, value in whole.variables.items():
        np.testing.assert_array_equal(resumed.variables[name], value, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("row", DETERMINISTIC, ids=lambda row: row.name)
def test_the_order_of_the_tasks_does_not_matter(row):
    expected = methods_test.weights_of(row.weighting, GAPS)
    order = [2, 0, 1]
    tasks = [TASKS[t] for t in order]
    step = methods_test.step_fn(row.weighting, GAPS[:, order], tasks)
    actual = training.train(step, len(GAPS), False).variables["weights"]
    np.testing.assert_allclose(actual, expected[:, order], rtol=1e-6, atol=1e-30)


@pytest.mark.medium
@every_row
def test_no_gradient_goes_to_the_loss_of_another_task(row):
    with tf.Graph().as_default():
        losses = {task: tf1.placeholder(tf.float32, []) for task in TASKS}
        weighted = row.weighting(losses, tf1.train.get_or_create_global_step())
        for task in TASKS:
            others = [loss for other, loss in losses.items() if other != task]
            assert tf.gradients(weighted[task], losses[task]) != [None]
            assert tf.gradients(weighted[task], others) == [None, None], task


def test_scheduled():
    ramp = schedules.Polynomial(value=1.0, end_value=3.0, decay_steps=10)
    part = weighting.Scheduled(weights={"age": 0.5, "fraud": ramp, "clicks": ramp})
    steps = np.minimum(np.arange(len(LOSSES)), 10) / 10
    expected = np.stack([1 + 2 * steps, np.full(len(LOSSES), 0.5), 1 + 2 * steps], 1)
    np.testing.assert_allclose(methods_test.weights_of(part, LOSSES, True), expected, rtol=1e-6)


NUM_DRAWS = 1000


def _draws(distribution):
    part = weighting.RandomLossWeighting(distribution=distribution)
    return methods_test.weights_of(part, np.ones([NUM_DRAWS, 3]), True)


@pytest.mark.medium
@pytest.mark.parametrize("distribution", ["normal", "uniform", "one_task"])
def test_random_weights(distribution, monkeypatch):
    monkeypatch.setattr("mtl.step.training_loop.SECS_PER_CALL", 600.0)
    drawn = _draws(distribution)
    np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-6)
    random = np.random.default_rng(0)
    shape = [200_000, 3]
    if distribution == "one_task":
        same = np.eye(3)[random.integers(0, 3, size=shape[0])]
    else:
        draw = random.normal if distribution == "normal" else random.uniform
        same = np.exp(draw(size=shape))
        same /= same.sum(axis=1, keepdims=True)
    # Five standard errors of the mean and of the second moment, for each task and each pair.
    for power in (1, 2):
        error = 5 * (same**power).std(axis=0) / np.sqrt(NUM_DRAWS)
        assert (np.abs((drawn**power).mean(axis=0) - (same**power).mean(axis=0)) < error).all()
    pairs = same * np.roll(same, 1, axis=1)
    found = (drawn * np.roll(drawn, 1, axis=1)).mean(axis=0)
    assert (np.abs(found - pairs.mean(axis=0)) <= 5 * pairs.std(axis=0) / np.sqrt(NUM_DRAWS)).all()
    # One step's draw says nothing about the next one's.
    left = drawn[:, 0] - drawn[:, 0].mean()
    assert abs(np.mean(left[1:] * left[:-1])) < 5 * left.var() / np.sqrt(NUM_DRAWS)


def test_random_weights_depend_on_seed_and_step_alone():
    part = weighting.RandomLossWeighting()
    found = methods_test.weights_of(part, LOSSES)
    np.testing.assert_array_equal(methods_test.weights_of(part, 2 * LOSSES, True), found)
    assert len(np.unique(found[:, 0])) == len(found)


@pytest.mark.medium
def test_trained_weights_come_to_rest_where_the_papers_say():
    losses = np.tile([3.0, 0.2, 50.0], [900, 1])
    part = weighting.UncertaintyWeighting(gaussian=["age"])
    weights = methods_test.weights_of(part, losses, True)[-1]
    np.testing.assert_allclose(weights * losses[-1], 0.5, rtol=1e-3)
    weights = methods_test.weights_of(weighting.IMTLL(), losses, True)[-1]
    np.testing.assert_allclose(weights * losses[-1], 1, rtol=1e-3)


LOGARITHMIC = (
    *("GeometricLoss", "LogLoss", "SmoothTchebycheffMTL", "DynamicWeightAverage", "FAMO"),
    *("UncertaintyWeighting", "IMTLL"),
)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("name", LOGARITHMIC)
def test_a_negative_loss_is_refused_by_name(name, looped):
    losses = np.array([[1.0, 2.0, 3.0], [1.0, -2.5, 3.0]])
    message = f"weighting.{name} must get losses of at least 0, got -2.5 for age. Losses of any"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        methods_test.weights_of(getattr(weighting, name)(), losses, looped)


@pytest.mark.parametrize("name", ["Equal", "RandomLossWeighting", "SmoothTchebycheff"])
def test_a_negative_loss_is_weighed(name):
    weights = methods_test.weights_of(getattr(weighting, name)(), -LOSSES)
    assert (weights > 0).sum() >= len(LOSSES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: weighting.RandomLossWeighting(distribution="normle"),
            "RandomLossWeighting.distribution must be one of normal, .* Did you mean 'normal'?",
        ),
        (lambda: weighting.LogLoss(epsilon=0), "LogLoss.epsilon must be above 0, got 0"),
        (lambda: weighting.FAMO(learning_rate=0.0), "FAMO.learning_rate must be above 0"),
        (lambda: weighting.FAMO(decay=-1.0), "FAMO.decay must be at least 0"),
        (lambda: weighting.FAMO(adam=1), "FAMO.adam must be True or False, got 1"),
        (
            lambda: weighting.DynamicWeightAverage(period_steps=0),
            "DynamicWeightAverage.period_steps must be at least 1, got 0",
        ),
        (
            lambda: weighting.DynamicWeightAverage(temperature=0),
            "DynamicWeightAverage.temperature must be above 0",
        ),
        (
            lambda: weighting.SmoothTchebycheff(preferences={"a": 0}),
            r"SmoothTchebycheff.preferences\['a'\] must be above 0",
        ),
        (
            lambda: weighting.SmoothTchebycheff(ideal={"a": "0"}),
            r"SmoothTchebycheff.ideal\['a'\] must be a number, got '0'",
        ),
        (
            lambda: weighting.SmoothTchebycheffMTL(nadir_steps=0),
            "SmoothTchebycheffMTL.nadir_steps must be at least 1",
        ),
        (
            lambda: weighting.UncertaintyWeighting(gaussian="age"),
            "UncertaintyWeighting.gaussian must be a list of texts, got 'age'",
        ),
        (
            lambda: weighting.Scheduled(weights={"a": schedules.Cosine}),
            r"Scheduled.weights\['a'\] must be a number or a schedule such as @schedules",
        ),
        (
            lambda: weighting.Scheduled(weights={"a": -1.0}),
            r"Scheduled.weights\['a'\] must be at least 0, got -1.0",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (weighting.UncertaintyWeighting(gaussian=["aeg"]), "gaussian .* Did you mean 'age'?"),
        (weighting.SmoothTchebycheff(ideal={"age": 1.0}), r"ideal .*\['clicks', 'fraud'\]. Add"),
        (weighting.Scheduled(weights={"agee": 1.0}), "Scheduled.weights .* Did you mean 'age'?"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(part, message):
    with pytest.raises(checks.UserError, match=message):
        methods_test.weights_of(part, LOSSES)
