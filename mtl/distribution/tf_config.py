"""Reads the environment variable TF_CONFIG: the processes of a cluster, and this process's role.

TF_CONFIG = {"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},
             "task": {"type": "worker", "index": 0}}

cluster = tf_config.read_cluster()           # None if the process trains alone
with tf_config.confine_server(cluster): ...  # on one machine, keeps other machines out
"""

import contextlib
import dataclasses
import ipaddress
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl import checks

_log = logging.getLogger(__name__)
_VARIABLE = "TF_CONFIG"
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_DESCRIPTORS = "/proc/self/fd"
_BIND_TO_DEVICE = 25  # SO_BINDTODEVICE of Linux, a constant that Python's socket module lacks.
CHIEF, WORKER, SERVER, EVALUATOR = JOBS = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a cluster, and the role of this process.

    Attributes:
      jobs: {job: the addresses of its processes}.
      job: the job of this process, one of `JOBS`.
      index: the number of this process in its job.
    """

    jobs: Mapping[str, Sequence[str]]
    job: str
    index: int

    @property
    def num_workers(self) -> int:
        """The number of processes that train, including the chief."""
        return len(self.jobs.get(CHIEF, ())) + len(self.jobs.get(WORKER, ()))

    @property
    def num_servers(self) -> int:
        """The number of parameter servers."""
        return len(self.jobs.get(SERVER, ()))

    @property
    def rank(self) -> int:
        """The number of this process among the training processes; the chief has 0."""
        # The chief has rank 0, so worker 0 has rank 1.
        return self.index + (self.job == WORKER)

    @property
    def is_chief(self) -> bool:
        return self.job == CHIEF

    @property
    def name(self) -> str:
        """The name of this process, such as "worker-0"."""
        return f"{self.job}-{self.index}"

    @property
    def port(self) -> int | None:
        """The port of this process; None for an evaluator, which has no server."""
        if self.job == EVALUATOR:
            return None
        return int(self.jobs[self.job][self.index].rpartition(":")[2])

    @property
    def is_on_one_machine(self) -> bool:
        """True if every process has an address on the loopback interface."""
        addresses = [address for job in self.jobs.values() for address in job]
        return all(address.rpartition(":")[0] in _LOOPBACK_HOSTS for address in addresses)

    @property
    def watched_processes(self) -> list[str]:
        """The names of the processes whose heartbeats this process watches.

        The chief watches all workers and servers; all other processes watch the chief.
        """
        if not self.is_chief:
            return [f"{CHIEF}-0"]
        jobs = [job for job in self.jobs if job in (WORKER, SERVER)]
        return [f"{job}-{index}" for job in jobs for index in range(len(self.jobs[job]))]


def read_cluster() -> Cluster | None:
    """Return the cluster with the role of this process; None for a process that trains alone.

    If TF_CONFIG has no chief, the first worker becomes the chief.

    Raises:
      UserError: TF_CONFIG is not valid, or does not describe the role of this process.
    """
    text = os.environ.get(_VARIABLE, "")
    try:
        value = json.loads(text or "{}")
        jobs, task = dict(value.get("cluster", {})), dict(value.get("task", {}))
    except (ValueError, TypeError, AttributeError):
        rule = 'be JSON such as {"cluster": {"chief": ["host:port"]}, "task": {"type": "chief"}}'
        checks.fail(_VARIABLE, rule, text)
    for name, addresses in jobs.items():
        _check_addresses(f"{_VARIABLE}.cluster.{name}", addresses, needs_port=name != EVALUATOR)
    _require_distinct(jobs)
    # The TF_CONFIG of an evaluator may omit the cluster, to which the evaluator does not belong.
    if not jobs and task.get("type") != EVALUATOR:
        return None
    job, index = _read_task(task, jobs)
    if job == EVALUATOR:
        return Cluster(jobs=jobs, job=job, index=index)
    cluster = _with_chief(jobs, job, index)
    # Estimator and TensorFlow read the role from TF_CONFIG, so write the new role back.
    place = {"cluster": cluster.jobs, "task": {"type": cluster.job, "index": cluster.index}}
    os.environ[_VARIABLE] = json.dumps(place)
    # A cluster of a single process trains as if there were no TF_CONFIG.
    return cluster if sum(map(len, cluster.jobs.values())) > 1 else None


def _check_addresses(where: str, addresses: Any, needs_port: bool) -> None:
    checks.texts(where, addresses, "be a list of addresses")
    for address in addresses if needs_port else ():
        has_port = re.fullmatch(r".*:[0-9]+", address) is not None
        checks.require(has_port, where, "hold host:port", address)


def _require_distinct(jobs: Mapping[str, Sequence[str]]) -> None:
    # TensorFlow would wait for ever for a second server with the same address.
    servers = [address for job in jobs if job != EVALUATOR for address in jobs[job]]
    repeated = sorted({address for address in servers if servers.count(address) > 1})
    checks.require(not repeated, f"{_VARIABLE}.cluster", "hold each address once", repeated)


@contextlib.contextmanager
def hide_cluster() -> Iterator[None]:
    """Hide TF_CONFIG from Estimator in a `with` block, for the work of a single process."""
    text = os.environ.pop(_VARIABLE, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[_VARIABLE] = text


@contextlib.contextmanager
def confine_server(cluster: Cluster | None) -> Iterator[None]:
    """Keep other machines from the server of this process, if the whole cluster is on this machine.

    A server of TensorFlow listens on every network interface, even if its address is local, and
    lets every client read and write files. This function binds the server's socket to the loopback
    interface milliseconds after the server starts to listen. Until the `with` block ends, the
    function also closes connections from other machines.

    Args:
      cluster: the processes of the run; if it is None, or a cluster of several machines, this
        function does nothing.
    """
    if cluster is None or cluster.port is None or not cluster.is_on_one_machine:
        yield
        return
    if sys.platform != "linux":
        _warn_of_port(cluster.port, "only Linux can bind a socket to an interface")
    end_event = threading.Event()
    guard = threading.Thread(target=_guard_port, args=(cluster.port, end_event), daemon=True)
    guard.start()
    try:
        yield
    finally:
        end_event.set()
        guard.join()


def _guard_port(port: int, end_event: threading.Event) -> None:
    has_listened = sys.platform != "linux"
    # Check often until the server listens, because any machine can connect until its socket is
    # bound.
    while not end_event.wait(1.0 if has_listened else 0.005):
        for copy in _sockets(port):
            # Ignore errors of a connection that has just ended.
            with copy, contextlib.suppress(OSError):
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    _bind_to_loopback(copy, port, warn=not has_listened)
                    has_listened = True
                elif not _is_loopback(copy.getpeername()[0]):
                    copy.shutdown(socket.SHUT_RDWR)


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yield copies of the sockets of this process on a port."""
    for name in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        with contextlib.suppress(OSError):
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                # Copy the descriptor, so that closing the Python object does not close the server's
                # socket.
                copy = socket.socket(fileno=os.dup(int(name)))
                is_internet = copy.family in (socket.AF_INET, socket.AF_INET6)
                if is_internet and copy.getsockname()[1] == port:
                    yield copy
                else:
                    copy.close()


