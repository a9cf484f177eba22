"""When weights are cut, against the formula in Python."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import pruning_schedules

tf1 = tf.compat.v1


def _over(schedule, steps):
    """(progress, cuts so far) of each step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.placeholder(tf.int64, [])
        fetches = schedule.progress(step), schedule.count_cuts(step)
        return [session.run(fetches, {step: each}) for each in steps]


def test_cubic_cuts_at_its_steps_and_at_its_last():
    found = _over(pruning_schedules.Cubic(begin_step=10, end_step=35, every_steps=10), range(60))
    counts = [count for _, count in found]
    assert [step for step in range(60) if counts[step] != ([0, *counts])[step]] == [10, 20, 30, 35]
    assert counts[-1] == 4
    expected = [1 - (1 - min(max((t - 10) / 25, 0), 1)) ** 3 for t in range(60)]
    np.testing.assert_allclose([progress for progress, _ in found], expected, rtol=1e-12)
    part = pruning_schedules.Cubic(begin_step=10, end_step=35)
    assert (part.first_step, part.last_step) == (10, 35)
    found = _over(pruning_schedules.Cubic(end_step=20, every_steps=10), [0, 9, 10, 19, 20, 99])
    assert [count for _, count in found] == [1, 1, 2, 2, 3, 3]


def test_one_shot_cuts_once():
    found = _over(pruning_schedules.OneShot(step=3), range(6))
    assert found == [(0, 0)] * 3 + [(1, 1)] * 3


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
