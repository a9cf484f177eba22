"""Clusters of real processes on this machine: in step, by parameter servers, lost and stopped."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from launch import cluster
from mtl.runs import members
from tests import tiny
from tests.launch import conftest, toy

tf1 = tf.compat.v1
pytestmark = pytest.mark.slow
STEPS = 12
# The number of rows of the table of tags that are looked up differs by step and by process.
TAGGED_GIN = """\
from __gin__ import dynamic_registration
from mtl import features
from mtl import model
from mtl import spec
include "toy.gin"

# Of twelve tags eight have a row at a time.
model.MultiTaskModel.columns = [@features.Numeric(), @features.Categorical(), @features.Growing()]
features.Growing.names = ["tags"]
features.Growing.capacity = 8
features.Growing.eviction = "age"
spec.Spec.features = {"age": "float32", "job": "string", "tags": ("string", (None,))}
features.Categorical.names = ["job", "tags"]
"""
GIN = """\
from __gin__ import dynamic_registration
from mtl import distribution
from mtl import experiment
from mtl import networks
from mtl.distribution import resources
from mtl import transfer
from mtl.data import pipeline
include "tagged.gin"

# From one start, for one process or several, with the rows of a table in another order.
experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = "first"
transfer.WarmStart.slots = True
transfer.WarmStart.row_names = {"^features/categorical_job/": ["smith", "clerk", "cook"]}
pipeline.Pipeline.shuffle_buffer = 1
# Each process reads every n-th row; other tests keep all rows in memory, as by default.
pipeline.Pipeline.cache = False
networks.MLP.batch_norm = True
experiment.Run.train_steps = 12
experiment.Run.checkpoint_steps = 4
experiment.Run.keep_checkpoints = 4
experiment.Run.summary_steps = 4
experiment.Experiment.distribution = @distribution.Distribution()
distribution.Distribution.timeout_secs = 5
distribution.Distribution.min_shard_bytes = 32
distribution.Distribution.communication = @distribution.Communication()
distribution.Communication.implementation = "ring"
distribution.Communication.bytes_per_pack = 4096
distribution.Distribution.resources = @resources.Resources()
resources.Resources.intra_op_threads = 1
"""
WINDOWS_GIN = """\
from __gin__ import dynamic_registration
from mtl.data import arrow
from mtl.data import pipeline
include "cluster.gin"

pipeline.Pipeline.source = @arrow.Arrow()
arrow.Arrow.files = {"train": "train.parquet", "test": "test.parquet"}
arrow.Arrow.data_dir = %data_dir
arrow.Arrow.window = 40
"""
TABLE = "features/categorical_job/embedding"
# A run that ends by a signal alone, and evaluates nothing.
NOT_EVALUATED = "Distribution.evaluator = True"
ENDLESS = ("Run.train_steps = 1000000", NOT_EVALUATED)
STOPPED = 128 + signal.SIGTERM


def _arguments(model_dir, *params, file="cluster.gin"):
    flags = [flag for param in params for flag in ("--gin_param", param)]
    return ["--gin_file", file, "--model_dir", str(model_dir), *flags]


@pytest.fixture(scope="module")
def run_in(launch_in):
    """run_in(directory, "--workers", "2", ..., signals, code): runs a cluster; what it said.

    A signal is (member, number): it is sent to a member that trains, or holds parameters, once
    those that were there at the signal before have ended, and a checkpoint is saved.
    """

    def run(directory, *arguments, signals=(), code=0):
        model_dir = directory / arguments[arguments.index("--model_dir") + 1]
        with _sending(model_dir, signals):
            done = launch_in(directory, "cluster", *arguments)
        assert done.code == code, done.out + done.err
        return done.out + done.err

    return run


@contextlib.contextmanager
def _sending(model_dir, signals):
    ended = threading.Event()

    def send():
        for member, number in signals:
            before = max(tiny.checkpoint_steps(model_dir), default=0)
            while not ended.wait(0.01):
                signs = _read_signs(model_dir)
                saved = max(tiny.checkpoint_steps(model_dir), default=0) > before
                if saved and _sent(signs.get(member), number):
                    break
            while any(_is_alive(sign["process"]) for sign in signs.values()):
                if ended.wait(0.01):
                    return

    sender = threading.Thread(target=send)
    sender.start()
    yield
    ended.set()
    sender.join()


def _read_signs(model_dir):
    """{member: how it is, as it says itself}."""
    paths = (model_dir / "cluster").glob("*-?")
    return {path.name: json.loads(path.read_text()) for path in paths}


def _sent(said, number):
    """Sends a signal to a member that works; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        if said and said["phase"] in (members.TRAINING, members.SERVING):
            os.kill(said["process"], number)
            return True
    return False


