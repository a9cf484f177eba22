"""The file of all metrics: a line for each evaluation, whatever happens on the way."""

import errno
import fcntl
import json
import math
import os

import pytest

from mtl.files import atomic
from mtl.monitoring import metrics_file


@pytest.fixture
def run(tmp_path):
    folder = str(tmp_path / "run")
    (tmp_path / "run").mkdir()

    def add(step, value, split="test", checkpoint=None, **more):
        metrics = {"global_step": step, "sign/auc": value, "loss": math.inf}
        path = f"{folder}/{checkpoint or f'model.ckpt-{step}'}"
        metrics_file.add_row(folder, path, split, metrics, **more)

    add.path = tmp_path / "run" / metrics_file.NAME
    add.rows = lambda: [json.loads(line) for line in add.path.read_text().splitlines()]
    return add


def told(rows):
    return [(row["step"], row["split"], row["sign/auc"]) for row in rows]


def test_each_evaluation_is_a_line(run):
    run(10, 0.5)
    run(20, 0.75)
    run(20, math.nan, split="rare", checkpoint="best/model.ckpt-20", is_attacked=True)
    rows = run.rows()
    assert told(rows) == [(10, "test", 0.5), (20, "test", 0.75), (20, "rare", None)]
    assert rows[2]["checkpoint"] == "best/model.ckpt-20" and rows[2]["attacked"]
    assert rows[0]["checkpoint"] == "model.ckpt-10" and rows[0]["loss"] is None
    assert list(rows[0]) == [
        "timestamp", "split", "checkpoint", "attacked", "step", "loss", "sign/auc",
    ]  # fmt: skip


def test_an_evaluation_that_is_done_again_takes_its_place(run):
    run(10, 0.5)
    run(20, 0.75)
    before = run.path.read_bytes()
    run(10, 0.5)
    assert run.path.read_bytes() == before
    run(10, 0.625)
    assert told(run.rows()) == [(20, "test", 0.75), (10, "test", 0.625)]


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0c"])
def test_a_name_may_hold_a_sign_that_python_takes_for_a_line_end(run, sign):
    run(10, 0.5, split=f"te{sign}st")
    run(20, 0.75)
    assert told(metrics_file.read_rows(str(run.path))) == [
        (10, f"te{sign}st", 0.5), (20, "test", 0.75),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 30])
def test_what_a_killed_process_left_is_dropped(run, cut):
    run(10, 0.5)
    run(20, 0.75)
    run.path.write_bytes(run.path.read_bytes()[:-cut])
    run(30, 0.875)
    kept = [(20, "test", 0.75)] if cut == 1 else []
    assert told(run.rows()) == [(10, "test", 0.5), *kept, (30, "test", 0.875)]


def test_later_evaluations_are_forgotten(run):
    metrics_file.forget_from(str(run.path.parent), 0)
    assert not run.path.exists()
    for step in (10, 20, 30):
        run(step, 0.5)
    metrics_file.forget_from(str(run.path.parent), 20)
    assert [row["step"] for row in run.rows()] == [10]


def test_a_folder_that_cannot_be_written_is_a_warning(run, caplog):
    run.path.mkdir()
    run(10, 0.5)
    (line,) = caplog.messages
    assert line.startswith("Metrics cannot be added to ")


def test_pandas_reads_it_in_one_call(run):
    pandas = pytest.importorskip("pandas")
    run(10, 0.5)
    run(20, math.nan)
    frame = pandas.read_json(run.path, lines=True)
    assert frame["step"].tolist() == [10, 20]
    assert frame["sign/auc"].iloc[0] == 0.5 and frame["sign/auc"].isna().tolist() == [False, True]


def _is_taken(folder):
    """Return True if somebody holds the lock of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_line_of_an_evaluation_beside_is_not_lost(run, monkeypatch):
    """From before the file is read until it is written, others wait."""
    run(10, 0.5)
    folder, seen = run.path.parent, []

    def noting(name, call):
        def noted(*given):
            seen.append((name, _is_taken(folder)))
            return call(*given)

        return noted

    monkeypatch.setattr(metrics_file, "_read", noting("read", metrics_file._read))
    monkeypatch.setattr(atomic, "write", noting("write", atomic.write))
    run(10, 0.625)
    metrics_file.forget_from(str(folder), 5)
    assert seen == [("read", True), ("write", True)] * 2
    assert not _is_taken(folder)


def test_lines_are_added_on_a_file_system_without_locks(run, monkeypatch):
    def refuse(*given):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    run(10, 0.5)
    run(20, 0.75)
    assert told(run.rows()) == [(10, "test", 0.5), (20, "test", 0.75)]
