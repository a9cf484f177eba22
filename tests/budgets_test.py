"""A file of tests that costs far more than it did is told, and refused where that is asked for."""

import itertools

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


def _run_case(meter, work):
    class Item:
        nodeid = f"{SLOW}::test_it"

    case = meter.pytest_runtest_protocol(Item())
    next(case)
    work()
    with pytest.raises(StopIteration):
        case.send(None)


def test_the_time_of_other_processes_counts(monkeypatch):
    meter = budgets.Meter()
    monkeypatch.setattr(budgets, "_of_children", 0.0)
    _run_case(meter, lambda: budgets.add_child(100 * meter.probe))
    assert 100 <= meter.tell()["units"][SLOW] < 110


def test_units_follow_the_speed_of_the_machine(monkeypatch):
    probes = itertools.chain([1.0], itertools.repeat(4.0))
    monkeypatch.setattr(budgets, "time_probe", lambda *_: next(probes))
    monkeypatch.setattr(budgets, "_of_children", 0.0)
    meter = budgets.Meter()
    _run_case(meter, lambda: budgets.add_child(100.0))
    fast = meter.tell()["units"][SLOW]
    assert 100 <= fast < 101
    monkeypatch.setattr(budgets, "_PROBE_EVERY_SECS", 0.0)
    meter._next_probe = 0.0
    for _ in range(3):
        _run_case(meter, lambda: None)
    _run_case(meter, lambda: budgets.add_child(100.0))
    assert 25 <= meter.tell()["units"][SLOW] - fast < 26