def _assert_close(model_dir, expected, rtol):
    weights, others = tiny.variables(expected), tiny.variables(model_dir)
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=rtol, atol=rtol, err_msg=name)


@pytest.fixture(scope="module")
def started(launch_in, tmp_path_factory):
    """A folder with a one-step run, and a run in a single process that starts from it."""
    directory = tmp_path_factory.mktemp("cluster")
    toy.write(directory)
    _add_tags(directory / "data")
    (directory / "tagged.gin").write_text(TAGGED_GIN)
    (directory / "cluster.gin").write_text(GIN)
    only_step = ["--gin_param", "Run.train_steps = 1", "--gin_param", "MLP.batch_norm = True"]
    first = ["--gin_file", "tagged.gin", "--model_dir", "first", *only_step]
    for arguments in (first, _arguments("alone")):
        done = launch_in(directory, "train", *arguments)
        assert done.code == 0, done
    start, warmed = tiny.variables(directory / "first"), tiny.variables(directory / "alone", 0)
    order = (directory / "first" / "statistics" / "vocabulary_categorical_job.txt").read_text()
    rows = [["smith", "clerk", "cook"].index(job) for job in order.split()]
    np.testing.assert_array_equal(warmed[TABLE], start[TABLE][[*rows, 3]])
    return directory


def _add_tags(data):
    """Appends a list to every row: batches with none at all, with one and with many."""
    draw = np.random.default_rng(1)
    for path in data.glob("*.csv"):
        header, *rows = path.read_text().splitlines()
        most = np.repeat([0, 1, 9, 3], 8)  # A process reads eight rows a step.
        lists = [
            "|".join(draw.choice(list("abcdefghijkl"), draw.integers(0, most[n % 32] + 1)))
            for n in range(len(rows))
        ]
        lines = [
            f"{header},tags",
            *(f"{row},{tags}" for row, tags in zip(rows, lists, strict=True)),
        ]
        path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def in_step(started, launch_in):
    """Two processes that train in step, to the end."""
    done = launch_in(started, "cluster", "--workers", "2", "--", *_arguments("in_step"))
    assert done.code == 0, done
    return started / "in_step", done.out


def test_two_processes_in_step_train_as_one_does(started, in_step):
    model_dir, said = in_step
    _assert_close(model_dir, started / "alone", rtol=1e-5)
    for folder in (".", "eval"):
        expected, actual = (
            tiny.scalars(started / "alone" / folder),
            tiny.scalars(model_dir / folder),
        )
        expected = {key: x for key, x in expected.items() if key[1] not in tiny.SPEEDS}
        assert set(expected) == {key for key in actual if key[1] not in tiny.SPEEDS}
        for key in expected:
            np.testing.assert_allclose(actual[key], expected[key], rtol=1e-4, err_msg=key)
    assert "chief-0  | Training on 2 replicas, in chief-0: /cpu:0" in said
    assert f"chief-0  | Trained {STEPS} steps, up to step {STEPS}." in said
    assert said.count("Warm start from") == 1


@pytest.mark.thorough
def test_a_run_that_is_stopped_and_then_loses_a_worker_goes_on_to_the_bit(started, in_step, run_in):
    """SIGTERM to one process: all save after the same step. SIGKILL: the others end in time."""
    signals = ("worker-0", signal.SIGTERM), ("worker-0", signal.SIGKILL)
    said = run_in(
        started, "--restarts", "2", "--", *_arguments("lost", NOT_EVALUATED), signals=signals
    )
    stops = [line.partition("Stopped")[2] for line in said.splitlines() if "Stopped by" in line]
    assert len(stops) == 2 and len(set(stops)) == 1, said
    assert "Error: worker-0 has given no sign of life for" in said
    assert "Starting all processes again, 2 of 2" in said
    _assert_close(started / "lost", in_step[0], rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ["memory", "windows"])
