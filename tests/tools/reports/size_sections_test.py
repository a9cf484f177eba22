"""Sections of a report: the size of a run, its samples, its problems, and commands to copy."""

import numpy as np
import pytest

from mtl.tools.reports import size_sections
from tests.tools.reports import runs


@pytest.mark.parametrize(
    "is_best,versions,served",
    [
        (True, ["best/9", "best/10", "latest/11"], "best"),
        (True, ["latest/11"], "latest"),
        (False, ["latest/11"], "latest"),
        (False, ["best/9", "latest/11"], "latest"),
        (False, ["best/9"], None),  # An earlier run has written this export.
        (True, [], None),
    ],
)
def test_the_command_serves_a_folder_that_is_there(tmp_path, is_best, versions, served):
    for version in versions:
        (tmp_path / "export" / version).mkdir(parents=True)
    run = runs.make(str(tmp_path), metrics={"sign/auc": 0.5} if is_best else None)
    (commands,) = size_sections.tell_commands(run)
    found = [line for what, line in commands.lines if what == "Serve the export"]
    assert len(found) == (served is not None)
    for line in found:
        assert f" -v {tmp_path}/export/{served}:/models/" in line


def test_norms_that_are_not_finite_are_not_drawn():
    norms = np.array([np.inf, np.nan, 3.0, 1.0])
    samples = {"id": np.arange(4), "visits": np.ones(4), "norm/mean/all": norms}
    table, pictures = size_sections._tell_audit(samples)
    assert len(table.rows) == 4
    (picture,) = pictures.figures
    assert picture.note == "2 of 4 norms are not finite, and not drawn."
    assert picture.svg.count('class="dot') == 2 and "nan" not in picture.svg


def test_a_run_without_a_recorded_step_may_have_event_files():
    (line,) = size_sections.tell_problems(runs.make(), [])
    assert line.text == "No step was recorded, so it is unknown whether all values were finite."
