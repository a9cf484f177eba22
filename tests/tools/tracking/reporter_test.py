"""A thread passes all reports to a tracker in order; a hanging tracker holds up no run."""

import logging
import time

import pytest

from mtl import types
from mtl.tools.tracking import reporter
from tests.tools.tracking import trackers

RUN = types.RunDescription("a", "runs/a", parameters={"run.seed": "1"})


@pytest.fixture(autouse=True)
def go_on():
    trackers.HANGING.clear()
    yield
    trackers.HANGING.set()


def _report(tracker, folder, steps, state=types.FINISHED, is_new=True):
    reporters = reporter.Reporters([tracker], str(folder))
    reporters.prepare(is_new)
    reporters.start(RUN)
    for step in steps:
        reporters.log("train", step, {"loss": 1 / step})
    return reporters.close(state)


def test_all_is_reported_in_order(tmp_path):
    told = trackers.Told(flush_secs=10)
    assert _report(told, tmp_path, [1, 2, 3]) == []
    first, *rest = told.said
    assert first[0] == "start" and first[1].parameters == RUN.parameters and not first[1].run_id
    logged = [("log", step, {"train/loss": 1 / step}) for step in (1, 2, 3)]
    assert rest == [*logged, ("end", types.FINISHED)]


def test_a_run_that_goes_on_is_the_same_run_and_no_step_comes_twice(tmp_path):
    told = trackers.Told(flush_secs=10)
    _report(told, tmp_path, [10, 20, 30], types.KILLED)
    _report(told, tmp_path, [20, 30, 40], is_new=False)
    assert told.steps() == [10, 20, 30, 40]
    starts = [run for what, run in (one[:2] for one in told.said) if what == "start"]
    assert starts[0].run_id is None and starts[1].run_id == "run-1"


def test_a_new_run_in_the_same_folder_is_a_new_one(tmp_path):
    told = trackers.Told(flush_secs=10)
    _report(told, tmp_path, [10, 20])
    _report(told, tmp_path, [10])
    assert told.steps() == [10, 20, 10]
    assert [one[1].run_id for one in told.said if one[0] == "start"] == [None, None]


def test_parts_of_a_run_report_to_one_run_under_their_names(tmp_path):
    told = trackers.Told(flush_secs=10)

    def report(name, is_first, is_new):
        part = types.RunPart(name, str(tmp_path), is_first)
        reporters = reporter.Reporters([told], str(tmp_path / name), part=part)
        reporters.prepare(is_new)
        reporters.start(RUN)
        reporters.log("train", 10, {"loss": 0.5})
        reporters.add_file(__file__, "profile")
        assert reporters.close(types.FINISHED) == []

    report("first", is_first=True, is_new=True)
    report("second", is_first=False, is_new=True)
    report("second", is_first=False, is_new=False)
    names = [list(one[2]) for one in told.said if one[0] == "log"]
    assert names == [["first/train/loss"], ["second/train/loss"]]
    folders = [one[2] for one in told.said if one[0] == "add_file"]
    assert folders == ["first/profile", "second/profile", "second/profile"]
    report("first", is_first=True, is_new=True)
    starts = [one[1].run_id for one in told.said if one[0] == "start"]
    assert starts == [None, "run-1", "run-1", None]
    # The second part, done before, is told to the new run as well.
    report("second", is_first=False, is_new=False)
    last = told.said[-3]
    assert last[0] == "log" and list(last[2]) == ["second/train/loss"]
    # Later scalars reach the same run, under the name of the part.
    later = reporter.Reporters([told], str(tmp_path / "second"), is_owner=False)
    later.start(RUN)
    later.log("eval_test", 10, {"loss": 0.25})
    assert later.close(None) == []
    assert list(told.said[-2][2]) == ["second/eval_test/loss"]


def test_a_copied_folder_is_another_run(tmp_path, caplog):
    told = trackers.Told(flush_secs=10)
    _report(told, tmp_path / "a", [10, 20])
    (tmp_path / "a").rename(tmp_path / "b")
    with caplog.at_level(logging.INFO, "mtl"):
        _report(told, tmp_path / "b", [20, 30], is_new=False)
    assert [one[1].run_id for one in told.said if one[0] == "start"] == [None, None]
    assert told.steps() == [10, 20, 20, 30]
    assert f"belongs to {tmp_path / 'a'}; a new run begins" in caplog.text


def test_another_destination_is_another_run(tmp_path):
    told = trackers.Told(flush_secs=10)
    _report(told, tmp_path, [10])
    other = trackers.Told(flush_secs=10, destination="elsewhere")
    _report(other, tmp_path, [20], is_new=False)
    assert other.said[0][1].run_id is None


