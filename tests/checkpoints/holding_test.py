"""Checkpoints that a verb reads stay while a training beside drops older ones."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mtl import checkpoints, checks
from mtl.checkpoints import run_directory
from mtl.files import in_work
from mtl.transfer import checkpoint as checkpoint_lib


def save(folder, step, keep=2):
    """Save a checkpoint as a training does, and return its path."""
    path = os.path.join(folder, f"model.ckpt-{step}")
    before = pathlib.Path(folder, "checkpoint")
    listed = before.read_text() if before.exists() else None
    checkpoint_lib.write_checkpoint({"global_step": np.int64(step)}, path)
    if listed is not None:
        before.write_text(listed)
    run_directory.add_checkpoint(path, keep)
    return path


def steps(folder):
    listed = [run_directory.step_in_name(path) for path in run_directory.list_checkpoints(folder)]
    lying = [path.stem for path in pathlib.Path(folder).glob("*.index")]
    assert sorted(f"model.ckpt-{step}" for step in listed) == sorted(lying)
    return listed


def test_what_is_held_is_dropped_only_afterwards(tmp_path):
    folder = str(tmp_path)
    for step in (1, 2):
        save(folder, step)
    with run_directory.hold_checkpoint(folder, "latest") as path:
        for step in (3, 4, 5):
            save(folder, step)
        assert path.endswith("-2") and run_directory.step_saved(path) == 2
        assert steps(folder) == [2, 4, 5]
    save(folder, 6)
    assert steps(folder) == [5, 6]


def test_two_hold_one_and_another_process_drops_it(tmp_path):
    folder = str(tmp_path)
    first = save(folder, 1)
    code = (
        "import sys\nfrom mtl.checkpoints import run_directory as r\n"
        "print(r.remove_checkpoint(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", code, first]

    def drop():
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    with run_directory.hold_checkpoint(folder, first):
        with run_directory.hold_checkpoint(folder, first):
            assert drop() == "False\n"
        assert drop() == "False\n" and os.path.exists(f"{first}.index")
    assert drop() == "True\n" and not list(tmp_path.glob("model.ckpt-1.*"))


def test_the_best_is_held_as_well(tmp_path):
    best = checkpoints.Best(metric="a", higher_is_better=True)
    keeper = checkpoints.BestKeeper(best, str(tmp_path))
    for step in (1, 2, 3):
        save(str(tmp_path), step, keep=9)
    keeper.update(str(tmp_path / "model.ckpt-1"), {"global_step": 1, "a": 0.1})
    with run_directory.hold_checkpoint(str(tmp_path), "best") as path:
        keeper.update(str(tmp_path / "model.ckpt-2"), {"global_step": 2, "a": 0.2})
        assert run_directory.step_saved(path) == 1
    keeper.update(str(tmp_path / "model.ckpt-3"), {"global_step": 3, "a": 0.3})
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["model.ckpt-3.index"]


@pytest.mark.parametrize("times", [1, 3])
def test_one_that_is_dropped_before_it_is_held_gives_way_to_the_next(times, tmp_path, monkeypatch):
    folder, left, hold = str(tmp_path), [*range(times)], in_work.hold

    def drop_first(path):
        if left:
            save(folder, 10 + left.pop(), keep=1)
        return hold(path)

    save(folder, 1, keep=1)
    monkeypatch.setattr(in_work, "hold", drop_first)
    with run_directory.hold_checkpoint(folder, "latest") as path:
        assert path.endswith("-10")


def test_without_locks_an_error_tells_that_it_was_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(in_work, "hold", lambda path: None)
    folder = str(tmp_path)
    save(folder, 1)
    with (
        pytest.raises(
            checks.UserError, match="ckpt-1 was removed while it was read.*was trained further"
        ),
        run_directory.hold_checkpoint(folder, "latest") as path,
    ):
        save(folder, 2, keep=1)
        run_directory.step_saved(path)
    with (
        pytest.raises(ZeroDivisionError),
        run_directory.hold_checkpoint(folder, "latest"),
    ):
        raise ZeroDivisionError


def test_what_is_not_there_is_still_told(tmp_path):
    save(str(tmp_path), 1)
    with (
        pytest.raises(checks.UserError, match="--checkpoint must be 'latest', 'best' or a path"),
        run_directory.hold_checkpoint(str(tmp_path), str(tmp_path / "model.ckpt-7")),
    ):
        pass
