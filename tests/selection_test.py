import json
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


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    """Replace the list of left-out cases by an empty set, and return the set."""
    names: set[str] = set()
    monkeypatch.setattr(selection, "read_list", lambda: names)
    return names


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


def test_listed_cases_wait_unless_a_mark_keeps_them(listed):
    listed |= {"tests/x_test.py::test_a", "tests/x_test.py::test_kept", "tests/y_test.py::test_b"}
    items = [_Item("test_a"), _Item("test_kept", always=None), _Item("test_b")]
    assert _select(items) == (["test_kept", "test_b"], ["test_a"])


def test_the_list_names_cases_of_files_that_are_there():
    listed = json.loads(selection._LIST.read_text())
    assert not [file for file in listed if not (selection._ROOT / file).exists()]


_NEAR, _FAR = ("mtl/a.py", True), ("mtl/a.py", False)


def test_cases_that_run_no_new_line_are_not_chosen():
    lines = {
        "test_a[quick]": {_FAR: 0b0001},
        "test_a[wide]": {_FAR: 0b1111},
        "test_a[narrow]": {_FAR: 0b0110},
        "test_a[slow]": {_FAR: 0b110000},
        "test_a[slower]": {_FAR: 0b1110000},
    }
    secs = dict(zip(lines, (0.6, 0.2, 0.2, 0.1, 2.0), strict=True))
    chosen = selection.choose(lines, secs, {"test_a[quick]"})
    assert chosen == {"test_a[wide]", "test_a[slow]"}


def test_a_near_case_is_chosen_beside_one_that_is_far():
    lines = {"test_a[far]": {_FAR: 0b1111}, "test_a[near]": {_FAR: 0b11, _NEAR: 0b11}}
    assert selection.choose(lines, dict.fromkeys(lines, 0.1), set()) == set(lines)


@pytest.mark.parametrize(("secs", "count"), [(0.2, 4), (0.4, 2), (1.6, 0)])
def test_a_test_keeps_cases_while_they_are_short(secs, count):
    names = [f"test_b[{number}]" for number in range(4)]
    lines = dict.fromkeys(("test_a", *names), {_FAR: 0b11})
    took = {"test_a": 0.1, **dict.fromkeys(names, secs)}
    kept = selection.choose(lines, took, {"test_a"})
    assert len(kept) == count and kept <= set(names)


def test_a_test_keeps_its_shortest_case_unless_that_is_long():
    secs = {"test_a[1]": 0.4, "test_a[2]": 0.3, "test_b": 59.0, "test_c[long]": 61.0}
    assert selection.find_shortest(secs) == {"test_a[2]", "test_b"}
