"""Real clusters of processes on this machine: mirrored, multi-worker and parameter servers."""

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


def _start(kind, path, steps=STEPS, **environment):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.compat.cluster_member", kind, str(path), str(steps)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process):
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    return output


@contextlib.contextmanager
def _members(kind, path, cluster, **arguments):
    """Starts every member; stops those that wait forever, such as parameter servers."""
    started = {
        (job, index): _start(
            kind,
            path,
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}),
            **arguments,
        )
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    }
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def _variable(path, name):
    return tf.train.load_variable(str(path), name)


def test_mirrored_equals_one_device(tmp_path):
    _finish(_start("mirrored", tmp_path))
    assert _variable(tmp_path, "global_step") == STEPS
    np.testing.assert_allclose(_variable(tmp_path, "kernel"), toy.descend(STEPS), rtol=1e-4)


def test_multi_worker_mirrored(tmp_path):
    """Gradients are rows, whose number differs from step to step and by process."""
    with _members("multi_worker", tmp_path, _cluster(chief=1, worker=1)) as members:
        for member in members.values():
            _finish(member)
    np.testing.assert_allclose(_variable(tmp_path, "kernel"), toy.descend(STEPS), rtol=1e-4)


@pytest.mark.parametrize("kind", ["parameter_servers", "parameter_server_strategy"])
def test_parameter_servers(kind, tmp_path):
    with _members(kind, tmp_path, _cluster(chief=1, worker=1, ps=1)) as members:
        for task in [("chief", 0), ("worker", 0)]:
            _finish(members[task])
        assert members["ps", 0].poll() is None
    # Workers run side by side: their number of steps may pass the goal by one each.
    steps = _variable(tmp_path, "global_step")
    assert STEPS <= steps <= STEPS + 2
    error = np.abs(_variable(tmp_path, "kernel") - toy.WEIGHTS).max()
    assert error < np.abs(toy.descend(STEPS // 2) - toy.WEIGHTS).max()


def test_evaluator_runs_beside_the_chief(tmp_path):
    cluster = _cluster(chief=1, ps=1)
    with _members("parameter_servers", tmp_path, cluster) as members:
        place = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
        evaluator = _start("parameter_servers", tmp_path, TF_CONFIG=json.dumps(place))
        try:
            _finish(members["chief", 0])
            _finish(evaluator)
        finally:
            evaluator.kill()
    (events,) = (tmp_path / "eval").glob("events*")
    steps = {event.step for event in tf.compat.v1.train.summary_iterator(str(events))}
    assert STEPS in steps


def test_client_on_a_remote_cluster(tmp_path):
    cluster = _cluster(worker=2)
    with _members("server", tmp_path, cluster):
        output = _finish(_start("client", tmp_path, CLUSTER=json.dumps(cluster)))
    metrics = json.loads(output.splitlines()[-1])
    expected = toy.mean_squared_error(toy.descend(STEPS))
    np.testing.assert_allclose(metrics["mse"], expected, rtol=1e-3)
    assert metrics["global_step"] == STEPS
