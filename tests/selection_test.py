import types

import pytest

from tests import selection


class _Item:
    """A case of `tests/x_test.py`, with marks {name: argument}."""

    def __init__(self, name, **marks):
        self.name, self.nodeid, self._marks = name, f"tests/x_test.py::{name}", marks

    def get_closest_marker(self, name):
        if name in self._marks:
            return types.SimpleNamespace(args=(self._marks[name],))
        return None


def _select(items, *args, thorough=False):
    """Return the names of the cases that run, and of those that pytest is told were left out."""
    left_out = []
    config = types.SimpleNamespace(
        args=args or ("tests",),
        getoption={"--thorough": thorough}.get,
        hook=types.SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    chosen = list(items)
    selection.select(config, chosen)
    return [item.name for item in chosen], [item.name for item in left_out]


_ROWS = [_Item(f"test_rows[{number}]", drawn=3) for number in range(10)]
_ITEMS = [_Item("test_a"), _Item("test_long[1]", thorough=None), *_ROWS, _Item("test_b")]


def test_thorough_cases_and_all_but_the_drawn_ones_wait():
    chosen, left_out = _select(_ITEMS)
    assert chosen[0] == "test_a" and chosen[-1] == "test_b" and len(chosen) == 5
    assert "test_long[1]" in left_out and len(left_out) == 8
    assert sorted([*chosen, *left_out]) == sorted(item.name for item in _ITEMS)


@pytest.mark.parametrize(
    ("args", "thorough"), [(("tests",), True), (("tests/x_test.py::test_long",), False)]
)
def test_every_case_runs_if_asked_for(args, thorough):
    chosen, left_out = _select(_ITEMS, *args, thorough=thorough)
    assert chosen == [item.name for item in _ITEMS] and not left_out


def test_a_new_row_changes_one_of_the_drawn_at_most():
    before = set(_select(_ROWS)[0])
    after = set(_select([*_ROWS, _Item("test_rows[new]", drawn=3)])[0])
    assert len(after) == 3 and len(before - after) <= 1
    assert set(_select(_ROWS[::-1])[0]) == before


def test_tests_with_the_same_rows_draw_the_same_ones():
    others = [_Item(f"test_others[{number}]", drawn=3) for number in range(10)]
    chosen, _ = _select([*_ROWS, *others])
    rows = [name.partition("[")[2] for name in chosen]
    assert len(rows) == 6 and rows[:3] == rows[3:]


def test_fewer_rows_than_are_drawn_all_run():
    assert len(_select(_ROWS[:2])[0]) == 2
