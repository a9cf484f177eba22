"""A password that is planted where settings, errors and lines come from is in nothing they make."""

import dataclasses
import io
import json
import logging
import sys

import pytest

from launch import app
from launch.processes import json_log
from mtl import checks
from mtl.checkpoints import flat_settings
from mtl.configs import config, gin_files, gin_writing
from mtl.data import csv
from mtl.tools import tracking
from mtl.tools.reports import blocks, comparison, comparison_page, comparison_text, page, report
from mtl.tools.scoring import protocol, remote
from mtl.tools.tracking import records, reporting
from tests import tiny
from tests.tools.reports import runs
from tests.tools.tracking import trackers

SECRET = "s3cr3tPass"
PLACES = [f"http://me:{SECRET}@host:5000", f"mysql://me:{SECRET}@host/db", f"x://h?token={SECRET}"]
START = "from __gin__ import dynamic_registration\n"


def _make(place):
    """An experiment of a program, whose parts may hold anything."""
    data = tiny.make().data
    source = csv.Csv(files={"train": [place], "test": "b.csv"})
    told = trackers.Told(destination=place)
    made = dataclasses.replace(tiny.make(), trackers=[told])
    return dataclasses.replace(made, data=dataclasses.replace(data, source=source))


@pytest.mark.medium
@pytest.mark.parametrize("place", PLACES)
def test_reports_comparisons_and_trackers_show_no_password(place, tmp_path):
    made = {"a": _make(place), "b": _make(place.replace(SECRET, f"{SECRET}2")), "c": tiny.make()}
    found = comparison.compare({n: runs.make(n, {"sign/auc": 0.5}, one) for n, one in made.items()})
    comparison_text.write_csv(str(tmp_path / "x.csv"), found)
    told = report._tell_settings(runs.make("a", {}, made["a"]))
    settings = blocks.Page("a run", "", "", [], [blocks.Section("x", "X", told)], [])
    outputs = [
        (tmp_path / "x.csv").read_text(),
        page.render(comparison_page.describe(found)),
        comparison_text.describe(found, 2000),
        page.render(settings),
        repr(flat_settings.compare(made)),
        repr(reporting._list_parameters(made["a"])),
    ]
    for output in outputs:
        assert "***" in output and SECRET not in output


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["{!r}", "[1, {!r}]", "{{'a': [{!r}]}}"])
def test_a_password_in_a_gin_file_is_refused_in_its_line(place, value, tmp_path):
    file, binding = tmp_path / "x.gin", f"some = {value.format(place)}"
    file.write_text(f"{START}{binding}\n")
    for files, params in (([str(file)], []), ([], [binding])):
        with pytest.raises(checks.UserError, match="some must hold no password.*MLFLOW_") as error:
            gin_files.read(files, params)
        assert SECRET not in str(error.value)
    assert "x.gin line 2: some" in str(
        pytest.raises(checks.UserError, gin_files.read, [str(file)], []).value
    )


def test_a_password_of_a_program_is_in_no_gin_file():
    with pytest.raises(checks.UserError, match="Csv.files.* must hold no password") as error:
        gin_writing.write(_make(PLACES[0]))
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("place", PLACES)
def test_lines_errors_and_kept_files_show_no_password(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger, handler = logging.getLogger("mtl"), app.Lines()
    monkeypatch.setattr(logger, "handlers", [handler])
    with json_log.append_to(str(tmp_path / "log.jsonl")):
        logger.warning("Warning: %s is away", place)
    records.Record(str(tmp_path), "t", place).write_id("7")
    with pytest.raises(checks.UserError) as error:
        remote.connect_server(f"{place}/x y", protocol.Call(model="m"))
    outputs = [
        sys.stderr.getvalue(),
        (tmp_path / "log.jsonl").read_text(),
        (tmp_path / "tracking" / "t" / "run.json").read_text(),
        str(error.value),
    ]
    for output in outputs:
        assert "***" in output and SECRET not in output


def test_a_run_that_an_earlier_version_has_kept_goes_on(tmp_path):
    place = PLACES[0]
    known = records.Record(str(tmp_path), "t", place)
    known.write_id("7")
    file = tmp_path / "tracking" / "t" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "destination": place}))
    assert known.read_id() == "7" and not known.tell_other()


@pytest.mark.parametrize(
    "text",
    [
        f"NAME={SECRET}\0HOME=/root",
        f"{START}{SECRET}.x = 1",
        f"import {SECRET}\n",
        f"'{SECRET}",
        SECRET,
    ],
)
@pytest.mark.parametrize("name", ["environ", "link.gin"])
def test_a_file_that_a_stranger_includes_is_not_quoted(text, name, tmp_path):
    (tmp_path / "environ").write_text(text)
    (tmp_path / "link.gin").symlink_to("environ")
    file = tmp_path / "x.gin"
    file.write_text(f"{START}include '{tmp_path}/{name}'\n")
    with pytest.raises(checks.UserError) as error:
        gin_files.read([str(file)], [])
    line = str(error.value)
    assert f"x.gin line 2: '{tmp_path}/{name}' is not a gin file" in line and SECRET not in line
    # A file that the user names is quoted, and so is an included gin file.
    with pytest.raises(checks.UserError, match=SECRET):
        gin_files.read([str(tmp_path / "environ")], [])
    (tmp_path / "environ").rename(tmp_path / "own.gin")
    file.write_text(f"{START}include '{tmp_path}/own.gin'\n")
    with pytest.raises(checks.UserError, match=rf"own.gin line [12]: .*{SECRET}"):
        gin_files.read([str(file)], [])


def test_the_config_of_a_run_that_leads_elsewhere_is_not_quoted(tmp_path):
    (tmp_path / "environ").write_text(f"NAME={SECRET}")
    (tmp_path / "config.gin").symlink_to("environ")
    with pytest.raises(checks.UserError, match="is not a gin file, or has a mistake") as error:
        config.load([config.saved_in(str(tmp_path))])
    assert SECRET not in str(error.value)


def test_without_a_tracker_nothing_is_asked_of_the_environment(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.MLflow(experiment="e").destination == "e"
