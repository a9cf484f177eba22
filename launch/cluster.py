r"""Trains in several processes on this machine, with a TF_CONFIG for each process.

The first worker is the chief. With --ps, workers train asynchronously with parameter servers,
otherwise synchronously. Flags after -- are passed to launch.train. If a process fails, the other
processes end, too, and the command ends with the exit code of the failed process.

    python -m launch.cluster --workers 2 --ps 1 --evaluator -- \
        --gin_file gin_configs/experiments/digits_shared_bottom.gin --model_dir runs/digits
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from launch import app
from launch.processes import here, launcher_watch
from mtl import checks, deferred

with deferred.imports():
    from mtl.checkpoints import lock

WORKERS = flags.DEFINE_integer("workers", 2, "The number of workers, including the chief.")
SERVERS = flags.DEFINE_integer("ps", 0, "The number of parameter servers.")
EVALUATOR = flags.DEFINE_boolean("evaluator", False, "Evaluate in a separate process.")
RESTARTS = flags.DEFINE_integer(
    "restarts", 0, "How often to restart all processes at most, if a process is lost or stopped."
)

_log = logging.getLogger("mtl.distribution.tf_config")

# The seconds that the other processes have to save and end after a failure.
_GRACE_SECS = 30.0

# An exit code above this number means that a signal ended the process.
_BY_SIGNAL = 128


class Members:
    """Starts the processes of a run, and prints their output with the name of the process."""

    def __init__(self, arguments: Sequence[str], environments: Mapping[str, Mapping[str, str]]):
        self._processes = {
            name: subprocess.Popen(
                [*here.make_command("train"), *arguments],
                # The environment variable of `launcher_watch` makes each process end if
                # launch.cluster is killed.
                env={**os.environ, **environment, **launcher_watch.environment()},
                stdout=subprocess.PIPE,
                # Join standard output and error, so that lines keep their order.
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Only launch.cluster gets Ctrl-C.
            )
            for name, environment in environments.items()
        }
        # Pad names with spaces, so that all lines begin in the same column.
        width = max(map(len, self._processes))
        self._readers = [
            threading.Thread(target=_pass_on, args=(process.stdout, name.ljust(width)))
            for name, process in self._processes.items()
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Wait until all processes have ended; if a process fails, end the other processes.

        Returns:
          The exit code of the first process that fails; 0 if all succeed.
        """
        code = self._find_code()
        if code:
            self._end_members()
        for reader in self._readers:
            reader.join()
        # Convert exit codes of signals: for SIGTERM, `Popen` returns -15, but a shell 143.
        return code if code >= 0 else _BY_SIGNAL - code

    def _find_code(self) -> int:
        """Wait until a process fails or all have ended; return the failure's exit code, or 0."""
        while True:
            # Poll all processes, because any process may be the first to fail.
            codes = [process.poll() for process in self._processes.values()]
            failed = next(filter(None, codes), 0)
            if failed or None not in codes:
                return failed
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """Send a signal to all processes that still run."""
        for process in self._processes.values():
            # Ignore a process that has just ended.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _end_members(self) -> None:
        """Wait until all processes end; send SIGTERM, and later SIGKILL, to slow processes."""
        # Wait before the first signal: processes notice themselves that another process is lost,
        # and may save before they end.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                self.signal(number)
            end = time.monotonic() + _GRACE_SECS / 2
            while time.monotonic() < end:
                if all(process.poll() is not None for process in self._processes.values()):
                    return
                time.sleep(0.1)


def environments(workers: int, servers: int, evaluator: bool) -> dict[str, dict[str, str]]:
    """Return the environment variables of each process, with free ports of this machine.

    Args:
      workers: the number of workers, including the chief, at least 1.
      servers: the number of parameter servers; 0 trains without parameter servers.
      evaluator: True adds a process that evaluates.

    Returns:
      {name of a process: {"TF_CONFIG": its value}}.
    """
    counts = {"chief": 1, "worker": workers - 1, "ps": servers}
    # Keep all sockets open until each process has a port, so that all ports differ.
    with contextlib.ExitStack() as stack:
        jobs = {
            job: [_free_address(stack) for _ in range(count)]
            for job, count in counts.items()
            if count
        }
    places = [(job, index) for job, addresses in jobs.items() for index in range(len(addresses))]
    # In TensorFlow, an evaluator does not belong to the cluster.
    places += [("evaluator", 0)] if evaluator else []
    return {
        f"{job}-{index}": {
            "TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})
        }
        for job, index in places
    }


def arguments() -> list[str]:
    """Return the flags for launch.train in each process."""
    params = [*app.GIN_PARAM.value]
    if EVALUATOR.value:
        params.append("Distribution.evaluator = True")
    arguments_of_train = [f"--gin_file={path}" for path in app.GIN_FILE.value]
    arguments_of_train += [f"--gin_param={param}" for param in params]
    if app.TRUSTED.value is not None:
        arguments_of_train.append(f"--trusted_packages={','.join(app.TRUSTED.value)}")
    if app.TRUSTED_SETTINGS.value:
        arguments_of_train.append(f"--trusted_settings={','.join(app.TRUSTED_SETTINGS.value)}")
    for flag in (app.JSON_LOG, app.MODEL_DIR):
        arguments_of_train += [f"--{flag.name}={flag.value}"] if flag.value else []
    return arguments_of_train


def _free_address(stack: contextlib.ExitStack) -> str:
    listener = stack.enter_context(socket.socket())
    # Bind port 0, for which the kernel chooses a free port.
    listener.bind(("localhost", 0))
    return f"localhost:{listener.getsockname()[1]}"


def _pass_on(lines: Sequence[str], name: str) -> None:
    for line in lines:
        sys.stdout.write(f"{name} | {line}")
        # Flush each line, because standard output is buffered if it goes to a file.
        sys.stdout.flush()


def _make_handler(members: Members, signals: list[int]) -> Callable[[int, Any], None]:
    """Return a signal handler that records a signal and sends it to all processes."""

    def stop(number: int, _: Any) -> None:
        signals.append(number)
        members.signal(number)

    return stop


def main() -> None:
    """Start the processes that the flags describe, and exit with the code of the run."""
    checks.at_least("--workers", WORKERS.value, 1)
    checks.at_least("--restarts", RESTARTS.value, 0)
    checks.at_least("--ps", SERVERS.value, 0)
    _, model_dir = app.load()  # Report mistakes once, before any process starts.
    # Check the lock before any process starts: if another training holds the lock, the chief would
    # fail.
    lock.require_free(model_dir)
    signals: list[int] = []
    for attempt in range(RESTARTS.value + 1):
        if attempt:
            _log.info("Starting all processes again, %d of %d", attempt, RESTARTS.value)
        members = Members(arguments(), environments(WORKERS.value, SERVERS.value, EVALUATOR.value))
        # Set a new handler in each attempt, to send signals to the new processes.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _make_handler(members, signals))
        code = members.wait()
        # Do not restart after a mistake, because the run would fail again, or after a signal of the
        # user.
        if code < _BY_SIGNAL or signals:
            break
    sys.exit(code)


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if argument != "--"]
    app.run(main)
