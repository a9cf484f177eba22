"""Places in a cluster, as TF_CONFIG tells, and who can reach them."""

import contextlib
import json
import socket
import sys
import time

import pytest
import tensorflow as tf

from mtl import checks, distribution
from mtl.distribution import tf_config


@pytest.fixture
def given(monkeypatch):
    """given(jobs, task type, index): sets TF_CONFIG."""

    def give(jobs, job, index=0):
        config = {"cluster": jobs, "task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return give


WORKERS = {"worker": ["a:1", "b:1", "c:1"]}


def test_no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert tf_config.read_cluster() is None
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}}')
    assert tf_config.read_cluster() is None


@pytest.mark.parametrize(
    ("jobs", "job", "index", "name", "rank", "watched"),
    [
        (WORKERS, "worker", 0, "chief-0", 0, ["worker-0", "worker-1"]),
        (WORKERS, "worker", 2, "worker-1", 2, ["chief-0"]),
        ({"master": ["a:1"], "ps": ["b:1"]}, "master", 0, "chief-0", 0, ["ps-0"]),
        ({"chief": ["a:1"], "ps": ["b:1"]}, "ps", 0, "ps-0", 0, ["chief-0"]),
        ({"chief": ["d:1"], **WORKERS}, "evaluator", 0, "evaluator-0", 0, ["chief-0"]),
    ],
)
def test_places(given, jobs, job, index, name, rank, watched):
    given(jobs, job, index)
    for place in (
        tf_config.read_cluster(),
        tf_config.read_cluster(),
    ):  # Reading it changes nothing.
        assert (place.name, place.rank, place.watched_processes) == (name, rank, watched)
    with tf_config.hide_cluster():
        assert tf_config.read_cluster() is None
    assert tf_config.read_cluster().name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG must be JSON such as .*, got '{'"),
        ('{"cluster": 3}', "TF_CONFIG must be JSON such as"),
        (
            '{"cluster": {"worker": null}, "task": {"type": "worker"}}',
            "TF_CONFIG.cluster.worker must be a list of addresses, got None",
        ),
        (
            '{"cluster": {"worker": [7]}, "task": {"type": "worker"}}',
            "TF_CONFIG.cluster.worker must be a list of addresses, got 7",
        ),
        (
            '{"cluster": {"worker": ["a"]}, "task": {"type": "worker"}}',
            "TF_CONFIG.cluster.worker must hold host:port, got 'a'",
        ),
        (
            '{"cluster": {"worker": ["a:1"], "ps": ["b:1", "a:1"]}, "task": {"type": "worker"}}',
            r"TF_CONFIG.cluster must hold each address once, got \['a:1'\]",
        ),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG.task.type must be one of .*, got None"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "workr"}}',
            "Did you mean 'worker'",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "TF_CONFIG.task.index must be a number below 1, the number of processes of job "
            "'worker', got 1",
        ),
        (
            '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps"}}',
            r"TF_CONFIG.cluster must have a chief or a worker, got \['ps'\]",
        ),
        (
            '{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief"}}',
            "TF_CONFIG.cluster must have one chief",
        ),
        (
            '{"cluster": {"chef": ["a:1"]}, "task": {"type": "evaluator"}}',
            "TF_CONFIG.cluster must be one of .* Did you mean 'chief'",
        ),
    ],
)
def test_mistakes(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(checks.UserError, match=message):
        tf_config.read_cluster()


def test_strategies_follow_the_cluster(given):
    given(WORKERS, "worker", 1)
    place = distribution.Distribution().find_place()
    assert (place.strategy, place.replicas, place.workers) == ("multi_worker_mirrored", 3, 3)
    given({**WORKERS, "ps": ["d:1"]}, "worker", 1)
    assert distribution.Distribution().find_place().strategy == "parameter_server"
    rule = "Distribution.strategy must be 'auto' or 'parameter_server' with this TF_CONFIG"
    with pytest.raises(checks.UserError, match=rule):
        distribution.Distribution(strategy="mirrored").find_place()
    given(WORKERS, "evaluator")
    with pytest.raises(checks.UserError, match="Distribution.evaluator must be True"):
        distribution.Distribution().find_place()


def test_several_processes_need_a_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(checks.UserError, match="Distribution.strategy must have a TF_CONFIG"):
        distribution.Distribution(strategy="parameter_server").find_place()


def _address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def _interfaces(port):
    """Return the interfaces to which the listening sockets of a port are bound."""
    found = []
    for own in tf_config._sockets(port):
        with own:
            if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(own.getsockopt(socket.SOL_SOCKET, tf_config._BIND_TO_DEVICE, 16))
    return found


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a socket to an interface")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["one machine", "several"])
def test_a_server_of_one_machine_hears_the_loopback_interface_alone(elsewhere):
    own = _address()
    jobs = {"chief": ["far.example:1" if elsewhere else _address()], "ps": [own]}
    place = tf_config.Cluster(jobs=jobs, job="ps", index=0)
    with tf_config.confine_server(place):
        server = tf.distribute.Server(dict(jobs), "ps", 0)
        end = time.monotonic() + (0.5 if elsewhere else 20)
        while time.monotonic() < end and b"lo\0" not in _interfaces(place.port):
            time.sleep(0.01)
        assert set(_interfaces(place.port)) == {b"" if elsewhere else b"lo\0"}
        with contextlib.closing(socket.create_connection(own.split(":"))):
            pass
    del server


def test_only_processes_with_a_server_have_a_port():
    jobs = {"chief": ["[::1]:7", "localhost:8"]}
    ports = [tf_config.Cluster(jobs=jobs, job="chief", index=n).port for n in range(2)]
    assert ports == [7, 8]
    assert tf_config.Cluster(jobs=jobs, job="evaluator", index=0).port is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.7", False),
        ("10.0.0.7", False),
        ("fe80::1%eth0", False),
    ],
)
def test_peers_of_this_machine(address, expected):
    assert tf_config._is_loopback(address) is expected
