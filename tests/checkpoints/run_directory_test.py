import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl.checkpoints import lock, run_directory
from mtl.files import storage
from tests import tiny

OWN = ("config.gin", "row_names.json", "events.out.tfevents.1.host", "model.ckpt-0.index")
OWN += ("best/best.json", "export/latest/7/saved_model.pb", "statistics/statistics.json")
USERS = ("notes.txt", "eval_test/events.out.tfevents.1.host", "export/manual/1/saved_model.pb")
USERS += ("predictions/a.csv", "model.ckpt", "cluster/chief-0")


def _write(directory, names):
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("")


def _files(directory):
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("error", [KeyboardInterrupt, checks.UserError, SystemExit])
def test_a_start_that_fails_takes_back_its_own_files_only(tmp_path, error):
    before = ("mine.txt", "warnings.json", "export/latest/6/saved_model.pb")
    _write(tmp_path, before)
    with pytest.raises(error), run_directory.claim_run(str(tmp_path)):
        _write(tmp_path, OWN + USERS)
        raise error
    # A version that is exported into a folder of before stays: it was whole when it appeared.
    assert _files(tmp_path) == {*before, *USERS, "export/latest/7/saved_model.pb"}


@pytest.mark.parametrize(("written", "left"), [(OWN, ()), (OWN + USERS, USERS)])
def test_a_folder_made_for_a_start_that_fails_is_removed_if_empty(tmp_path, written, left):
    run = tmp_path / "new" / "run"
    locked, claimed = run_directory.lock_run(str(run)), run_directory.claim_run(str(run))
    with pytest.raises(checks.UserError), locked, claimed:
        _write(run, written)
        raise checks.UserError("a mistake")
    assert run.exists() == bool(left)
    assert _files(run) == set(left)


@pytest.mark.parametrize(("was_there", "is_filled"), [(0, 0), (0, 1), (1, 0)])
def test_an_empty_folder_is_dropped_if_it_was_made_for_what_failed(tmp_path, was_there, is_filled):
    folder = tmp_path / "served"
    if was_there:
        folder.mkdir()
    with pytest.raises(checks.UserError), run_directory.dropping_empty(str(folder)):
        run_directory.require_writable("--export_dir", str(folder))
        if is_filled:
            (folder / "1").mkdir()
        raise checks.UserError("a mistake")
    assert folder.exists() == bool(was_there or is_filled)


def test_a_start_that_has_something_to_keep_keeps_all(tmp_path):
    with pytest.raises(KeyboardInterrupt), run_directory.claim_run(str(tmp_path)) as keep:
        _write(tmp_path, OWN)
        keep()
        raise KeyboardInterrupt
    assert _files(tmp_path) == set(OWN)


@pytest.mark.medium
def test_a_second_training_is_refused_and_touches_nothing(tmp_path):
    run = tmp_path / "run"
    with run_directory.lock_run(str(run)):
        _write(run, OWN)
        before = _files(run)
        with pytest.raises(checks.UserError, match="have one training at a time"):
            verbs.train(tiny.make(), str(run))
        assert _files(run) == before


@pytest.mark.slow
def test_all_that_a_training_leaves_is_known_as_its_own_and_other_verbs_go_on_beside_it(tmp_path):
    run, made = tmp_path / "run", tiny.make(train_steps=2, checkpoint_steps=2)
    verbs.train(made, str(run))
    known = {path.rpartition("run/")[2] for path in run_directory._list_written(str(run))}
    folders = {"export/latest", "export/best"}
    assert known == {path.name for path in run.iterdir()} - {"export"} | folders
    with run_directory.lock_run(str(run)):
        assert (run / lock.FILE).exists()
        assert verbs.evaluate(made, str(run))["global_step"] == 2
        assert next(verbs.predict(made, str(run)))
        assert verbs.export(made, str(run), str(tmp_path / "export"))


@pytest.mark.parametrize("started", [False, True])
def test_a_refused_change_of_a_run_leaves_its_notes_as_they_were(tmp_path, monkeypatch, started):
    monkeypatch.setattr(run_directory, "find_latest", lambda directory: "model.ckpt-20")
    (tmp_path / "warnings.json").write_text("{}")
    with pytest.raises(ValueError), run_directory.claim_run(str(tmp_path)) as keep:
        for name in ("warnings.json", "given_files.json"):
            (tmp_path / name).write_text("of other settings")
        if started:
            keep()
        raise ValueError
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    others = dict.fromkeys(("warnings.json", "given_files.json"), "of other settings")
    assert found == (others if started else {"warnings.json": "{}"})


def test_the_first_and_the_last_three_of_many_checkpoints_are_listed(tmp_path, monkeypatch):
    for count, shown in ((6, "0, 1, 2, 3, 4, 5"), (7, "0, 1, 2, ..., 4, 5, 6")):
        names = [str(number) for number in range(count)]
        monkeypatch.setattr(run_directory, "list_checkpoints", lambda _, names=names: names)
        with pytest.raises(checks.UserError, match=f"There are: {shown}[.]"):
            run_directory.checkpoint_path(str(tmp_path), "no")


def test_a_removal_that_is_killed_removes_the_index_first(tmp_path, monkeypatch):
    for name in ("data-00000-of-00001", "index", "meta"):
        (tmp_path / f"model.ckpt-1.{name}").touch()
    removed = []

    def remove(path):
        removed.append(path)
        raise OSError

    monkeypatch.setattr(tf.io.gfile, "remove", remove)
    monkeypatch.setattr(storage, "is_local", lambda path: False)  # Such as a folder of gs://.
    with pytest.raises(OSError):
        run_directory.remove_checkpoint(str(tmp_path / "model.ckpt-1"))
    assert removed == [str(tmp_path / "model.ckpt-1.index")]
