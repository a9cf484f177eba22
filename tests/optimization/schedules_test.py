import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.optimization import optimizers, schedules
from tests import tiny

tf1 = tf.compat.v1

STEPS = [0, 1, 2, 8, 9, 10, 11, 49, 50, 51, 99, 100, 101, 150, 1000, 123_456]


def _values(schedule):
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.placeholder(tf.int64, [])
        rate = schedules.evaluate_rate(schedule, step)
        assert rate.dtype == tf.float32
        assert rate.shape.rank == 0
        return [session.run(rate, {step: value}) for value in STEPS]


def _piecewise(step):
    return 0.1 if step < 10 else 0.02 if step < 100 else 0.003


ROWS = {
    "constant": (schedules.Constant(value=0.1), lambda s: 0.1),
    "exponential": (
        schedules.Exponential(value=0.1, decay_rate=0.9, decay_steps=50),
        lambda s: 0.1 * 0.9 ** (s / 50),
    ),
    "staircase": (
        schedules.Exponential(value=0.1, decay_rate=0.9, decay_steps=50, staircase=True),
        lambda s: 0.1 * 0.9 ** (s // 50),
    ),
    "cosine": (
        schedules.Cosine(value=0.1, decay_steps=100, end_value=0.01),
        lambda s: 0.01 + 0.09 * (0.5 + 0.5 * math.cos(math.pi * min(s, 100) / 100)),
    ),
    "piecewise": (
        schedules.Piecewise(boundaries=[10, 100], values=[0.1, 0.02, 0.003]),
        _piecewise,
    ),
    "polynomial": (
        schedules.Polynomial(value=0.1, decay_steps=100, end_value=0.01, power=2.0),
        lambda s: 0.01 + 0.09 * (1 - min(s, 100) / 100) ** 2,
    ),
    "sigmoid": (
        schedules.Sigmoid(value=0.1, rise_steps=100, steepness=5.0),
        lambda s: 0.1 * (2 / (1 + math.exp(-5 * min(s, 100) / 100)) - 1),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_equals_numpy(name):
    schedule, formula = ROWS[name]
    np.testing.assert_allclose(_values(schedule), [formula(s) for s in STEPS], rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("name", ROWS)
def test_warm_up_multiplies(name):
    schedule, formula = ROWS[name]
    warm = type(schedule)(**{**vars(schedule), "warmup_steps": 50})
    expected = [formula(s) * min(1, (s + 1) / 50) for s in STEPS]
    np.testing.assert_allclose(_values(warm), expected, rtol=2e-6, atol=1e-9)


def test_a_number_is_constant():
    np.testing.assert_allclose(_values(0.25), 0.25)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.Constant(value=0), "Constant.value must be above 0, got 0"),
        (
            lambda: schedules.Cosine(value=1, decay_steps=0),
            "Cosine.decay_steps must be at least 1, got 0",
        ),
        (
            lambda: schedules.Cosine(value=1, decay_steps=1e3),
            "Cosine.decay_steps must be a whole number, got 1000.0",
        ),
        (
            lambda: schedules.Constant(value=1, warmup_steps=-1),
            "Constant.warmup_steps must be at least 0, got -1",
        ),
        (
            lambda: schedules.Exponential(value=1, decay_rate=1.1, decay_steps=1),
            r"Exponential.decay_rate must be in \(0, 1\], got 1.1",
        ),
        (
            lambda: schedules.Piecewise(boundaries=[5, 5], values=[1, 1, 1]),
            r"Piecewise.boundaries must increase from above 0, got \[5, 5\]",
        ),
        (
            lambda: schedules.Piecewise(boundaries=[5], values=[1]),
            r"Piecewise.values must hold one more than the 1 boundaries, got \[1\]",
        ),
        (
            lambda: schedules.Polynomial(value=1, decay_steps=1, end_value=-1),
            "Polynomial.end_value must be at least 0, got -1",
        ),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules_last_as_long_as_the_run_unless_they_say_how_long():
    rates = [schedules.Cosine(value=1), schedules.Polynomial(value=1, decay_steps=7)]
    part = {"a": schedules.Cosine(value=2.0, warmup_steps=3), "b": (rates, 0.1)}
    made = schedules.fill_decay_steps(part, 40)
    assert made["a"] == schedules.Cosine(value=2.0, warmup_steps=3, decay_steps=40)
    assert made["b"][0] == [schedules.Cosine(value=1, decay_steps=40), rates[1]]
    assert schedules.fill_decay_steps(made, 50) is made and part["a"].decay_steps is None
    model = tiny.make(optimizer=optimizers.LazyAdam(learning_rate=rates[0])).model
    assert model.fill_schedules(9).update.optimizer.learning_rate.decay_steps == 9
    assert model.fill_schedules(9).columns is model.columns


def test_a_schedule_alone_must_say_how_long_it_lasts():
    with pytest.raises(checks.UserError, match="Cosine.decay_steps must be set here, got None"):
        _values(schedules.Cosine(value=1))


@pytest.mark.parametrize(
    "schedule, last, expected",
    [
        (schedules.Cosine(value=0.1, decay_steps=2000), 39_999, 2000),
        (schedules.Cosine(value=0.1, decay_steps=2000), 1998, None),
        (schedules.Cosine(value=0.1, decay_steps=2000, end_value=1e-9), 39_999, None),
        (schedules.Polynomial(value=0.1, decay_steps=7), 10, 7),
        (schedules.Constant(value=0.1), 10**9, None),
        (0.1, 10, None),
    ],
)
def test_the_step_from_which_a_rate_is_0(schedule, last, expected):
    found = schedules.zero_from(schedule, last)
    # In float32 the cosine reaches its end a little earlier.
    assert found == expected or (expected and expected - 3 <= found <= expected)


LARGE = 2**24


def _at(schedule, steps):
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.placeholder(tf.int64, [])
        rate = schedules.evaluate_rate(schedule, step)
        return [session.run(rate, {step: value}) for value in steps]


@pytest.mark.parametrize("start", [LARGE, 2**31, 2**40])
def test_a_change_comes_at_its_step_and_not_one_earlier(start):
    piecewise = schedules.Piecewise(boundaries=[start + 1, start + 3], values=[3.0, 2.0, 1.0])
    steps = [start + offset for offset in range(-1, 5)]
    assert _at(piecewise, steps) == [3, 3, 2, 2, 1, 1]
    stairs = schedules.Exponential(value=1.0, decay_rate=0.5, decay_steps=start + 1, staircase=True)
    assert _at(stairs, steps) == [1, 1, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (
            lambda n: schedules.Polynomial(value=1.0, decay_steps=n, power=0.1),
            lambda s, n: (1 - min(s, n) / n) ** 0.1,
        ),
        (
            lambda n: schedules.Cosine(value=1.0, decay_steps=n),
            lambda s, n: math.sin(math.pi * (n - min(s, n)) / n / 2) ** 2,
        ),
        (
            lambda n: schedules.Constant(value=1.0, warmup_steps=n),
            lambda s, n: min(1, (s + 1) / n),
        ),
    ],
)
@pytest.mark.parametrize("end", [LARGE + 5, 2**33])
def test_the_last_steps_of_a_long_schedule(make, formula, end):
    steps = [end + offset for offset in range(-4, 3)]
    expected = [formula(step, end) for step in steps]
    np.testing.assert_allclose(_at(make(end), steps), expected, rtol=1e-6, atol=1e-15)
