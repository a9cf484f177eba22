"""The files that a training reads its rows from."""

import os

import pytest

from mtl import checks
from mtl.checkpoints import training_files
from mtl.files import checksums


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path in made:
        path.write_text(f"rows of {path.name}")
    (tmp_path / "run").mkdir()
    training_files.tell_changes(list(map(str, made)), str(tmp_path / "run"), is_new=True)
    return made


@pytest.fixture
def told(tmp_path, caplog):
    """A function that starts with some files and returns the messages."""

    def go_on(paths):
        caplog.clear()
        training_files.tell_changes(list(map(str, paths)), str(tmp_path / "run"), is_new=False)
        return caplog.messages

    return go_on


def test_files_that_are_as_they_were_are_not_told_of_nor_read_again(paths, told, monkeypatch):
    monkeypatch.setattr(checksums, "of_file", lambda path: pytest.fail(f"{path} is read"))
    assert told(paths) == []


def test_a_file_of_another_size_or_content_is_told_once(paths, told, tmp_path):
    run = tmp_path / "run"
    paths[0].write_text("more rows of a.csv")
    (line,) = told(paths)
    assert line == (
        f"{run} goes on from step 0, with other training rows: {paths[0]} has changed. Means, "
        "vocabularies and class counts stay those of the earlier rows. Choose another folder to "
        "start anew."
    )
    assert told(paths) == []
    paths[1].write_text("rows of c.csv")
    os.utime(paths[1], (1, 1))
    (line,) = told(paths)
    assert f"{paths[1]} has changed" in line and str(paths[0]) not in line


def test_files_that_come_or_go_are_told(paths, told, tmp_path):
    later = tmp_path / "c.csv"
    later.write_text("today")
    (line,) = told([*paths, later])
    assert f"rows: {later} is new. " in line
    (line,) = told(paths[:1])
    assert f"rows: {paths[1]} is gone, {later} is gone. " in line


def test_files_that_were_copied_or_moved_are_the_same(paths, told, tmp_path):
    os.utime(paths[0], (1, 1))
    assert told(paths) == []
    moved = tmp_path / "moved"
    moved.mkdir()
    assert told([path.rename(moved / path.name) for path in paths]) == []


def test_a_run_of_before_without_the_record_gets_it(paths, told, tmp_path):
    (tmp_path / "run" / training_files.FILE).unlink()
    paths[0].write_text("other rows")
    assert told(paths) == []
    paths[0].write_text("again other rows")
    assert len(told(paths)) == 1


def test_a_run_that_starts_anew_compares_with_nothing(paths, tmp_path, caplog):
    paths[0].write_text("other rows")
    training_files.tell_changes([str(paths[0])], str(tmp_path / "run"), is_new=True)
    assert caplog.messages == []
    training_files.tell_changes([], str(tmp_path / "run"), is_new=True)
    assert not (tmp_path / "run" / training_files.FILE).exists()


def test_work_that_repeats_a_run_needs_the_files_of_the_run(paths, tmp_path):
    run, names = str(tmp_path / "run"), list(map(str, paths))
    training_files.require_unchanged(names, run, "")
    training_files.require_unchanged(["of a run without a record.csv"], str(tmp_path), "")
    paths[0].write_text("rows of a.csv, again")
    with pytest.raises(checks.UserError, match="training rows must be .*a.csv has changed"):
        training_files.require_unchanged(names, run, "")
