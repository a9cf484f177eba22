"""Processes that watch each other: one that is lost, that fails, that is done."""

import json
import subprocess
import sys
import time

import pytest

from mtl.distribution import heartbeat
from tests.launch import conftest

pytestmark = pytest.mark.medium

WATCHING = """
import sys, time
from mtl.distribution import heartbeat
with heartbeat.Heartbeat(sys.argv[1], "worker-0", ["chief-0"], timeout_secs=1):
    print("watching", flush=True)
    time.sleep(60)
"""


def _watch(model_dir, code=WATCHING):
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(model_dir)],
        cwd=conftest.ROOT,
        env=conftest.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "watching\n"
    return process


def test_a_process_that_waits_in_vain_ends(tmp_path):
    process = _watch(tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Error: chief-0 has given no sign of life for 1 s: worker-0 ends." in errors


def test_a_failure_is_told(tmp_path):
    beat = heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=1)
    beat.__enter__()
    process = _watch(tmp_path)
    time.sleep(0.3)
    beat.__exit__(ValueError, ValueError(), None)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Error: chief-0 failed: worker-0 ends." in errors


def test_what_was_said_before_does_not_count(tmp_path):
    with heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=5) as chief:
        chief.publish_phase("training", checkpoint="old")
    with heartbeat.Heartbeat(str(tmp_path), "worker-0", ["chief-0"], timeout_secs=60) as worker:
        time.sleep(0.3)
        assert worker.read_phase("chief-0") != heartbeat.DONE
        with heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=5) as chief:
            chief.publish_phase("training", checkpoint="new")
            assert worker.wait_for("chief-0", "training")["checkpoint"] == "new"
        end = time.monotonic() + 30
        while worker.read_phase("chief-0") != heartbeat.DONE:
            assert time.monotonic() < end
            time.sleep(0.05)


FOLLOWING = """
import sys, time
from mtl.runs import members
from mtl.distribution import heartbeat
members._GRACE_SECS = 0.1
with heartbeat.Heartbeat(sys.argv[1], "worker-0", ["chief-0"], timeout_secs=60) as beat:
    with members.ending_with_chief(beat):
        print("watching", flush=True)
        time.sleep(60)  # As a session does whose servers have ended.
"""


def test_a_worker_that_waits_for_servers_ends_after_the_chief(tmp_path):
    process = _watch(tmp_path, FOLLOWING)
    with heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=5):
        time.sleep(0.3)
        assert process.poll() is None
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, "Error" in errors) == (0, False)
    assert json.loads((tmp_path / "cluster" / "worker-0").read_text())["phase"] == heartbeat.DONE