def test_a_run_goes_on_with_one_two_and_three_workers(started, launch_in, run_in, rows):
    """The batch of a step does not depend on the number of workers, and neither does a window."""
    mixed = ["Pipeline.shuffle_buffer = 100", "Pipeline.batch_size = 12"]
    if rows == "memory":
        mixed.append("Pipeline.cache = None")
    else:
        _write_parquet(started)
    file = {"memory": "cluster.gin", "windows": "windows.gin"}[rows]
    done = launch_in(started, "train", *_arguments(f"one {rows}", *mixed, file=file))
    assert done.code == 0, done
    for workers, steps in ((1, 4), (3, 8), (2, STEPS)):
        some = [*mixed, f"Run.train_steps = {steps}"]
        arguments = _arguments(f"several {rows}", *some, file=file)
        said = run_in(started, "--workers", str(workers), "--", *arguments)
        assert "order starts anew" not in said
    _assert_close(started / f"several {rows}", started / f"one {rows}", rtol=1e-5)


def _write_parquet(directory):
    """Writes the tables as Parquet of texts, in row groups of nine, and a gin file for them."""
    for split in ("train", "test"):
        header, *lines = (directory / "data" / f"{split}.csv").read_text().splitlines()
        columns = zip(*(line.split(",") for line in lines), strict=True)
        table = pa.table(dict(zip(header.split(","), map(list, columns), strict=True)))
        parquet.write_table(table, directory / "data" / f"{split}.parquet", row_group_size=9)
    (directory / "windows.gin").write_text(WINDOWS_GIN)


def test_parameter_servers_with_one_worker_train_as_one_process_does(started, run_in):
    """The table lies in shards on two; every checkpoint is evaluated, though one is kept."""
    processes = ("--workers", "1", "--ps", "2", "--evaluator")
    arguments = _arguments("served", "Run.keep_checkpoints = 1")
    said = run_in(started, *processes, "--", *arguments)
    model_dir = started / "served"
    _assert_close(model_dir, started / "alone", rtol=1e-5)
    assert f"evaluator-0 | Trained 0 steps, up to step {STEPS}." in said
    best = json.loads((model_dir / "best" / "best.json").read_text())
    assert best == json.loads((started / "alone" / "best" / "best.json").read_text())
    assert {step for step, _ in tiny.scalars(model_dir / "eval")} == {4, 8, STEPS}
    assert list((model_dir / "export" / "best").iterdir())
    graphs = [tf1.GraphDef.FromString(event.graph_def) for event in tiny.events(model_dir)]
    devices = {node.name: node.device for graph in graphs for node in graph.node}
    parts = [devices[f"{TABLE}/part_{n}"] for n in range(2)]
    assert len({part for part in parts if part.startswith("/job:ps/task:")}) == 2, parts


@pytest.mark.thorough
def test_whoever_is_stopped_beside_parameter_servers_the_chief_saves(started, run_in):
    """A worker, then a server, which holds its parameters until that is done.

    When a worker comes, the checkpoint that the chief started from is gone.
    """
    processes = ("--workers", "2", "--ps", "1", "--restarts", "1")
    arguments = _arguments(
        "shared", *ENDLESS, "Run.checkpoint_steps = 4", "Run.keep_checkpoints = 1"
    )
    signals = ("worker-0", signal.SIGTERM), ("ps-0", signal.SIGTERM)
    said = run_in(started, *processes, "--", *arguments, signals=signals, code=STOPPED)
    for member, _ in signals:
        assert f"{member} was stopped, so the whole run stops." in said, said
    for member in ("worker-0", "ps-0"):
        assert re.search(rf"{member} +\| Stopped by SIGTERM .* the chief", said), said
    saved = re.findall(r"chief-0 +\| Stopped by SIGTERM at step (\d+), which is saved", said)
    assert len(saved) == 2 and f"Going on from step {saved[0]} to step" in said, said
    # An evaluator that starts slowly is missed in a warning, and ends nothing.
    assert not re.search("Error: .* no sign of life", said)
    assert max(tiny.checkpoint_steps(started / "shared")) == int(saved[1])
    scalars = tiny.scalars(started / "shared")
    rates = {step: value for (step, tag), value in scalars.items() if tag == "examples_per_sec"}
    assert rates  # A step has the rows of one of two workers, half of a batch of 16.
    for step, rate in rates.items():
        assert rate == pytest.approx(8 * scalars[step, "steps_per_sec"], rel=1e-4)


