r"""Trains in several processes of this machine, each with its TF_CONFIG, as on several machines.

The first worker is the chief. With --ps, workers train by parameter servers, otherwise in step.
Flags after -- go to launch.train. If one process fails, all end, with its exit code.

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

WORKERS = flags.DEFINE_integer("workers", 2, "The number of workers, with the chief.")
SERVERS = flags.DEFINE_integer("ps", 0, "The number of parameter servers.")
EVALUATOR = flags.DEFINE_boolean("evaluator", False, "Evaluate in a separate process.")
RESTARTS = flags.DEFINE_integer(
    "restarts", 0, "The most restarts of all after one process is lost or stopped."
)

_log = logging.getLogger("mtl.distribution.tf_config")

# After a failure, the other processes have this long to save and end.
_GRACE_SECS = 30.0

# Exit codes above this one mean that a signal ended the process.
_BY_SIGNAL = 128


class Members:
    """The processes of a run. Standard output gets their lines, each with the process's name."""

    def __init__(self, arguments: Sequence[str], environments: Mapping[str, Mapping[str, str]]):
        self._processes = {
            name: subprocess.Popen(
                [*here.make_command("train"), *arguments],
                # Each member ends by itself if this process is killed.
                env={**os.environ, **environment, **launcher_watch.environment()},
                stdout=subprocess.PIPE,
                # One stream, so that lines keep their order.
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # A Ctrl-C reaches them through us, once.
            )
            for name, environment in environments.items()
        }
        # Names are filled up with spaces, so that the lines begin below each other.
        width = max(map(len, self._processes))
        self._readers = [
            threading.Thread(target=_pass_on, args=(process.stdout, name.ljust(width)))
            for name, process in self._processes.items()
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Return the exit code of the first process that failed, after ending the others.

        Returns 0 if all processes succeed.
        """
        code = self._find_code()
        if code:
            self._end_members()
        for reader in self._readers:
            reader.join()
        # `Popen` returns -15 for SIGTERM, a shell 143.
        return code if code >= 0 else _BY_SIGNAL - code

    def _find_code(self) -> int:
        """Wait until a process fails or all have ended; return the first code that is not 0."""
        while True:
            # A loop in place of `wait`: any of the processes may be the first to fail.
            codes = [process.poll() for process in self._processes.values()]
            failed = next(filter(None, codes), 0)
            if failed or None not in codes:
                return failed
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """Send a signal to all processes that still run."""
        for process in self._processes.values():
            # It may end between two signals.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _end_members(self) -> None:
        """Wait for the others to end; then send SIGTERM, and at last SIGKILL."""
        # Members notice a lost one themselves, and may save before they end.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                self.signal(number)
            end = time.monotonic() + _GRACE_SECS / 2
            while time.monotonic() < end:
                if all(process.poll() is not None for process in self._processes.values()):
                    return
                time.sleep(0.1)


def environments(workers: int, servers: int, evaluator: bool) -> dict[str, dict[str, str]]:
    """Return {name of a process: its TF_CONFIG}, with free ports of this machine.

    Args:
      workers: the number of workers, with the chief, from 1 on.
      servers: the number of parameter servers; 0 trains without them.
      evaluator: True adds a process that evaluates.
    """
    counts = {"chief": 1, "worker": workers - 1, "ps": servers}
    # All sockets stay open until each process has its port: so no port comes twice.
    with contextlib.ExitStack() as stack:
        jobs = {
            job: [_free_address(stack) for _ in range(count)]
            for job, count in counts.items()
            if count
        }
    places = [(job, index) for job, addresses in jobs.items() for index in range(len(addresses))]
    # TensorFlow does not count an evaluator among the members of a cluster.
    places += [("evaluator", 0)] if evaluator else []
    return {
        f"{job}-{index}": {
            "TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})
        }
        for job, index in places
    }


def arguments() -> list[str]:
    """Return the flags of launch.train."""
    params = [*app.GIN_PARAM.value]
    if EVALUATOR.value:
        params.append("Distribution.evaluator = True")
    found = [f"--gin_file={path}" for path in app.GIN_FILE.value]
    found += [f"--gin_param={param}" for param in params]
    if app.TRUSTED.value is not None:
        found.append(f"--trusted_packages={','.join(app.TRUSTED.value)}")
    if app.TRUSTED_SETTINGS.value:
        found.append(f"--trusted_settings={','.join(app.TRUSTED_SETTINGS.value)}")
    for flag in (app.JSON_LOG, app.MODEL_DIR):
        found += [f"--{flag.name}={flag.value}"] if flag.value else []
    return found


def _free_address(stack: contextlib.ExitStack) -> str:
    listener = stack.enter_context(socket.socket())
    # Port 0 lets the kernel choose a free one.
    listener.bind(("localhost", 0))
    return f"localhost:{listener.getsockname()[1]}"


def _pass_on(lines: Sequence[str], name: str) -> None:
    for line in lines:
        sys.stdout.write(f"{name} | {line}")
        # Standard output is buffered if it goes to a file.
        sys.stdout.flush()


def _make_handler(members: Members, asked: list[int]) -> Callable[[int, Any], None]:
    """Return a signal handler that notes a signal and sends it to all members."""

    def stop(number: int, _: Any) -> None:
        asked.append(number)
        members.signal(number)

    return stop


def main() -> None:
    """Start the processes that the flags describe, and exit with their common code."""
    checks.at_least("--workers", WORKERS.value, 1)
    checks.at_least("--restarts", RESTARTS.value, 0)
    checks.at_least("--ps", SERVERS.value, 0)
    _, model_dir = app.load()  # A mistake shows once, before anything is started.
    # Otherwise all processes would start, and each would fail at the lock.
    lock.require_free(model_dir)
    asked: list[int] = []
    for attempt in range(RESTARTS.value + 1):
        if attempt:
            _log.info("Starting all again, %d of %d", attempt, RESTARTS.value)
        members = Members(arguments(), environments(WORKERS.value, SERVERS.value, EVALUATOR.value))
        # Anew for each attempt, as a handler holds its members.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _make_handler(members, asked))
        code = members.wait()
        # A mistake would fail again, and a stop that somebody asked for is final.
        if code < _BY_SIGNAL or asked:
            break
    sys.exit(code)


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if argument != "--"]
    app.run(main)
