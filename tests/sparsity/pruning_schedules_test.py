"""When weights are cut, against the formula in Python."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import pruning_schedules

tf1 = tf.compat.v1


def _over(schedule, steps):
    """The progress at each step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.placeholder(tf.int64, [])
        progress = schedule.progress(step)
        return [session.run(progress, {step: each}) for each in steps]


def test_cubic_cuts_at_its_steps_and_at_its_last():
    schedule = pruning_schedules.Cubic(begin_step=10, end_step=35, every_steps=10)
    last_cut = [0] * 20 + [20] * 10 + [30] * 5 + [35] * 25
    expected = [1 - (1 - max(t - 10, 0) / 25) ** 3 for t in last_cut]
    np.testing.assert_allclose(_over(schedule, range(60)), expected, rtol=1e-12)
    assert _over(schedule, [34, 35, 99])[1:] == [1, 1]
    assert (schedule.first_step, schedule.last_step) == (10, 35)


def test_one_shot_cuts_once():
    assert _over(pruning_schedules.OneShot(step=3), range(6)) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pruning_schedules.Cubic(end_step=0), "Cubic.end_step must be at least 1, got 0"),
        (
            lambda: pruning_schedules.Cubic(begin_step=9, end_step=9),
            "Cubic.end_step must be above begin_step, 9, got 9",
        ),
        (
            lambda: pruning_schedules.Cubic(end_step=9, every_steps=0),
            "Cubic.every_steps must be at least 1, got 0",
        ),
        (lambda: pruning_schedules.Cubic(end_step=9.5), "Cubic.end_step must be a whole number"),
        (lambda: pruning_schedules.OneShot(step=-1), "OneShot.step must be at least 0, got -1"),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
