import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, layers
from mtl.optimization import optimizers, schedules, update
from mtl.variables import freezing
from tests.optimization import training

tf1 = tf.compat.v1

RATE = 0.125
SGD = optimizers.SGD(learning_rate=RATE)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_batch_norm_averages_move_at_every_step(looped):
    inputs = np.random.default_rng(2).normal(3, 2, size=[6, 10, 4]).astype(np.float32)

    def step_fn(step):
        outputs = layers.batch_norm(tf.gather(inputs, step), "norm", training=True, momentum=0.8)
        variables = tf1.trainable_variables()
        gradients = tf.gradients(tf.reduce_sum(outputs), variables)
        return update.Update(optimizer=SGD)(gradients, variables)

    result = training.train(step_fn, 6, looped).variables
    mean, variance = np.zeros(4), np.ones(4)
    for batch in inputs:
        mean = 0.8 * mean + 0.2 * batch.mean(0)
        variance = 0.8 * variance + 0.2 * batch.var(0)
    np.testing.assert_allclose(result["norm/moving_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(result["norm/moving_variance"], variance, rtol=1e-5)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_update_ops_run_before_the_weights_move(looped):
    def step_fn(step):
        weight = training.variable("weight", [1.0])
        seen = tf1.get_variable("seen", [1], initializer=tf1.zeros_initializer(), trainable=False)
        slow = tf.random.stateless_normal([300, 300], tf.stack([0, step]))
        for _ in range(5):
            slow = tf.nn.tanh(slow @ slow)
        with tf.control_dependencies([slow]):
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, seen.assign(weight.read_value()))
        return update.Update(optimizer=SGD)([tf.constant([1.0])], [weight])

    result = training.train(step_fn, 3, looped).variables
    assert result["weight"] == 1 - 3 * RATE
    assert result["seen"] == 1 - 2 * RATE


@pytest.mark.parametrize("looped", training.LOOPED)
def test_monitors_are_those_of_the_step(looped):
    schedule = schedules.Piecewise(boundaries=[2, 4], values=[1.0, 0.5, 0.25])

    def step_fn(step):
        weight = training.variable("weight", [1.0, 1.0])
        gradient = tf.cast(step, tf.float32) * tf.constant([3.0, 4.0])
        part = update.Update(optimizer=optimizers.SGD(learning_rate=schedule))
        return part([gradient], [weight])

    result = training.train(step_fn, 4, looped)
    assert result.monitors == {"learning_rate": 0.5, "gradient_norm": 15.0}
    assert result.variables["global_step"] == 4
    expected = 1 - (1.0 * 0 + 1.0 * 1 + 0.5 * 2 + 0.5 * 3) * np.array([3.0, 4.0])
    np.testing.assert_allclose(result.variables["weight"], expected)


def test_a_schedule_of_the_update_is_a_factor_of_every_rate():
    def build(one, other, schedule):
        def step_fn(step):
            weights = [training.variable(name, [1.0]) for name in "ab"]
            by_name = {"^b$": optimizers.SGD(learning_rate=other)}
            part = update.Update(
                optimizer=optimizers.SGD(learning_rate=one), optimizers=by_name, schedule=schedule
            )
            return part([tf.constant([1.0])] * 2, weights)

        return training.train(step_fn, 6, looped=True)

    def cosine(value):
        return schedules.Cosine(value=value, decay_steps=8, warmup_steps=2)

    found, expected = build(0.5, 0.25, cosine(1.0)), build(cosine(0.5), cosine(0.25), None)
    for name in "ab":
        np.testing.assert_allclose(found.variables[name], expected.variables[name], rtol=1e-6)
    rates = [np.ravel(run.monitors["learning_rate"]) for run in (found, expected)]
    np.testing.assert_allclose(*rates, rtol=1e-6)
    assert found.variables["a"] < found.variables["b"] < 1


def test_state_has_the_same_name_in_any_name_scope():
    def step_fn(step):
        del step
        weight = training.variable("weight", [1.0])
        with tf1.name_scope("somewhere"):
            return update.Update()([tf.constant([1.0])], [weight])

    names = set(training.train(step_fn, 1, looped=False).variables)
    state = {"weight/Adam", "weight/Adam_1", "beta1_power", "beta2_power"}
    assert names == {"weight", "global_step"} | state


def test_variables_without_a_gradient_stay_and_get_no_state():
    def step_fn(step):
        del step
        weights = [training.variable("used", [1.0]), training.variable("unused", [1.0])]
        return update.Update()([tf.constant([1.0]), None], weights)

    result = training.train(step_fn, 1, looped=False).variables
    assert result["unused"] == 1.0
    assert result["used"] != 1.0
    assert "unused/Adam" not in result


def test_no_gradient_at_all():
    with tf.Graph().as_default():
        weight = training.variable("weight", [1.0])
        with pytest.raises(ValueError, match=r"Update must get a gradient, got \['weight'\]"):
            update.Update()([None], [weight])


def test_nothing_that_is_not_frozen():
    def step_fn(step):
        del step
        weights = [training.variable(name, [1.0]) for name in ("a", "b", "c", "d")]
        return update.Update()([], [one for one in weights if one.trainable])

    rule = (
        "Freezing must leave a trainable variable on which a loss depends, got 'a, b, c and 1 more"
    )
    held = freezing.Freezing(frozen=[".*"])
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=rule):
        tf.compat.v1.train.create_global_step()
        held.wrap_step(lambda features, labels: (step_fn(0), {}))({}, {})


