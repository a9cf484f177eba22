import json
import logging

import numpy as np
import pytest

from launch.processes import json_log
from mtl import checks


def test_lines_are_appended_with_their_numbers(tmp_path):
    path, log = tmp_path / "new" / "log.jsonl", logging.getLogger("mtl.some.room")
    fields = {"step": np.int64(3), "losses": {"a": np.float32(0.5), "b": float("nan")}}
    for start in (0, 1):
        with json_log.append_to(str(path)):
            log.debug("step %d <\u00e9>", start, extra={"fields": fields})
            log.warning("plain")
    log.warning("nobody listens")
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["message"] for line in lines] == [
        "step 0 <\u00e9>",
        "plain",
        "step 1 <\u00e9>",
        "plain",
    ]
    assert lines[0]["losses"] == {"a": 0.5, "b": None} and lines[0]["step"] == 3
    assert lines[0]["level"] == "DEBUG" and lines[1].keys() == {"time", "level", "message"}


def test_the_line_of_a_mistake_is_the_last_one(tmp_path):
    path = tmp_path / "log.jsonl"
    with pytest.raises(checks.UserError), json_log.append_to(str(path)):
        raise checks.UserError("Run.seed must be an integer, got 'x'.")
    line = json.loads(path.read_text())
    assert line["level"] == "ERROR" and line["message"] == "Run.seed must be an integer, got 'x'."


def test_a_log_that_cannot_be_written_is_one_line(tmp_path):
    says = "--json_log cannot be written: .*Is a directory"
    with pytest.raises(checks.UserError, match=says), json_log.append_to(str(tmp_path)):
        pass


@pytest.mark.parametrize("text", ["age,income\n39,1\n", '{"age": 39}\n', "\n"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "train.csv"
    path.write_text(text)
    says = "--json_log must be a new file or an older JSON log, got .*train.csv"
    with pytest.raises(checks.UserError, match=says), json_log.append_to(str(path)):
        pass
    assert path.read_text() == text
