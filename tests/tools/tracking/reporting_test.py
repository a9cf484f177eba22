"""Reports of runs to a tracker: their content, the process that sends them, and the run's id."""

import contextlib
import dataclasses
import logging
import os

import pytest

from examples import csv_tracker
from mtl import checks, distribution, types, verbs
from mtl.distribution import settings, tf_config
from mtl.runs import evaluation
from mtl.tools import tracking
from mtl.tools.tracking import packages, reporter, reporting
from tests import tiny
from tests.tools.tracking import trackers

ALONE = settings.Place(distribution.ONE, ("/cpu:0",))


def _tracked(*used, **run):
    return dataclasses.replace(tiny.make(**run), trackers=used)


def _starts(told):
    return [one[1] for one in told.said if one[0] == "start"]


@pytest.mark.slow
def test_a_run_its_resume_and_a_later_evaluation_are_one_run(tmp_path):
    told = trackers.Told(flush_secs=20)
    made = _tracked(told, train_steps=20)
    verbs.train(made, str(tmp_path / "run"))
    assert told.steps("train") == [10, 20] and told.steps("eval") == [20]
    (start,) = _starts(told)
    assert start.name == "run" and start.parameters["run.train_steps"] == "20"
    assert start.parameters["model.heads[kind].classes"] == "3"
    assert told.said[-1] == ("end", types.FINISHED)
    # The tracker gets the scalars of TensorBoard and the metrics of the evaluation.
    logged = {one[1]: one[2] for one in told.said if one[0] == "log"}
    ours = {
        tag: value for (step, tag), value in tiny.scalars(tmp_path / "run").items() if step == 20
    }
    for tag, value in ours.items():
        if tag not in tiny.SPEEDS:
            assert told.find("train", 20)[f"train/{tag}"] == pytest.approx(value, nan_ok=True), tag
    assert {f"train/{tag}" for tag in ours} == told.find("train", 20).keys()
    assert logged and told.find("eval", 20).keys() >= {"eval/sign/auc", "eval/average_loss"}

    del told.said[:]
    verbs.train(_tracked(told, train_steps=40), str(tmp_path / "run"))
    assert told.steps("train") == [30, 40] and told.steps("eval") == [40]
    assert [one.run_id for one in _starts(told)] == ["run-1"]

    del told.said[:]
    verbs.evaluate(_tracked(told, train_steps=40), str(tmp_path / "run"), split="train")
    assert [one[0] for one in told.said] == ["start", "log", "end"]
    assert told.steps("eval_train") == [40] and told.said[-1] == ("end", None)
    assert told.said[0][1].run_id == "run-1" and not told.said[0][1].parameters

    # Nothing is left to train, and the run stays as it is.
    del told.said[:]
    verbs.train(_tracked(told, train_steps=40), str(tmp_path / "run"))
    assert not told.said


@pytest.mark.slow
def test_no_tracker_changes_the_weights(tmp_path):
    plain = tiny.train(tiny.make(train_steps=20), tmp_path / "plain")
    for fault in ("hang", "raise"):
        told = trackers.Told(fault=fault, flush_secs=0.1)
        made = _tracked(told, train_steps=20)
        weights = tiny.train(made, tmp_path / fault)
        assert all((weights[name] == value).all() for name, value in plain.items())
    trackers.HANGING.set()
    trackers.HANGING.clear()


def _observe(made, folder, place=ALONE):
    run = types.ObservedRun(experiment=made, model_dir=str(folder), place=place)
    return tracking.Reporting(trackers=made.trackers)(run)


@contextlib.contextmanager
def _reported(made, folder):
    report = _observe(made, folder)
    with report.around_run():
        yield report


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, types.FINISHED),
        (checks.UserError("no"), types.FAILED),
        (SystemExit(143), types.KILLED),
        (KeyboardInterrupt(), types.KILLED),
    ],
)
def test_the_end_has_its_state(tmp_path, error, state):
    told = trackers.Told(flush_secs=10)

    def train():
        with _reported(_tracked(told), tmp_path) as report:
            report.prepare(is_new=True)
            report.begin()
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            train()
    else:
        train()
    assert told.said[-1] == ("end", state)


def test_a_start_that_fails_is_not_reported(tmp_path):
    told = trackers.Told(flush_secs=10)
    with (
        pytest.raises(checks.UserError),
        _reported(_tracked(told), tmp_path) as report,
    ):
        report.prepare(is_new=True)
        raise checks.UserError("no")
    assert not told.said and not (tmp_path / "tracking").exists()


def _place(job):
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "evaluator": ["c:1"]}
    return settings.Place(
        distribution.WORKERS, ("/cpu:0",), tf_config.Cluster(jobs=jobs, job=job, index=0)
    )


