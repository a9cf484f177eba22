import types

import pytest

from benchmarks import tracking


@pytest.mark.medium
def test_the_timed_run_reports_to_its_tracker(monkeypatch):
    reports = []
    monkeypatch.setattr(tracking, "_STEPS", types.SimpleNamespace(value=100))
    monkeypatch.setattr(tracking, "_EVERY", types.SimpleNamespace(value=50))
    monkeypatch.setattr(tracking.FaultyRun, "log", lambda run, step, metrics: reports.append(step))
    wall, thread = tracking._measure(10, [tracking.Faulty(fault="is slow")], None)
    assert reports
    assert wall > 0 and thread > 0
