import os

import pytest

from mtl import checks, storage

ODD = ["run*", "run?", "run[", "run]", "a b", "é", "{1,2}", "run*[", "#~%"]
PATTERNS = ["run[1]", "[r]un", "run\\x", "run\\", "a/b[12]/c", "run[!1]", "run[]"]


@pytest.mark.parametrize("name", ODD)
def test_a_folder_of_any_name_lists_its_own_files_only(tmp_path, name):
    for folder in (name, "run1", "runs", "run"):
        (tmp_path / folder).mkdir()
        for file in ("model.ckpt-2.index", "model.ckpt-20.index", "other"):
            (tmp_path / folder / file).touch()
    directory = str(tmp_path / name)
    found = storage.listed(*os.path.split(f"{directory}/model.ckpt-2."))
    assert found == [f"{directory}/model.ckpt-2.index"]
    assert len(storage.listed(directory)) == 3
    storage.require_plain("--model_dir", directory)


def test_a_folder_that_is_not_there_lists_nothing(tmp_path):
    assert storage.listed(str(tmp_path / "none")) == []
    (tmp_path / "file").touch()
    assert storage.listed(str(tmp_path / "file")) == []


@pytest.mark.parametrize("path", PATTERNS)
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(path):
    with pytest.raises(checks.UserError, match="--model_dir must have no backslash") as error:
        storage.require_plain("--model_dir", path)
    assert repr(path) in str(error.value)


@pytest.mark.parametrize("content", ["text é", b"\0\xff", "", "x" * 100_000])
def test_a_file_is_written_whole(tmp_path, content):
    path = tmp_path / "file"
    path.write_text("before")
    storage.write(str(path), content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_file_and_folder_are_on_their_disk_before_and_after_the_name(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write(str(tmp_path / "file"), "text")
    assert synced == [(str(tmp_path / "file.partial"), False), (str(tmp_path), True)]


def test_other_file_systems_see_to_it_themselves(monkeypatch):
    monkeypatch.setattr(os, "fsync", pytest.fail)
    storage.sync(["gs://bucket/file", "ram://file"])
