"""A file of tests that costs far more than it did is told, and refused where that is asked for."""

import pytest

from tests import budgets

SLOW = "tests/slow_test.py"


@pytest.fixture(autouse=True)
def _table(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    for name in (SLOW, "tests/kept_test.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr(budgets, "_ROOT", tmp_path)
    monkeypatch.setattr(budgets, "_TABLE", tmp_path / "budgets.json")


def test_the_table_keeps_what_did_not_run_and_leaves_out_what_is_cheap():
    budgets.write_table({"tests/kept_test.py": 20.0, "tests/gone_test.py": 40.0, SLOW: 5.0})
    budgets.write_table({SLOW: 30.0})
    assert budgets.read_table() == {"tests/kept_test.py": 30.0, SLOW: 45.0}


def test_without_a_table_there_are_no_budgets():
    found = budgets.Budgets("refuse")
    found.add({"units": {SLOW: 1000.0}, "memory": 1.0})
    assert not found.list_exceeded()


def test_a_file_beyond_its_budget_is_found():
    budgets.write_table({SLOW: 30.0})
    found = budgets.Budgets("refuse")
    found.add({"units": {SLOW: 25.0, "tests/new_test.py": 9.0}, "memory": 1.0})
    assert not found.list_exceeded()
    found.add({"units": {SLOW: 25.0}, "memory": 1.0})
    assert found.list_exceeded() == [SLOW]


def test_the_time_of_other_processes_counts(monkeypatch):
    meter = budgets.Meter()
    monkeypatch.setattr(budgets, "_of_children", 0.0)

    class Item:
        nodeid = f"{SLOW}::test_it"

    case = meter.pytest_runtest_protocol(Item())
    next(case)
    budgets.add_child(100 * meter.probe)
    with pytest.raises(StopIteration):
        case.send(None)
    assert 100 <= meter.tell()["units"][SLOW] < 110