def _bind_to_loopback(listening: socket.socket, port: int, warn: bool) -> None:
    try:
        listening.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, b"lo\0")
    except OSError as error:
        if warn:
            _warn_of_port(port, error.strerror or str(error))


def _warn_of_port(port: int, reason: str) -> None:
    line = "Other machines can reach port %d (%s), and can then read and write files as this user."
    _log.warning(f"{line} Close the port with a firewall.", port, reason)


def _is_loopback(address: str) -> bool:
    # An IPv6 socket shows the address of an IPv4 client as ::ffff:a.b.c.d, and may add a zone after
    # %.
    return ipaddress.ip_address(address.partition("%")[0].removeprefix("::ffff:")).is_loopback


def _read_task(task: Mapping[str, Any], jobs: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    where = f"{_VARIABLE}.task"
    # Earlier versions of TensorFlow called the chief "master".
    types = [*(set(jobs) & {*JOBS, "master"}), EVALUATOR]
    checks.one_of(f"{where}.type", task.get("type"), sorted(types))
    for job in jobs:
        checks.one_of(f"{_VARIABLE}.cluster", job, [*JOBS, "master"])
    job, index = task["type"], task.get("index", 0)
    count = len(jobs.get(job, [""]))
    fits = isinstance(index, int) and 0 <= index < count
    rule = f"be a number below {count}, the number of processes of job {job!r}"
    checks.require(fits, f"{where}.index", rule, index)
    return job, index


def _with_chief(jobs: dict[str, Sequence[str]], job: str, index: int) -> Cluster:
    """Return the cluster with a chief: job "chief" or "master", else the first worker."""
    jobs = {name: list(addresses) for name, addresses in jobs.items() if name != EVALUATOR}
    if "master" in jobs:
        jobs[CHIEF] = jobs.pop("master")
        job = CHIEF if job == "master" else job
    if CHIEF not in jobs:
        rule = "have a chief or a worker"
        checks.require(bool(jobs.get(WORKER)), f"{_VARIABLE}.cluster", rule, sorted(jobs))
        jobs[CHIEF], jobs[WORKER] = jobs[WORKER][:1], jobs[WORKER][1:]
        if job == WORKER:
            # The first worker becomes the chief, so the numbers of the other workers decrease by 1.
            job, index = (WORKER, index - 1) if index else (CHIEF, 0)
    rule = "have one chief"
    checks.require(len(jobs[CHIEF]) == 1, f"{_VARIABLE}.cluster", rule, jobs[CHIEF])
    jobs = {name: addresses for name, addresses in jobs.items() if addresses}
    return Cluster(jobs=jobs, job=job, index=index)
