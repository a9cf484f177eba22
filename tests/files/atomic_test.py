"""Files that are replaced whole, and pipes, devices and links, which keep their places."""

import errno
import os
import pathlib
import re
import stat
import subprocess
import sys
import threading

import pytest

from mtl.files import atomic, in_work


def read_in_thread(path):
    """Read a pipe in a thread; return the thread to join, and the list that gets the content."""
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


def test_nobody_can_foresee_where_a_file_is_written(tmp_path):
    path, mine = tmp_path / "a", tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "a.partial").symlink_to(mine)  # As earlier versions would have written it.
    names = set()
    for _ in range(2):
        with atomic.replacing(str(path)) as partial:
            names.add(partial)
            assert os.listdir(tmp_path).count(os.path.basename(partial)) == 1
            assert not os.path.islink(partial)
            pathlib.Path(partial).write_text("new")
    assert len(names) == 2 and mine.read_text() == "mine" and path.read_text() == "new"
    assert all(re.fullmatch(r".*/a\.[0-9a-f]{16}\.partial", name) for name in names)


def test_a_name_that_is_taken_is_not_written_through(tmp_path, monkeypatch):
    mine, tokens = tmp_path / "mine", iter(["0" * 16])
    mine.write_text("mine")
    (tmp_path / f"a.{'0' * 16}.partial").symlink_to(mine)
    monkeypatch.setattr(in_work, "make_token", lambda: next(tokens))
    with pytest.raises(FileExistsError):
        atomic.write(str(tmp_path / "a"), "new")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("place", ["link", "folder"])
def test_a_link_of_another_user_in_a_folder_of_everybody_is_not_followed(
    place, tmp_path, monkeypatch
):
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    mine.mkdir()
    os.chmod(shared, 0o1777)
    link = shared / "link"
    link.symlink_to(mine / "a" if place == "link" else mine)
    path = link if place == "link" else link / "a"
    atomic.write(str(path), "own link")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    lstat = os.lstat

    def of_another(path):
        """The link belongs to neither the user nor the owner of the folder."""
        fields = list(lstat(path))
        fields[stat.ST_UID] += 2
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", of_another)
    with pytest.raises(PermissionError, match="link of another user"):
        atomic.write(str(path), "new")
    assert (mine / "a").read_text() == "own link"
    os.chmod(shared, 0o777)
    atomic.write(str(path), "new")
    assert (mine / "a").read_text() == "new"


def leave_partial(path, is_killed):
    """Begin to write a file in a new process, and maybe kill it; return it and the partial file."""
    code = (
        "import sys, time\nfrom mtl.files import atomic\n"
        "with atomic.replacing(sys.argv[1]) as partial:\n"
        "    print(partial, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    partial = pathlib.Path(process.stdout.readline().strip())
    if is_killed:
        process.kill()
        process.wait()
    return process, partial


def test_what_a_killed_process_left_is_removed_and_what_is_in_work_is_not(tmp_path):
    working, in_work_still = leave_partial(tmp_path / "a", is_killed=False)
    _, left = leave_partial(tmp_path / "a", is_killed=True)
    user = tmp_path / "notes.partial"
    user.write_text("mine")
    for path in (left, in_work_still):
        assert path.exists()
        os.utime(path, (0, 0))  # Whatever the clock says.
    try:
        assert in_work.is_abandoned(str(left)) and not in_work.is_abandoned(str(in_work_still))
        atomic.write(str(tmp_path / "b"), "new")
        assert not left.exists() and in_work_still.exists() and user.exists()
    finally:
        working.kill()
        working.wait()


def test_an_error_names_the_file_and_not_where_it_was_written(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError) as raised:
        atomic.write(str(path), "after")
    assert raised.value.filename == str(path)
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a"]
