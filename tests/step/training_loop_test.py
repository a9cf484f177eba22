import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, layers
from mtl.step import outlets, training_loop
from tests.optimization import training

tf1 = tf.compat.v1

BATCH = 4


def _dataset():
    rows = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    labels = rows @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    return tf.data.Dataset.from_tensor_slices((rows, labels)).repeat().batch(BATCH, True)


def _step(features, labels):
    hidden = layers.dense(features, 8, "hidden", tf.nn.relu)
    hidden = layers.batch_norm(hidden, "norm", training=True, momentum=0.5)
    hidden = layers.dropout(hidden, 0.3, "dropout", training=True)
    loss = tf.reduce_mean(tf.square(layers.dense(hidden, 1, "output") - labels))
    optimizer = tf1.train.AdamOptimizer(0.01)
    variables = tf1.trainable_variables()
    gradients = tf.gradients(loss, variables)
    with tf.control_dependencies([*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), *gradients]):
        train_op = optimizer.apply_gradients(
            zip(gradients, variables, strict=True), tf1.train.get_global_step()
        )
    return train_op, {"loss": loss, "label": labels[0, 0]}


def _train(steps, steps_per_call=None, due_every=()):
    """Returns the steps and values seen after each call, and the final variables."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        tf1.train.get_or_create_global_step()
        iterator = tf1.data.make_initializable_iterator(_dataset())
        if steps_per_call is None:
            result = training_loop.run_once(_step, *iterator.get_next())
        else:
            result = training_loop.run_repeatedly(_step, iterator, steps_per_call, steps, due_every)
        rng = np.random.default_rng(1)
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        training.load(session, tf1.trainable_variables(), lambda v: rng.normal(size=v.shape))
        calls = []
        for _ in range(steps):
            step, values = session.run([result.step, result.values])
            calls.append((int(step), dict(zip(result.names, values.tolist(), strict=True))))
            if step == steps:
                break
        extra = None if steps_per_call is None else session.run([result.step, result.values])
        variables = session.run({v.name: v for v in tf1.global_variables()})
    return calls, variables, extra


@pytest.mark.medium
def test_several_steps_a_call_equal_single_steps_to_the_bit():
    singles, expected, _ = _train(23)
    calls, actual, _ = _train(23, steps_per_call=5)
    assert [step for step, _ in calls] == [5, 10, 15, 20, 23]
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
    by_step = dict(singles)
    for step, values in calls:
        assert values == by_step[step]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("due_every", "expected"),
    [((), [8, 16, 20]), ((10,), [8, 10, 18, 20]), ((7, 5), [5, 7, 10, 14, 15, 20])],
)
def test_a_call_ends_where_something_is_due(due_every, expected):
    calls, _, _ = _train(20, steps_per_call=8, due_every=due_every)
    assert [step for step, _ in calls] == expected


@pytest.mark.medium
def test_a_name_that_a_step_does_not_show_is_one_line():
    result = training_loop.StepResult(step=1, values=["a", "b"], names=("sign/loss", "loss"))
    assert result["loss"] == "b"
    with pytest.raises(checks.UserError, match="must be one of sign/loss, loss, got 'sing/loss'"):
        result["sing/loss"]


def test_a_call_after_the_last_step_changes_nothing():
    _, variables, (step, values) = _train(20, steps_per_call=8)
    assert step == 20 == variables["global_step:0"]
    np.testing.assert_array_equal(values, np.zeros(2))


@pytest.mark.medium
def test_a_call_ends_in_time(monkeypatch):
    monkeypatch.setattr(training_loop, "SECS_PER_CALL", 0.0)
    calls, _, _ = _train(3, steps_per_call=100)
    assert [step for step, _ in calls] == [1, 2, 3]


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 8])
def test_what_is_due_comes_out_of_its_steps(steps_per_call):
    chosen = (3, 4, 17)

    def step(features, labels):
        number = tf1.train.get_global_step().read_value() + 1
        is_due = tf.reduce_any(tf.equal(number, np.array(chosen, np.int64)))
        told = tf.cond(is_due, lambda: tf.as_string(number), lambda: tf.constant(""))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, told.op)
        outlets.add_summary(told)
        return _step(features, labels)

    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        iterator = tf1.data.make_initializable_iterator(_dataset())
        if steps_per_call == 1:
            result = training_loop.run_once(step, *iterator.get_next())
        else:
            result = training_loop.run_repeatedly(
                step, iterator, 8, 20, (), due_at=chosen, has_due=True
            )
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        found = {}
        while not found or max(found) < 20:
            number, due = session.run([result.step, result.due])
            found[int(number)] = due.decode()
        number, due = session.run([result.step, result.due]) if steps_per_call > 1 else (20, b"")
    assert {number: due for number, due in found.items() if due} == {n: str(n) for n in chosen}
    assert (int(number), due) == (20, b"")
    if steps_per_call > 1:
        assert list(found) == [3, 4, 12, 17, 20]
