"""Defects are found where they stand, and leave Python behind."""

import pathlib

import pytest

from tests import imports
from tests.strength import defects, groups

ROOT = pathlib.Path(__file__).parents[2]
TEXT = """
def mean(values, größe, axis_of):
    if größe < 2:
        größe = 1
    total = tf.reduce_sum(values, axis=0) + (größe)
    return divide(total[1:], größe) - 1
"""


def _plant(kind):
    return [d.plant(TEXT) for d in defects.find(TEXT) if d.kind == kind]


def test_each_kind_changes_one_place():
    assert "if größe > 2:" in _plant("comparison turned round")[0]
    assert "axis=1" in _plant("wrong axis")[0]
    assert "total[2:]" in _plant("off by one")[0]
    assert "divide(größe, total[1:])" in _plant("swapped arguments")[0]
    assert "if False:" in _plant("skipped branch")[0]
    signs = _plant("sign")
    assert any("axis=0) - (größe)" in text for text in signs)
    assert any("größe) + 1" in text for text in signs)
    assert any("return divide(total[1:], größe)\n" in text for text in _plant("dropped term"))


def test_messages_and_refusals_are_left_alone():
    text = 'if x < 2:\n    raise ValueError(f"{x + 1}")\nassert x < 3\n'
    assert {d.kind for d in defects.find(text)} == {"comparison turned round"}


def test_every_room_is_in_a_group():
    prefixes = tuple(prefix for group in groups.GROUPS.values() for prefix in group)
    left = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("mtl/*/**/*.py")
        if not path.relative_to(ROOT).as_posix().startswith((*prefixes, "mtl/types/"))
    ]
    assert not left


@pytest.mark.medium
def test_a_seed_names_the_defects():
    some = [("heads and metrics", ("mtl/heads/",)), ("step", ("mtl/step/",))]
    first, again, other = (groups.draw(ROOT, seed, 2, dict(some)) for seed in (1, 1, 2))
    assert first == again != other
    assert [group for group, *_ in first] == ["heads and metrics"] * 2 + ["step"] * 2


@pytest.mark.medium
def test_the_nearest_tests_come_first():
    graph = imports.Graph(ROOT)
    found = graph.list_tests(["mtl/heads/binary.py"])
    assert found[0] == "tests/heads/binary_test.py"
    assert "tests/times_test.py" not in found