def test_the_chief_and_the_evaluator_report_to_one_run_and_others_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "_AGAIN_SECS", 0.05)
    told = trackers.Told(flush_secs=20)
    made = _tracked(told)
    reports = {job: _observe(made, tmp_path, _place(job)) for job in tf_config.JOBS}
    assert [one is not None for one in reports.values()] == [True, False, False, True]
    chief, evaluator = reports["chief"], reports["evaluator"]
    with evaluator.around_run():
        evaluator.begin()
        evaluator.log("eval", 10, {"auc": 0.5})
        with chief.around_run():
            chief.prepare(is_new=True)
            chief.begin()
    assert [one.run_id for one in _starts(told)] == [None, "run-1"]
    assert [one[1] for one in told.said if one[0] == "end"] == [types.FINISHED, None]
    assert told.steps("eval") == [10]


def test_files_of_the_run_are_added(tmp_path):
    told = trackers.Told(flush_secs=10, export_limit_mb=1)
    (tmp_path / "profile").mkdir()
    for name in (
        "config.gin",
        "balancing.svg",
        "report.html",
        "model.ckpt-1.index",
        "profile/a.txt",
    ):
        (tmp_path / name).write_text("x")
    for kind, version in (("latest", 3), ("best", 1), ("best", 20)):
        (tmp_path / "export" / kind / str(version)).mkdir(parents=True)
    with _reported(_tracked(told), tmp_path) as report:
        report.prepare(is_new=True)
        report.begin()
    added = {
        (os.path.relpath(one[1], tmp_path), one[2]) for one in told.said if one[0] == "add_file"
    }
    assert added == {
        ("config.gin", ""),
        ("balancing.svg", ""),
        ("report.html", ""),
        ("profile/a.txt", "profile"),
        ("export/best/20", "export/best"),
    }


def test_long_settings_are_cut_and_told(tmp_path, caplog):
    told = trackers.Told(flush_secs=10)
    made = _tracked(told)
    spec = dataclasses.replace(made.data.spec, defaults={"word": "x" * 600})
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, spec=spec))
    with (
        caplog.at_level(logging.INFO, "mtl"),
        _reported(made, tmp_path) as report,
    ):
        report.prepare(is_new=True)
        report.begin()
    (start,) = _starts(told)
    assert max(map(len, start.parameters.values())) == 500
    assert not any(name.startswith("trackers") for name in start.parameters)
    assert "settings longer than 500: data.source.splits, data.spec.defaults" in caplog.text


def test_a_package_that_is_not_installed_is_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for tracker, package in ((tracking.MLflow(), "mlflow"), (tracking.WandB(), "wandb")):
        with pytest.raises(checks.UserError) as raised:
            verbs.train(_tracked(tracker), str(tmp_path / "run"))
        name = type(tracker).__name__
        assert str(raised.value) == (
            f"tracking.{name} needs {package}, which is not installed. "
            f"Run: pip install 'multitask-estimator[{package}]'."
        )
    assert not (tmp_path / "run").exists()
    # A later verb does its own work.
    with reporting.go_on([tracking.MLflow()], str(tmp_path)) as reporters:
        assert not reporters
    assert "nothing is reported: tracking.MLflow needs mlflow" in caplog.text


def test_a_run_that_no_tracker_knows_is_told(tmp_path, caplog):
    told = trackers.Told()
    with (
        caplog.at_level(logging.INFO, "mtl"),
        reporting.go_on([told], str(tmp_path)) as reporters,
    ):
        reporters.log("eval_test", 10, {"auc": 0.5})
    assert "tracker told knows no run of" in caplog.text and not told.said


@pytest.mark.parametrize(
    "wrong", [[tracking.MLflow], [1], tracking.MLflow(), [trackers.Told(), trackers.Told()], None]
)
def test_wrong_trackers_are_refused(wrong):
    with pytest.raises(checks.UserError, match=r"^Experiment\.trackers must "):
        dataclasses.replace(tiny.make(), trackers=wrong)


def test_a_tracker_of_ones_own(tmp_path):
    path = tmp_path / "all.csv"
    for folder, steps in (("a", [10]), ("b", [10]), ("a", [10, 20])):
        made = _tracked(csv_tracker.CsvTracker(path=str(path)))
        with _reported(made, tmp_path / folder) as report:
            report.prepare(is_new=len(steps) == 1)
            report.begin()
            for step in steps:
                report.log("train", step, {"loss": 0.5})
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert [line[1:] for line in lines] == [
        [step, "train/loss", "0.5"] for step in ("10", "10", "20")
    ]
    assert lines[0][0] == lines[2][0] != lines[1][0]


def test_streams_of_evaluations_are_named_by_their_split():
    made = tiny.make()
    assert evaluation.name_stream(made, None) == evaluation.name_stream(made, "test") == "eval"
    assert evaluation.name_stream(made, "test[:50%]") == "eval_test_50_"
