"""Files that are replaced whole, and pipes, devices and links, which keep their places."""

import os
import pathlib
import stat
import threading

import pytest

from mtl.files import atomic


def read_in_thread(path):
    """What comes out of a pipe; the thread to join before it is looked at."""
    found = []

    def read():
        with open(path, "rb") as file:
            found.append(file.read())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, found


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    atomic.write(str(path), "one")
    with atomic.replacing(str(path)) as partial:
        with open(partial, "w") as file:
            file.write("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(KeyError), atomic.replacing(str(path)) as partial:
        with open(partial, "w") as file:
            file.write("three")
        raise KeyError
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["a.txt"]


def test_a_pipe_is_written_through(tmp_path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    thread, found = read_in_thread(path)
    atomic.write(path, b"text")
    thread.join(20)
    assert found == [b"text"]
    assert stat.S_ISFIFO(os.stat(path).st_mode) and os.listdir(tmp_path) == ["pipe"]


def test_a_device_is_written_through(tmp_path):
    path = str(tmp_path / "null")
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        pytest.skip("only root makes devices, and not everywhere")
    atomic.write(path, b"text")
    assert stat.S_ISCHR(os.stat(path).st_mode) and os.listdir(tmp_path) == ["null"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one(there, tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "a", tmp_path / "link"
    if there:
        target.write_text("before")
    link.symlink_to(target)
    atomic.write(str(link), "after")
    assert link.is_symlink() and target.read_text() == "after"
    assert os.listdir(tmp_path / "far") == ["a"]


def test_one_file_by_many_names(tmp_path):
    path = tmp_path / "a"
    path.write_text("")
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    same = [path, tmp_path / "hard", tmp_path / "soft", tmp_path / "folder" / "a"]
    names = [*map(str, same), f"{tmp_path}/./a", f"{tmp_path}/folder/../{tmp_path.name}/a"]
    assert len(set(map(atomic.identity, names))) == 1
    (tmp_path / "b").write_text("")
    others = [str(tmp_path / "b"), str(tmp_path / "none"), "gs://bucket/a"]
    assert len({atomic.identity(name) for name in [names[0], *others]}) == 4
    assert atomic.identity(f"{tmp_path}/none") == atomic.identity(f"{tmp_path}/folder/none")


def test_what_is_special(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    special = {n for n in [*os.listdir(tmp_path), "none"] if atomic.is_special(f"{tmp_path}/{n}")}
    assert special == {"pipe", "link"}
    assert not atomic.is_special(str(tmp_path)) and not atomic.is_special("gs://bucket/a")


def test_folders_are_made_and_stay_only_with_a_file(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    with pytest.raises(ZeroDivisionError), atomic.replacing(str(path)) as partial:
        pathlib.Path(partial).write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    atomic.write(str(path), "whole")
    assert path.read_text() == "whole"
    with pytest.raises(ZeroDivisionError), atomic.replacing(str(path.parent / "d" / "e")):
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == [path]
