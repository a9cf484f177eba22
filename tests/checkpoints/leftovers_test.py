import contextlib
import itertools
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl.checkpoints import leftovers, run_directory
from mtl.transfer import checkpoint

ENDINGS = ("index", "meta", "data-00000-of-00001")


@pytest.fixture(name="run")
def _run(tmp_path):
    for step in (20, 30, 40):
        path = str(tmp_path / f"model.ckpt-{step}")
        write(path)
        run_directory.add_checkpoint(path, keep=2)
    return tmp_path


def write(path):
    """A checkpoint of the step in its name that no list names yet."""
    folder, name = os.path.split(path)
    step = np.int64(run_directory.step_in_name(path))
    checkpoint.write_checkpoint({"global_step": step}, os.path.join(folder, "scratch", name))
    for file in os.listdir(os.path.join(folder, "scratch")):
        if file != "checkpoint":
            os.rename(os.path.join(folder, "scratch", file), os.path.join(folder, file))
    shutil.rmtree(os.path.join(folder, "scratch"))


def _names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "checkpoint")


def _write(folder, prefix, endings=ENDINGS):
    folder.mkdir(exist_ok=True)
    for ending in endings:
        (folder / f"{prefix}.{ending}").write_text("")


KEPT = [f"model.ckpt-{step}.{end}" for step in (30, 40) for end in ("data-00000-of-00001", "index")]


def test_no_more_than_asked_for_are_kept(run):
    assert _names(run) == KEPT
    assert run_directory.list_checkpoints(str(run)) == [
        str(run / f"model.ckpt-{n}") for n in (30, 40)
    ]


def test_one_that_is_to_be_evaluated_still_is_kept(run):
    path = str(run / "model.ckpt-50")
    write(path)
    run_directory.add_checkpoint(path, keep=1, evaluated=30)
    assert run_directory.list_checkpoints(str(run)) == [
        str(run / f"model.ckpt-{n}") for n in (40, 50)
    ]


@pytest.mark.parametrize("removed", range(3))
@pytest.mark.parametrize("goes_on", ["a start", "a checkpoint"])
def test_a_kill_while_one_is_removed_leaves_nothing(run, monkeypatch, removed, goes_on):
    path, calls = str(run / "model.ckpt-50"), itertools.count()
    write(path)
    remove = tf.io.gfile.remove

    def killed(file):
        if next(calls) == removed:
            raise KeyboardInterrupt
        remove(file)

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "remove", killed)
        with contextlib.suppress(KeyboardInterrupt):
            run_directory.add_checkpoint(path, keep=2)
    assert run_directory.find_latest(str(run)) == path
    if goes_on == "a start":
        run_directory.repair_run(str(run))
    later = str(run / "model.ckpt-60")
    write(later)
    run_directory.add_checkpoint(later, keep=2)
    assert _names(run) == [name.replace("40", "60").replace("30", "50") for name in sorted(KEPT)]
    assert run_directory.list_checkpoints(str(run)) == [path, later]


def test_a_copy_that_somebody_keeps_stays(run):
    _write(run, "model.ckpt-15")
    before = sorted(run.iterdir())
    run_directory.repair_run(str(run))
    assert sorted(run.iterdir()) == before


def test_a_run_that_starts_anew_has_the_earlier_one_out_of_its_way(run, caplog):
    for _ in range(2):
        (run / "checkpoint").unlink()
        run_directory.repair_run(str(run))
        assert "up to model.ckpt-40, are now in" in caplog.text
        write(str(run / "model.ckpt-40"))
        run_directory.add_checkpoint(str(run / "model.ckpt-40"), keep=2)
    assert _names(run / "earlier-1") == KEPT and _names(run / "earlier-2") == KEPT[2:]
    (run / "checkpoint").write_text("")
    assert run_directory.list_checkpoints(str(run)) == [str(run / "model.ckpt-40")]


@pytest.mark.parametrize("endings", [ENDINGS[:1], ENDINGS[1:], ["index", "data-00000-of-00002"]])
def test_a_later_one_goes_where_it_is_not_whole(run, endings):
    _write(run, "model.ckpt-50", endings)
    run_directory.repair_run(str(run))
    assert _names(run) == KEPT


def test_what_is_not_of_the_run_stays(run):
    _write(run, "model.ckpt-50")  # Whole, and later: the list was to name it.
    own = ["model.ckpt-20-copy", "my.ckpt-5", "model.ckpt", "model.ckpt-x", "xmodel.ckpt-5"]
    for name in own:
        _write(run, name)
    (run / "model.ckpt-5.txt").write_text("")
    for folder in ("best", "mine"):
        _write(run / folder, "model.ckpt-5")
    before = sorted(run.rglob("*"))
    run_directory.repair_run(str(run))
    assert sorted(run.rglob("*")) == before


def test_inputs_of_no_checkpoint_go_whoever_saved_them(run):
    folder = run / "input"
    for name in ("0of1-ab-20", "1of2-cd-9", "0of1-ab-30", "1of2-cd-40", "0of1-ab-50", "mine-20"):
        _write(folder, name, ENDINGS[::2])
    _write(folder, "0of1-ab-60", ENDINGS[:1])
    run_directory.repair_run(str(run))
    kept = {name.partition(".")[0] for name in _names(folder)}
    assert kept == {"0of1-ab-30", "1of2-cd-40", "0of1-ab-50", "mine-20"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        'model_checkpoint_path: "model.ckpt-40"\n',  # Cut off, or written by hand.
        'model_checkpoint_path: "model.ckpt-40"\nall_model_checkpoint_paths: "model.c',
    ],
)
def test_a_list_that_does_not_name_all_takes_nothing_away(run, text):
    (run / "checkpoint").write_text(text)
    run_directory.repair_run(str(run))
    assert _names(run) == KEPT


def test_a_damaged_checkpoint_that_is_listed_stays_to_be_looked_at(run, caplog):
    (run / "model.ckpt-40.data-00000-of-00001").write_bytes(b"")
    run_directory.repair_run(str(run))
    assert _names(run) == KEPT and "Going back to" in caplog.text
    assert run_directory.find_latest(str(run)).endswith("-30")


def test_files_that_were_being_written(tmp_path):
    half = ["a.partial", "checkpoint.tempstate12", "statistics." + "0" * 32 + ".tmp"]
    half += ["model.ckpt-5_temp", "best/best.json.partial", "input/0of1-a-5_temp"]
    half += ["export/latest/.partial-12", "export/latest.partial"]
    for name in [*half, "mine/b.partial", "export/latest/12", "statistics.tmp", "c.txt"]:
        (tmp_path / name).mkdir(parents=True)
    found = leftovers.half_written(str(tmp_path))
    assert sorted(found) == sorted(str(tmp_path / name) for name in half)