def test_a_mistake_ends_all_with_its_code(started, launch_in):
    arguments = _arguments("wrong", "Run.train_steps = 0")
    done = launch_in(started, "cluster", "--workers", "2", "--", *arguments)
    said = "--gin_param 'Run.train_steps = 0': Run.train_steps must be at least 1, got 0."
    assert done.error == said


def test_the_first_process_that_fails_gives_the_code(monkeypatch):
    codes = {"chief-0": "0", "worker-0": "3"}
    code = "import os, sys, time; time.sleep(0.3); sys.exit(int(os.environ['MEMBER_CODE']))"
    monkeypatch.setattr(cluster.here, "make_command", lambda _: [sys.executable, "-c", code])
    started_members = cluster.Members([], {n: {"MEMBER_CODE": c} for n, c in codes.items()})
    assert started_members.wait() == 3
    monkeypatch.setattr(cluster.here, "make_command", lambda _: ["sh", "-c", "kill -9 $$"])
    assert cluster.Members([], {"chief-0": {}}).wait() == 128 + signal.SIGKILL


def test_every_process_has_its_place():
    found = cluster.environments(workers=2, servers=1, evaluator=True)
    assert list(found) == ["chief-0", "worker-0", "ps-0", "evaluator-0"]
    places = [json.loads(place["TF_CONFIG"]) for place in found.values()]
    assert [place["task"]["type"] for place in places] == ["chief", "worker", "ps", "evaluator"]
    jobs = places[0]["cluster"]
    assert {job: len(addresses) for job, addresses in jobs.items()} == {
        "chief": 1,
        "worker": 1,
        "ps": 1,
    }
    assert len({address for addresses in jobs.values() for address in addresses}) == 3


@pytest.mark.thorough
def test_members_end_with_a_launcher_that_is_killed(started):
    """Nobody is left to pass a signal on; they save, as at any other.

    No process is a fork here: what they say comes through pipes to the launcher.
    """
    command = [sys.executable, "-m", "launch.cluster", "--workers", "2", "--"]
    arguments = _arguments("orphans", *ENDLESS, "Run.checkpoint_steps = 1000000")
    output = started / "orphans.txt"
    with output.open("w") as opened:
        launcher = subprocess.Popen(
            [*command, *arguments],
            cwd=started,
            env=conftest.environment(),
            stdout=opened,
            stderr=subprocess.STDOUT,
        )
    signs = [started / "orphans" / "cluster" / name for name in ("chief-0", "worker-0")]
    try:
        said = [_wait_for(sign) for sign in signs]
        _wait_until(lambda: _has_scalars(started / "orphans"))
    finally:
        launcher.kill()
        launcher.wait()
    for one in said:
        _wait_until(lambda one=one: not _is_alive(one["process"]))
    assert tiny.checkpoint_steps(started / "orphans")[-1] > 0
    assert "chief-0  | Training on 2 replicas, in chief-0: /cpu:0" in output.read_text()


def _wait_for(sign):
    """Wait until a member trains, and return the content of its sign."""

    def trains():
        return sign.exists() and json.loads(sign.read_text())["phase"] == members.TRAINING

    _wait_until(trains)
    return json.loads(sign.read_text())


def _has_scalars(model_dir):
    with contextlib.suppress(tf.errors.DataLossError):  # A record that is being written.
        return bool(tiny.scalars(model_dir))


def _wait_until(holds):
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
