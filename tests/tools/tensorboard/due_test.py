import pytest
import tensorflow as tf

from mtl import checks
from mtl.tools.tensorboard import due


@pytest.mark.parametrize(
    "when, steps",
    [
        (False, []),
        (True, [4, 8, 12]),
        (3, [3, 6, 9, 12]),
        (1, list(range(1, 13))),
        ([11, 2], [2, 11]),
        ((5,), [5]),
    ],
)
def test_a_setting_says_which_steps_are_due(when, steps):
    found = due.Due.from_setting(when, every=4)
    assert [n for n in range(1, 13) if found and found.includes(n)] == steps
    if found:
        told = [bool(found.tell(tf.constant(n, tf.int64))) for n in range(1, 13)]
        assert [n for n, is_due in enumerate(told, 1) if is_due] == steps


@pytest.mark.parametrize(
    "when, says",
    [
        (0, "at least 1"),
        (-3, "at least 1"),
        ([], "with at least one step, got []"),
        ([0], "at least 1"),
        ([3, 3], "name no step twice, got [3, 3]"),
        ([True], "a list of steps, got True"),
        (["3"], "got '3'"),
        (2.5, "got 2.5"),
        ("all", "got 'all'"),
        (None, "got None"),
    ],
)
def test_other_settings_are_refused(when, says):
    with pytest.raises(checks.UserError) as refused:
        due.check("TensorBoard.weights", when)
    assert str(refused.value).startswith("TensorBoard.weights must ")
    assert says in str(refused.value)
