"""Processes that watch each other: one that is lost, that fails, that is done."""

import json
import time

import pytest

from mtl.distribution import heartbeat
from tests import forks

pytestmark = pytest.mark.medium

WATCHING = """
import time
from mtl.distribution import heartbeat
with heartbeat.Heartbeat({!r}, "worker-0", ["chief-0"], timeout_secs=1):
    print("watching", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def server():
    with forks.Server("mtl.runs.members", CUDA_VISIBLE_DEVICES="") as started:
        yield started


@pytest.fixture
def watch(server, tmp_path):
    """watch(code): a process that watches."""

    def watch(code=WATCHING):
        process = server.start(code.format(str(tmp_path)))
        process.wait_for("watching")
        return process

    return watch


def test_a_process_that_waits_in_vain_ends(watch):
    code, _, errors = watch().wait(timeout_secs=60)
    assert code == 143
    assert "Error: chief-0 has given no sign of life for 1 s: worker-0 ends." in errors


def test_a_failure_is_told(watch, tmp_path):
    beat = heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=1)
    beat.__enter__()
    process = watch()
    time.sleep(0.3)
    beat.__exit__(ValueError, ValueError(), None)
    code, _, errors = process.wait(timeout_secs=60)
    assert code == 143 and "Error: chief-0 failed: worker-0 ends." in errors


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
import time
from mtl.runs import members
from mtl.distribution import heartbeat
members._GRACE_SECS = 0.1
with heartbeat.Heartbeat({!r}, "worker-0", ["chief-0"], timeout_secs=60) as beat:
    with members.ending_with_chief(beat):
        print("watching", flush=True)
        time.sleep(60)  # As a session does whose servers have ended.
"""


def test_a_worker_that_waits_for_servers_ends_after_the_chief(watch, tmp_path):
    process = watch(FOLLOWING)
    with heartbeat.Heartbeat(str(tmp_path), "chief-0", [], timeout_secs=5):
        time.sleep(0.3)
        assert process.poll() is None
    code, _, errors = process.wait(timeout_secs=30)
    assert (code, "Error" in errors) == (0, False)
    assert json.loads((tmp_path / "cluster" / "worker-0").read_text())["phase"] == heartbeat.DONE


def test_a_process_beside_that_is_gone_is_told_once_and_ends_nothing(tmp_path, caplog):
    beat = heartbeat.Heartbeat(str(tmp_path), "chief-0", [], 10, beside=["evaluator-0"])
    evaluator = heartbeat.Heartbeat(str(tmp_path), "evaluator-0", [], 10)
    evaluator.__enter__()

    def look(passed):
        caplog.clear()
        beat._look_at("evaluator-0", passed)
        return [record.getMessage() for record in caplog.records]

    evaluator.publish_phase("evaluating")
    assert look(1) == []
    evaluator._ended.set()
    evaluator._thread.join()
    look(0)
    assert look(9) == []
    lost = "Warning: evaluator-0 has given no sign of life for 11 s: chief-0 goes on without it. "
    assert look(2) == [f"{lost}Start it again."] and look(2) == []
    evaluator.publish_phase("evaluating once more")
    assert look(1) == []
    evaluator.__exit__(SystemExit, SystemExit(), None)
    assert "evaluator-0 was stopped: chief-0 goes on" in look(1)[0]
    # The others do not stop with it.
    assert beat.find_stopped() is None
    evaluator.publish_phase(heartbeat.DONE)
    assert look(20) == look(20) == []