def test_evaluations_of_an_earlier_step_are_reported_and_each_once(tmp_path):
    told = trackers.Told(flush_secs=10)
    reporters = reporter.Reporters([told], str(tmp_path))
    reporters.start(RUN)
    for step in (500, 300, 500):
        reporters.log("eval_test", step, {"auc": 0.5})
    reporters.close(None)
    assert told.steps("eval_test") == [500, 300]
    assert told.said[-1] == ("end", None)


@pytest.mark.parametrize("at", ["start", "log", "end"])
def test_a_tracker_that_hangs_holds_up_nothing(tmp_path, at):
    told = trackers.Told(fault="hang", at=[at])
    # It hangs for 20 s: whoever waits for it has nothing to tell.
    (line,) = _report(told, tmp_path, range(1, 3 if at == "end" else 2001))
    assert "did not arrive within 0.2 s" in line
    if at == "start":
        dropped = "1000 were dropped, as the tracker was too slow or away"
        expected = f"got 0 reports of this run; {dropped}, 1000 did not arrive within 0.2 s."
        assert line == f"Tracker told {expected}"
    if at == "end":
        lost = "the end of the run did not arrive within 0.2 s"
        assert line == f"Tracker told got 2 reports of this run; {lost}."


def test_what_a_tracker_raises_is_told_once_and_counted(tmp_path, caplog):
    told = trackers.Told(fault="raise", at=["log"], flush_secs=10)
    (line,) = _report(told, tmp_path, range(1, 6))
    assert line == "Tracker told got 0 reports of this run; 5 failed."
    assert told.said[-1] == ("end", types.FINISHED)
    (record,) = caplog.records
    assert record.getMessage() == (
        "Warning: tracker told failed at metrics, training goes on: "
        "ConnectionError: no log\\nof this"
    )


def test_a_tracker_that_cannot_begin_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "_AGAIN_SECS", 0.01)
    told = trackers.Told(fault="raise", at=["start"], flush_secs=10)
    reporters = reporter.Reporters([told], str(tmp_path))
    reporters.start(RUN)
    reporters.log("train", 1, {"loss": 1.0})
    time.sleep(0.05)
    object.__setattr__(told, "fault", "")
    assert reporters.close(types.FINISHED) == []
    assert told.steps() == [1]


def test_a_hanging_tracker_does_not_keep_another_from_reporting(tmp_path):
    hangs = trackers.Told(fault="hang", name="hangs")
    told = trackers.Told(flush_secs=10)
    reporters = reporter.Reporters([hangs, told], str(tmp_path))
    reporters.start(RUN)
    reporters.log("train", 1, {"loss": 1.0})
    (line,) = reporters.close(types.FINISHED)
    assert "Tracker hangs" in line and told.steps() == [1]


def test_who_begins_no_run_waits_for_its_id(tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "_AGAIN_SECS", 0.01)
    told = trackers.Told(flush_secs=10)
    beside = reporter.Reporters([told], str(tmp_path), is_owner=False)
    beside.start(RUN)
    beside.log("eval", 10, {"auc": 0.5})
    time.sleep(0.05)
    assert not told.said
    _report(told, tmp_path, [10])
    assert beside.close(None) == []
    assert [one[1].run_id for one in told.said if one[0] == "start"] == [None, "run-1"]
    assert told.steps("eval") == [10]


def test_an_export_is_added_up_to_a_size(tmp_path, caplog):
    export = tmp_path / "export"
    (export / "variables").mkdir(parents=True)
    (export / "variables" / "data").write_bytes(b"x" * 1_500_000)
    for limit, is_added in ((0.0, False), (1.0, False), (2.0, True)):
        told = trackers.Told(flush_secs=10, export_limit_mb=limit)
        reporters = reporter.Reporters([told], str(tmp_path / f"{limit}"))
        with caplog.at_level(logging.INFO, "mtl"):
            reporters.add_export(str(export), "export/best")
        reporters.start(RUN)
        reporters.close(types.FINISHED)
        added = ("add_file", str(export), "export/best") in told.said
        assert added == is_added
    assert caplog.text.count("of 1.5 MB, as told.export_limit_mb = 1") == 1


@pytest.mark.parametrize(
    ("started", "says"),
    [
        (None, "return a types.TrackedRun, with run_id, log, add_file, end, got None"),
        ("run-1", "return a types.TrackedRun, with run_id, log, add_file, end, got 'run-1'"),
        (trackers.ToldRun(None, 7), "return a types.TrackedRun, whose run_id is a text, got 7"),
    ],
)
def test_a_start_that_returns_no_run_is_told_in_words(started, says, tmp_path, caplog):
    class Wrong(trackers.Told):
        def start(self, run):
            return started

    with caplog.at_level(logging.WARNING):
        lines = _report(Wrong(), tmp_path, [1])
    assert f"Wrong.start must {says}" in caplog.text + " ".join(lines)
    assert "NoneType" not in caplog.text
