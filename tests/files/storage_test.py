import errno
import os
import re
import shutil
import subprocess
import threading

import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl.checkpoints import run_directory
from mtl.files import atomic, storage
from tests import tiny

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


@pytest.mark.parametrize("path", ["s3://b/x", "hdfs://n/x", "file:///tmp/x", "ram://x", "://x"])
def test_a_path_of_a_file_system_that_is_not_there_is_refused(path):
    rule = "--output must be a path of this machine, without a scheme, or start with gs://, got"
    with pytest.raises(checks.UserError, match=rule):
        storage.require_path("--output", path)


def test_a_bucket_without_a_network_is_told_of_at_once(monkeypatch):
    storage._answers.cache_clear()
    monkeypatch.setattr(storage, "reachable", lambda url: False)
    with pytest.raises(
        checks.UserError, match="be reached, got 'gs://b/x'. https://www.googleapis"
    ):
        storage.require_path("--model_dir", "gs://b/x")
    storage._answers.cache_clear()
    monkeypatch.setattr(storage, "reachable", lambda url: True)
    storage.require_path("--model_dir", "gs://b/x")
    storage._answers.cache_clear()


def test_an_error_of_a_file_system_is_one_line():
    says = "^s3://b/x is on a file system that TensorFlow does not know"
    with pytest.raises(checks.UserError, match=says), storage.explain_storage_errors():
        tf.io.gfile.exists("s3://b/x")
    error = "Error executing an HTTP request: libcurl code 6\n\t when reading gs://b/x"
    says = "^gs://b/x cannot be reached: libcurl code 6."
    with pytest.raises(checks.UserError, match=says), storage.explain_storage_errors():
        raise tf.errors.FailedPreconditionError(None, None, error)


def test_a_path_through_a_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("there/deep")
    os.symlink("there/deep", "link")
    for path in ("../x", "there/../x", "there/deep/../../x", "link/../x", "a..b/x", "..", "no/x"):
        storage.require_path("--model_dir", path)
    for path in (
        "no/../x",
        "./no/..",
        "there/no/../x",
        f"{tmp_path}/no/../x",
        "link/../deeper/../x",
    ):
        with pytest.raises(checks.UserError, match="must go through folders that exist, got"):
            storage.require_path("--model_dir", path)


@pytest.mark.parametrize("content", ["text é", b"\0\xff", "", "x" * 100_000])
def test_a_file_is_written_whole(tmp_path, content):
    path = tmp_path / "file"
    path.write_text("before")
    atomic.write(str(path), content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_file_and_folder_are_on_their_disk_before_and_after_the_name(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((re.sub(r"\.[0-9a-f]{16}", "", name), (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write(str(tmp_path / "file"), "text")
    assert synced == [(str(tmp_path / "file.partial"), False), (str(tmp_path), True)]


def test_other_file_systems_see_to_it_themselves(monkeypatch):
    monkeypatch.setattr(os, "fsync", pytest.fail)
    storage.sync(["gs://bucket/file", "ram://file"])


_TOLD = [
    OSError(errno.ENOSPC, "No space left on device", "a/b.json"),
    OSError(errno.EROFS, "Read-only file system", "a/b.json"),
    tf.errors.ResourceExhaustedError(None, None, "a/b.json; No space left on device"),
    tf.errors.OutOfRangeError(None, None, "{{node save}} a/b.json; File too large\n\t [[x]]"),
    IndexError("a/b.json; File too large\n\tFailed to flush 2 events to a/b.json"),
    RuntimeError("a/b.json; Disk quota exceeded"),
]


@pytest.mark.parametrize("error", _TOLD, ids=lambda error: type(error).__name__)
def test_a_disk_that_takes_no_more_is_one_line(error):
    with pytest.raises(checks.UserError) as told, storage.explain_storage_errors():
        raise error
    line = str(told.value)
    assert line.startswith("a/b.json cannot be written: ") and "\n" not in line


def test_an_error_without_a_file_is_one_line():
    line = "^a file cannot be written: File too large. "
    with pytest.raises(checks.UserError, match=line), storage.explain_storage_errors():
        raise OSError(errno.EFBIG, "File too large")


@pytest.mark.parametrize(
    "error", [IndexError("list index"), OSError(errno.ENOENT, "gone"), KeyboardInterrupt()]
)
def test_other_errors_go_through(error):
    with pytest.raises(type(error)) as told, storage.explain_storage_errors():
        raise error
    assert told.value is error


def test_a_mistake_that_tells_of_the_disk_already_goes_through():
    error = checks.UserError("the checkpoint cannot be written: No space left on device.")
    with pytest.raises(checks.UserError) as told, storage.explain_storage_errors():
        raise error
    assert told.value is error


def test_the_thread_that_writes_events_is_silent_only_about_the_disk(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail(error):
        raise error

    with storage.explain_storage_errors():
        for error in (IndexError("a; File too large"), IndexError("another")):
            thread = threading.Thread(target=fail, args=(error,))
            thread.start()
            thread.join()
    assert [str(args.exc_value) for args in told] == ["another"]
    assert threading.excepthook == told.append


@pytest.fixture(name="small")
def _small(tmp_path):
    """A disk of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("No disk may be mounted here.")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_keeps_the_file_of_before(small):
    atomic.write(str(small / "file"), "before")
    line = "cannot be written: No space left on device"
    with pytest.raises(checks.UserError, match=line), storage.explain_storage_errors():
        atomic.write(str(small / "file"), "x" * 100_000)
    assert (small / "file").read_text() == "before"
    assert [path.name for path in small.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_full_disk_at_the_start_of_training_is_one_line_and_leaves_nothing(small):
    with (
        pytest.raises(checks.UserError, match="No space left on device"),
        storage.explain_storage_errors(),
    ):
        verbs.train(tiny.make(), str(small / "run"))
    assert not list(small.iterdir())


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.gin")
    (tmp_path / "link").symlink_to(tmp_path / "config.gin")
    for name in ("config.gin", "link"):
        with pytest.raises(checks.UserError, match=f"{name} must be a file, got 'a pipe'"):
            storage.read(str(tmp_path / name))


@pytest.mark.parametrize("name", ["row_names.json", "best/best.json", "model.ckpt-2.index"])
def test_a_pipe_in_a_run_is_refused_by_whoever_reads_or_trains_it(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "scores.jsonl")  # A user may predict into a pipe.
    run_directory.require_regular(str(tmp_path))
    os.mkfifo(path)
    with pytest.raises(checks.UserError, match=f"{name} must be a file, got 'a pipe'. Delete"):
        run_directory.checkpoint_path(str(tmp_path), "latest")
    with (
        pytest.raises(checks.UserError, match=f"{name} must be a file"),
        run_directory.lock_run(str(tmp_path)),
    ):
        pass
