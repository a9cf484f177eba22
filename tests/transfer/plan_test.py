"""The line and the table that tell from which saved variables a run starts."""

import types

import pytest

from mtl.transfer import plan


def _plan(new, shapes):
    entries = [plan.Entry(name="kept", shape=[2, 3], outcome="warmed", source="saved")]
    entries += [plan.Entry(name=name, shape=[], outcome="initialised") for name in new]
    return plan.Plan(entries, types.SimpleNamespace(path="runs/old", shapes=shapes))


@pytest.mark.parametrize(
    ("new", "names"),
    [("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("abcdef", "a, b, c and 3 more")],
)
def test_the_line_names_three_variables_and_counts_the_rest(new, names):
    line = _plan(new, {}).summary()
    assert line.startswith("Warm start from runs/old: ") and "1 warmed" in line
    assert line.endswith(f"{len(new)} initialised; initialised: {names}")


def test_the_table_ends_with_variables_that_nothing_takes():
    *_, row = _plan("", {"saved": [2, 3], "gone": [5]}).table().splitlines()
    assert row.split() == ["not", "used", "gone", "[5]"]
