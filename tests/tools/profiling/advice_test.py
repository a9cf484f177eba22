"""The advice on a profile quotes its numbers, and says so if nothing stands out."""

import pytest

from mtl.tools.profiling import advice
from tests.tools.profiling import made

PLAIN = advice.Settings()


@pytest.mark.parametrize(
    ("wall", "settings", "told"),
    [
        ({"WAITING": 5.0}, PLAIN, ["batches for 50% of the time", "Pipeline.cache = True"]),
        ({"WAITING": 5.0}, advice.Settings(cache=True), ["read TFRecords"]),
        ({"BALANCING": 3.0}, advice.Settings(combines=True), ["30%", "Combine.every_steps = 10"]),
        (
            {"BALANCING": 1.0, "back": 4.0, "passes": 4},
            advice.Settings(combines=True),
            [
                "takes 40%: 10% itself, and 30% because it needs 4 backward passes",
                '"representation"',
            ],
        ),
        (
            {"SESSION": 2.0, "BETWEEN": 2.0},
            advice.Settings(steps_per_call=1),
            ["take 40%", "Run.steps_per_call = 100"],
        ),
        ({"BETWEEN": 3.0}, PLAIN, ["30% of the time passes between", "Run.summary_steps"]),
        ({"ENCODE": 6.0}, PLAIN, ["Encoding takes 60%"]),
        (
            {"SESSION": 4.0, "ops": 900, "op_secs": 2e-6},
            PLAIN,
            ["900 ops of 2.0 us each", "40%", "Pipeline.batch_size", "Precision.xla = True"],
        ),
    ],
)
def test_what_stands_out_is_told(wall, settings, told):
    (line,) = advice.advise(made.make(**wall), settings)
    assert all(text in line for text in told), line


@pytest.mark.parametrize(
    ("wall", "settings"),
    [
        ({"WAITING": 1.9}, PLAIN),
        ({"BALANCING": 6.0}, PLAIN),  # No `Combine` is used, so no setting would help.
        ({"back": 9.0}, advice.Settings(combines=True)),  # One pass, as a sum takes.
        ({"SESSION": 4.0}, PLAIN),  # Few ops, and many steps a call already.
        ({"SESSION": 4.0}, advice.Settings(steps_per_call=1, may_repeat=False)),
        ({"SESSION": 4.0, "ops": 900, "op_secs": 1e-4}, PLAIN),
    ],
)
def test_what_does_not_stand_out_is_not_told(wall, settings):
    (line,) = advice.advise(made.make(**wall), settings)
    assert line.startswith("Nothing stands out")


def test_xla_that_is_on_is_not_advised():
    found = made.make(SESSION=4.0, ops=900, op_secs=2e-6)
    (line,) = advice.advise(found, advice.Settings(xla=True))
    assert "xla" not in line and "batch_size" in line