def _bad_step_fn(bad_step, gradients, losses, **settings):
    def step_fn(step):
        names = [f"network/kernel_{i}" for i in range(len(gradients))]
        variables = [training.variable(name, [1.0]) for name in names]
        bad = tf.equal(step, bad_step)
        given = [tf.where(bad, [value], [1.0]) for value in gradients]
        task_losses = {task: tf.where(bad, value, 1.0) for task, value in losses.items()}
        return update.Update(**{"optimizer": SGD, **settings})(given, variables, task_losses)

    return step_fn


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_step_fails_at_a_gradient_that_is_not_finite(bad, looped):
    step_fn = _bad_step_fn(2, [1.0, bad, 1.0], {"income": 1.0})
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        training.train(step_fn, 4, looped)
    message = "NaN or infinity at step 2 in 1 of them: gradient of network/kernel_1. Lower"
    assert message in str(error.value)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_the_step_fails_at_a_loss_that_is_not_finite(looped):
    step_fn = _bad_step_fn(1, [1.0], {"income": 1.0, "married": np.nan})
    with pytest.raises(tf.errors.InvalidArgumentError, match="at step 1 in 1 of them: loss of mar"):
        training.train(step_fn, 2, looped)


def test_only_the_first_names_are_listed():
    step_fn = _bad_step_fn(0, [np.nan] * 7, {"income": np.nan})
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        training.train(step_fn, 1, looped=False)
    assert "in 8 of them: loss of income, gradient of network/kernel_0, " in str(error.value)
    assert "kernel_3. Lower" in str(error.value)


def test_nothing_is_applied_in_a_step_that_fails():
    step_fn = _bad_step_fn(1, [1.0, np.nan], {})
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        train_op, _ = step_fn(step.read_value())
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        before = session.run(tf1.global_variables())
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(train_op)
        after = session.run(tf1.global_variables())
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize(("gradient", "loss"), [(np.nan, 1.0), (np.inf, 1.0), (2.0, np.nan)])
def test_a_skipped_step_leaves_no_trace_but_its_count(gradient, loss, looped):
    settings = {"optimizer": optimizers.Adam(), "if_not_finite": "skip"}
    skipping = _bad_step_fn(2, [1.0, gradient], {"income": loss}, **settings)
    result = training.train(skipping, 4, looped)
    good = training.train(_bad_step_fn(-1, [1.0, 1.0], {"income": 1.0}, **settings), 3, looped)
    assert result.variables.pop("global_step") == 4
    assert result.variables.pop("update/skipped_steps") == result.monitors["skipped_steps"] == 1
    for name, value in result.variables.items():
        np.testing.assert_array_equal(value, good.variables[name], err_msg=name)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_entries_that_are_not_finite_count_as_zero(looped):
    def step_fn(step):
        del step
        dense = training.variable("dense", np.zeros(3))
        table = training.variable("table", np.zeros([4, 2]))
        rows = tf.IndexedSlices(
            tf.constant([[1.0, np.nan], [2.0, np.inf]]), tf.constant([3, 1]), tf.constant([4, 2])
        )
        part = update.Update(optimizer=optimizers.SGD(learning_rate=1.0), if_not_finite="zero")
        return part([tf.constant([3.0, -np.inf, np.nan]), rows], [dense, table])

    result = training.train(step_fn, 2, looped)
    np.testing.assert_array_equal(result.variables["dense"], [-6, 0, 0])
    np.testing.assert_array_equal(result.variables["table"], [[0, 0], [-4, 0], [0, 0], [-2, 0]])
    np.testing.assert_allclose(result.monitors["gradient_norm"], np.sqrt(9 + 1 + 4), rtol=1e-6)
    assert result.monitors["zeroed_entries"] == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "adam"},
            r"Update.optimizer must be a part such as @optimizers.LazyAdam\(\)",
        ),
        ({"optimizer": optimizers.Adam}, r"Update.optimizer must be .* Mind the parentheses"),
        (
            {"clipping": 5.0},
            r"Update.clipping must be a part such as @clipping.GlobalNorm\(\), got 5",
        ),
        ({"regularization": None}, "Update.regularization must be a part such as @regularization"),
        (
            {"schedule": schedules.Cosine(value=0.002)},
            "Cosine.value of Update.schedule must be 1, got 0.002. Set the learning",
        ),
        (
            {"schedule": schedules.Piecewise(boundaries=[9], values=[0.01, 0.001])},
            r"Piecewise.values of Update.schedule must hold 1, got \[0.01, 0.001\]. Set the",
        ),
        (
            {
                "optimizer": optimizers.Adam(learning_rate=schedules.Cosine(value=1)),
                "schedule": schedules.Cosine(value=1),
            },
            "Adam.learning_rate must not be Update.schedule",
        ),
        ({"schedule": 0.5}, r"Update.schedule must be a part such as @schedules.Cosine\(\)"),
        (
            {"if_not_finite": "stop"},
            "Update.if_not_finite must be one of fail, skip, zero, got 'stop'",
        ),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        update.Update(**settings)


def test_parameter_servers_get_one_signal_a_step():
    """Each signal between machines costs as much as the gradient of a small variable."""
    rows = np.ones([8, 4], np.float32)
    with tf.Graph().as_default() as graph, tf1.device(tf1.train.replica_device_setter(ps_tasks=1)):
        tf1.train.create_global_step()
        loss = tf.reduce_sum(layers.dense(rows, 3, "a") ** 2)
        variables = tf1.trainable_variables()
        gradients = tf.gradients(loss, variables)
        update.Update(optimizer=optimizers.Adam())(gradients, variables, {"a": loss})
        signals = {
            source.name
            for op in graph.get_operations()
            for source in op.control_inputs
            if op.device.startswith("/job:ps") and source.device.startswith("/job:worker")
        }
    assert len(variables) == 2 and len(signals) == 1, signals
