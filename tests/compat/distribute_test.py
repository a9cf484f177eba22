"""Clusters of processes on this machine: mirrored, multi-worker and parameter servers.

One process is started as a user would; the others are forks.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import forks
from tests.compat import toy

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
STEPS = 12


def _cluster(**jobs):
    """{job: ["localhost:port", ...]} with ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:

        def address():
            listener = stack.enter_context(socket.socket())
            listener.bind(("localhost", 0))
            return f"localhost:{listener.getsockname()[1]}"

        return {job: [address() for _ in range(count)] for job, count in jobs.items()}


@pytest.fixture(scope="module")
def start():
    """start(kind, path, **environment): a fork."""
    with forks.Server("tests.compat.cluster_member", CUDA_VISIBLE_DEVICES="-1") as server:

        def start(kind, path, **environment):
            arguments = f"{kind!r}, {str(path)!r}, {STEPS}"
            code = f"from tests.compat import cluster_member; cluster_member.main({arguments})"
            return server.start(code, environment)

        yield start


def _finish(process):
    code, output, errors = process.wait(timeout_secs=240)
    assert code == 0, errors[-3000:]
    return output


@pytest.fixture
def members_of(start):
    """members_of(kind, path, cluster) starts every member.

    It stops those that wait forever, such as parameter servers.
    """

    @contextlib.contextmanager
    def members_of(kind, path, cluster):
        tasks = [(job, n) for job, addresses in cluster.items() for n in range(len(addresses))]
        started = {}
        try:
            for job, index in tasks:
                place = {"cluster": cluster, "task": {"type": job, "index": index}}
                started[job, index] = start(kind, path, TF_CONFIG=json.dumps(place))
            yield started
        finally:
            for process in started.values():
                process.kill()

    return members_of


def _variable(path, name):
    return tf.train.load_variable(str(path), name)


def test_mirrored_equals_one_device(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tests.compat.cluster_member", "mirrored", str(tmp_path)]
    subprocess.run([*command, str(STEPS)], env=environment, check=True, timeout=240)
    assert _variable(tmp_path, "global_step") == STEPS
    np.testing.assert_allclose(_variable(tmp_path, "kernel"), toy.descend(STEPS), rtol=1e-4)


def test_multi_worker_mirrored(members_of, tmp_path):
    """Gradients are rows, whose number differs from step to step and by process."""
    with members_of("multi_worker", tmp_path, _cluster(chief=1, worker=1)) as members:
        for member in members.values():
            _finish(member)
    np.testing.assert_allclose(_variable(tmp_path, "kernel"), toy.descend(STEPS), rtol=1e-4)


@pytest.mark.parametrize("kind", ["parameter_servers", "parameter_server_strategy"])
def test_parameter_servers(kind, members_of, tmp_path):
    with members_of(kind, tmp_path, _cluster(chief=1, worker=1, ps=1)) as members:
        for task in [("chief", 0), ("worker", 0)]:
            _finish(members[task])
        assert members["ps", 0].poll() is None
    # Workers run side by side: their number of steps may pass the goal by one each.
    steps = _variable(tmp_path, "global_step")
    assert STEPS <= steps <= STEPS + 2
    error = np.abs(_variable(tmp_path, "kernel") - toy.WEIGHTS).max()
    assert error < np.abs(toy.descend(STEPS // 2) - toy.WEIGHTS).max()


def test_evaluator_runs_beside_the_chief(start, members_of, tmp_path):
    cluster = _cluster(chief=1, ps=1)
    with members_of("parameter_servers", tmp_path, cluster) as members:
        place = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
        evaluator = start("parameter_servers", tmp_path, TF_CONFIG=json.dumps(place))
        try:
            _finish(members["chief", 0])
            _finish(evaluator)
        finally:
            evaluator.kill()
    (events,) = (tmp_path / "eval").glob("events*")
    steps = {event.step for event in tf.compat.v1.train.summary_iterator(str(events))}
    assert STEPS in steps


def test_client_on_a_remote_cluster(start, members_of, tmp_path):
    cluster = _cluster(worker=2)
    with members_of("server", tmp_path, cluster):
        output = _finish(start("client", tmp_path, CLUSTER=json.dumps(cluster)))
    metrics = json.loads(output.splitlines()[-1])
    expected = toy.mean_squared_error(toy.descend(STEPS))
    np.testing.assert_allclose(metrics["mse"], expected, rtol=1e-3)
    assert metrics["global_step"] == STEPS
