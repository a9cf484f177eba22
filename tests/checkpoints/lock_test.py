import fcntl
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from mtl import checks
from mtl.checkpoints import lock
from mtl.runs import members

HOLDS = """
import fcntl, json, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(sys.argv[2])
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="hold")
def _hold(tmp_path):
    """Starts another process that holds the lock of tmp_path."""
    started = []

    def hold(told):
        path = str(tmp_path / lock.FILE)
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", HOLDS, path, told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        assert started[-1].stdout.readline() == b"held\n"
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.medium
def test_one_at_a_time_and_nothing_is_left(tmp_path):
    with lock.hold_lock(str(tmp_path)):
        told = json.loads((tmp_path / lock.FILE).read_text())
        assert told["pid"] == os.getpid() and told["host"] and told["since"]
        with pytest.raises(checks.UserError, match=f"Process {os.getpid()} on .* since 2"):
            lock.require_free(str(tmp_path))
        with pytest.raises(checks.UserError, match="since 2"), lock.hold_lock(str(tmp_path)):
            pytest.fail("It is taken.")
    assert not list(tmp_path.iterdir())
    with lock.hold_lock(str(tmp_path)):
        pass


def test_one_evaluator_at_a_time_beside_a_training(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_SECS", 0)
    folder = str(tmp_path)
    line = f"have one evaluator at a time, got .* Process {os.getpid()} on .* evaluates there since"
    with lock.hold_lock(folder), members.lock_evaluator(folder):
        other = members.lock_evaluator(folder)
        with pytest.raises(checks.UserError, match=line):
            other.__enter__()
    assert not list(tmp_path.iterdir())


@pytest.mark.medium
def test_the_lock_ends_with_its_process(tmp_path, hold):
    process = hold(json.dumps({"pid": 7, "host": "a", "since": "monday"}))
    line = "one training at a time, got .* Process 7 on a trains there since monday: wait for it"
    with pytest.raises(checks.UserError, match=line), lock.hold_lock(str(tmp_path)):
        pytest.fail("It is taken.")
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock.require_free(str(tmp_path))
    with lock.hold_lock(str(tmp_path)):
        assert json.loads((tmp_path / lock.FILE).read_text())["pid"] == os.getpid()


@pytest.mark.medium
@pytest.mark.parametrize("told", ["", "{", "[]", "{}", "7", '"x"', "{pid}"])
def test_a_holder_that_has_not_said_who_it_is(tmp_path, hold, told):
    hold(told)
    with pytest.raises(checks.UserError, match="Another process trains there"):
        lock.require_free(str(tmp_path))


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / lock.FILE).mkdir()  # As one of another user would be, but for root.
    line = "^--model_dir must let this process open train.lock, got .* directory: if nobody"
    with pytest.raises(checks.UserError, match=line), lock.hold_lock(str(tmp_path)):
        pytest.fail("It is not held.")


def test_a_look_writes_nothing_and_is_in_nobodys_way(tmp_path, monkeypatch):
    path = tmp_path / lock.FILE
    with monkeypatch.context() as patched:
        patched.setattr(lock.os.path, "exists", lambda path: True)  # It vanishes just then.
        lock.require_free(str(tmp_path))
    assert not path.exists()
    path.write_text("")
    looking = path.open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    lock.require_free(str(tmp_path))
    done = threading.Timer(0.1, looking.close)
    done.start()
    with lock.hold_lock(str(tmp_path)):
        done.join()


def test_others_who_share_the_folder_can_take_it_next(tmp_path):
    before = os.umask(0o002)
    try:
        with lock.hold_lock(str(tmp_path)):
            assert (tmp_path / lock.FILE).stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_where_there_are_no_locks_a_line_says_so(caplog):
    with caplog.at_level("INFO", "mtl"), lock.hold_lock("gs://bucket/run"):
        lock.require_free("gs://bucket/run")
    assert "gs://bucket/run cannot be locked: make sure" in caplog.text


def test_a_file_system_without_locks(tmp_path, caplog, monkeypatch):
    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with caplog.at_level("INFO", "mtl"), lock.hold_lock(str(tmp_path)):
        pass
    assert "cannot be locked" in caplog.text


def test_an_error_within_gives_it_back(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock.hold_lock(str(tmp_path)):
        raise KeyboardInterrupt
    lock.require_free(str(tmp_path))
