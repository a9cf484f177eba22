"""Settings of a server.

Errors name the flags of `launch.serve`, because the command reads the settings from its flags.

settings.Settings(rest_port=0, max_batch_size=64)
"""

import errno
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Annotated, NoReturn

from mtl import checks, versions

_PACKAGES = {
    "aiohttp": "serve",
    "grpc": "serve",
    "prometheus_client": "serve",
    "tensorflow_serving": "serve",
}
_MOST_PORT = 2**16 - 1
_MOST_SECS = 10**6
# The size limit of a gRPC message is an int32.
_MOST_BYTES = 2**31 - 1


@checks.dataclass
class Settings:
    """Addresses, limits and access of a server.

    Attributes:
      host: the address to listen on.
      rest_port: the port of REST and of the Open Inference Protocol; 0 takes a free port.
      grpc_port: the port of gRPC; 0 takes a free port.
      version: the only version to serve; None for the newest version.
      poll_secs: seconds between two searches for new versions.
      keep_versions: the number of versions that stay loaded.
      batching: True to join requests into batches.
      max_batch_size: the largest number of rows in a batch. A request with more than
        `max_batch_size` rows runs alone, without being split.
      batch_timeout_micros: how long a request waits for other requests, in microseconds.
      threads: the number of batches that run at the same time; 0 for half the number of processors.
      max_queue_rows: the largest number of rows that may wait or be computed at a time. The server
        refuses further requests.
      max_body_bytes: the largest size of a request in bytes.
      max_rows: the largest number of rows in a request.
      timeout_secs: the time limit in seconds for sending a request, for computing its answer, and
        for reading the answer, each separately.
      drain_secs: how long a server waits for running requests before it stops.
      token_file: a file with the bearer token of clients; None admits all clients.
      tls_cert, tls_key: PEM files of the certificate and its key; None for no TLS.
      allow_anyone: True to serve clients on other machines without a token.
      request_log: a folder for a log of rows and predictions; None for no log.
      request_log_share: the share of requests that is logged, from 0 to 1.
      request_log_without: names of features, predictions and tasks that are not logged.
      request_log_bytes: the largest size of all log files together, in bytes. If log files exceed
        this size, the server deletes the oldest log files.
    """

    host: Annotated[str, checks.Is(str, "name an address"), checks.Filled("name an address")] = (
        "127.0.0.1"
    )
    rest_port: checks.Natural = 8501
    grpc_port: checks.Natural = 8500
    version: checks.Natural | None = None
    poll_secs: checks.Positive = 5.0
    keep_versions: checks.Count = 2
    batching: bool = True
    max_batch_size: checks.Count = 256
    batch_timeout_micros: checks.Natural = 5000
    threads: checks.Natural = 0
    max_queue_rows: checks.Count = 65536
    max_body_bytes: checks.Count = 32 * 2**20
    max_rows: checks.Count = 8192
    timeout_secs: checks.Positive = 30.0
    drain_secs: checks.NotNegative = 30.0
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    allow_anyone: bool = False
    request_log: str | None = None
    request_log_share: Annotated[float, checks.AtLeast(0), checks.AtMost(1)] = 1.0
    request_log_without: checks.Names = ()
    request_log_bytes: checks.Count = 2**30

    def __post_init__(self):
        for flag in ("rest_port", "grpc_port"):
            port = getattr(self, flag)
            checks.require(port <= _MOST_PORT, f"--{flag}", f"be at most {_MOST_PORT}", port)
        # Both ports may be 0, because 0 stands for any free port.
        is_free = not self.rest_port or self.rest_port != self.grpc_port
        checks.require(is_free, "--grpc_port", "differ from --rest_port", self.grpc_port)
        for flag in ("poll_secs", "timeout_secs", "drain_secs"):
            secs = getattr(self, flag)
            checks.require(secs <= _MOST_SECS, f"--{flag}", f"be at most {_MOST_SECS}", secs)
        limit = self.max_body_bytes
        rule = f"be at most {_MOST_BYTES}, the limit of gRPC"
        checks.require(limit <= _MOST_BYTES, "--max_body_bytes", rule, limit)
        self._check_access()
        self._check_log()

    def _check_access(self) -> None:
        rule = "come with --tls_key, as TLS needs both"
        checks.require(not self.tls_cert or bool(self.tls_key), "--tls_cert", rule, self.tls_cert)
        rule = "come with --tls_cert, as TLS needs both"
        checks.require(not self.tls_key or bool(self.tls_cert), "--tls_key", rule, self.tls_key)
        is_safe = self.is_loopback or self.token_file or self.allow_anyone
        fix = "Set --token_file, or --allow_anyone if a firewall or a proxy protects the server."
        rule = "be an address that only this machine can reach, such as 127.0.0.1, without a token"
        checks.require(bool(is_safe), "--host", rule, self.host, fix)

    def _check_log(self) -> None:
        for flag, default in (("request_log_share", 1.0), ("request_log_without", ())):
            value = getattr(self, flag)
            is_used = self.request_log or value in (default, [])
            checks.require(bool(is_used), f"--{flag}", "come with --request_log", value)

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # A host name may stand for any address.
            return False

    @property
    def num_threads(self) -> int:
        """The number of batches that run at the same time."""
        # Half the processors are enough, because TensorFlow runs a single call on several
        # processors.
        return self.threads or max(1, (os.cpu_count() or 1) // 2)

    def _where(self, setting: str) -> str:
        return f"--{setting}"


def require_packages() -> None:
    """Fail if a package that a server needs is missing.

    Raises:
      UserError: a package is missing; the message has the command that installs it.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        need = f"{versions.how_to_get('serve')}, as {missing[0]} is missing"
        raise checks.UserError(f"launch.serve needs more packages: {need}.")


def require_free(host: str, ports: Mapping[str, int]) -> None:
    """Fail if a server cannot listen on the ports of an address.

    Args:
      host: the address to listen on.
      ports: {flag: the port that the flag sets}.

    Raises:
      UserError: the address or a port cannot be used.
    """
    try:
        places = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        checks.fail("--host", "be an address of this machine", host, f"{reason}.")
    family, kind, _, _, address = places[0]
    for flag, port in ports.items():
        with socket.socket(family, kind) as probe:
            # Without SO_REUSEADDR, a port stays in use for a while after a server stops. asyncio
            # also sets SO_REUSEADDR.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address[0], port, *address[2:]))
            except OSError as error:
                is_ours = error.errno != errno.EADDRNOTAVAIL
                rule = "be an address of this machine"
                checks.require(is_ours, "--host", rule, host, f"{error.strerror}.")
                refuse_port(flag, host, port, error.strerror or str(error))


def refuse_port(flag: str, host: str, port: int, reason: str) -> NoReturn:
    """Raise the error for a port that cannot be used.

    Args:
      flag: the command-line flag that sets the port, without dashes.
      host: the address to listen on.
      port: the port that cannot be used.
      reason: the error message of the operating system.

    Raises:
      UserError: always.
    """
    fix = f"{reason}. 0 takes a free port."
    checks.fail(f"--{flag} on {host}", "be a free port", port, fix)
