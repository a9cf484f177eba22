"""What a run weighs, its samples, its problems, and the commands to copy."""

import pytest

from mtl.reports import size_sections
from tests.reports import runs


@pytest.mark.parametrize(
    "is_best,versions,served",
    [
        (True, ["best/9", "best/10", "latest/11"], "best"),
        (True, ["latest/11"], "latest"),
        (False, ["latest/11"], "latest"),
        (False, ["best/9", "latest/11"], "latest"),
        (False, ["best/9"], None),  # Of a run before this one.
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
