"""A run that is killed, stopped or damaged goes on as if nothing had been, to the bit."""

import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from mtl.distribution import interruption
from tests import resume_member, tiny
from tests.launch import conftest as processes

pytestmark = pytest.mark.slow
ALL_STEPS = list(range(2, resume_member.STEPS + 1, 2))


class Member:
    """Trains in processes that can be killed."""

    def __init__(self, errors):
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.resume_member"],
            cwd=processes.ROOT,
            env=processes.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.open("w"),
            text=True,
        )

    def start(self, model_dir, *limit) -> int:
        """Begins to train; the process id."""
        print(model_dir, *limit, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        return int(self._process.stdout.readline())

    def train(self, model_dir, *limit) -> int:
        self.start(model_dir, *limit)
        return self.wait()

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    made = Member(tmp_path_factory.mktemp("member") / "errors")
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(member, tmp_path_factory):
    """A run that nothing interrupted."""
    model_dir = tmp_path_factory.mktemp("whole") / "run"
    assert member.train(model_dir) == 0, member.said
    return model_dir


def _kill_when(pid, model_dir, pattern) -> None:
    """Kills the process as soon as a file of this name appears."""
    before = set(model_dir.glob(pattern))
    end = time.monotonic() + 60
    while not set(model_dir.glob(pattern)) - before and time.monotonic() < end:
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)


def _assert_same(model_dir, whole):
    weights, expected = tiny.variables(model_dir), tiny.variables(whole)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    best = [(path / "best" / "best.json").read_text() for path in (model_dir, whole)]
    assert best[0] == best[1]
    for folder in (".", "eval"):
        assert _curves(model_dir / folder) == _curves(whole / folder)


def _curves(folder):
    """{tag: [(step, value)]}, as TensorBoard shows them."""
    events = event_accumulator.EventAccumulator(str(folder), {"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag not in tiny.SPEEDS]
    assert tags
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


@pytest.mark.thorough
def test_summaries_have_no_holes(whole):
    assert [step for step, _ in _curves(whole)["loss"]] == ALL_STEPS
    assert [step for step, _ in _curves(whole / "eval")["average_loss"]] == [10, 20]


def test_a_run_that_is_killed_goes_on_to_the_bit(member, whole, tmp_path):
    """At random moments, while a checkpoint is written, and while one is exported."""
    model_dir, draw = tmp_path / "run", random.Random(7)
    for pattern in ("model.ckpt-10_temp*", "export/latest/.partial-*"):
        _kill_when(member.start(model_dir), model_dir, pattern)
        assert member.wait() == -signal.SIGKILL
        assert list(model_dir.glob(pattern)), "it was killed too late"
    for number in range(4):
        pid = member.start(model_dir)
        time.sleep(draw.uniform(0.2, 3))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if member.wait() == 0:  # It was done before.
            _assert_same(model_dir, whole)
            model_dir = tmp_path / f"run_{number}"
    assert member.train(model_dir) == 0, member.said
    _assert_same(model_dir, whole)
    assert not list(model_dir.rglob("*temp*"))


def test_a_resampled_run_that_is_stopped_goes_on_to_the_bit(member, tmp_path):
    """SIGTERM: saved after the step in progress, and a code that says `start again`."""
    expected, model_dir = tmp_path / "sampled_whole", tmp_path / "sampled"
    assert member.train(expected) == 0, member.said
    pid = member.start(model_dir)
    end = time.monotonic() + 60
    while not list(model_dir.glob("model.ckpt-10.index")) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    assert member.wait() == 128 + signal.SIGTERM, member.said
    assert "Stopped by SIGTERM" in member.said
    assert max(tiny.checkpoint_steps(model_dir)) < resume_member.STEPS
    assert member.train(model_dir) == 0
    _assert_same(model_dir, expected)


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001", "checkpoint"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_used(member, whole, tmp_path, part):
    model_dir = pathlib.Path(shutil.copytree(whole, tmp_path / "run"))
    path = model_dir / ("checkpoint" if part == "checkpoint" else f"model.ckpt-20.{part}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content[: len(content) // 2 + 1] if part == "checkpoint" else content)
    assert member.train(model_dir) == 0, member.said
    if part != "checkpoint":
        assert f"Checkpoint {model_dir}/model.ckpt-20 is damaged: " in member.said
        assert f"Going back to {model_dir}/model.ckpt-10." in member.said
    _assert_same(model_dir, whole)


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(member, tmp_path):
    model_dir = tmp_path / "run"
    assert member.train(model_dir, resource.RLIM_INFINITY, 10) == 0, member.said
    assert member.train(model_dir, 2_000_000, 20) == 2
    message = f"the checkpoint of step 20 cannot be written to {model_dir}: "
    assert message in member.said
    assert f"The last checkpoint is {model_dir}/model.ckpt-10." in member.said
    assert tf.train.latest_checkpoint(str(model_dir)).endswith("model.ckpt-10")
    assert member.train(model_dir, resource.RLIM_INFINITY, 20) == 0


def test_a_second_signal_ends_the_process_at_once():
    stop, before = interruption.Interruption(), signal.getsignal(signal.SIGINT)
    with stop.handle_signals():
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before
