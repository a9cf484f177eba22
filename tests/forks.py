"""Forks of a process that has imported TensorFlow, which takes seconds.

with forks.Server("tensorflow") as server:
    process = server.start("import tensorflow as tf; print(tf.__version__)", {"TF_CONFIG": "{}"})
    code, output, errors = process.wait(timeout_secs=60)
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

_ROOT = pathlib.Path(__file__).resolve().parents[1]


class Server(contextlib.AbstractContextManager):
    """A process that has imported modules and waits for code to run after that."""

    def __init__(self, *modules, **environment):
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", *modules],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, code, environment=None):
        """Runs code in a fork, with more variables of the environment."""
        self._count += 1
        output = os.path.join(self._folder.name, str(self._count))
        request = {"code": code, "environment": environment or {}, "output": output}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Fork(int(self._process.stdout.readline()), output)

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)
        self._folder.cleanup()


class Fork:
    """A fork that runs or has ended."""

    def __init__(self, pid, output):
        self._pid, self._output = pid, pathlib.Path(output)

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        path = self._output.with_suffix(".code")
        return int(path.read_text()) if path.exists() else None

    def ends_within(self, secs):
        """Waits, and says whether it has ended by then."""
        end = time.monotonic() + secs
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.poll() is not None

    def wait(self, timeout_secs):
        """(exit code, standard output, standard error)."""
        assert self.ends_within(timeout_secs), self._read(".err")[-3000:]
        return self.poll(), self._read(".out"), self._read(".err")

    def wait_for(self, line):
        """Waits until it has written a line."""
        end = time.monotonic() + 60
        while line not in self._read(".out").splitlines():
            assert self.poll() is None and time.monotonic() < end, self._read(".err")
            time.sleep(0.02)

    def kill(self):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.wait(timeout_secs=30)

    def _read(self, ending):
        path = self._output.with_suffix(ending)
        return path.read_text() if path.exists() else ""


def _serve(modules):
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for `_keep`.
    for line in sys.stdin:
        request = json.loads(line)
        if not os.fork():
            _keep(**request)


def _keep(code, environment, output):
    """Starts the fork, says its process id, and writes down how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        _run(code, environment, output)
    print(child, flush=True)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    pathlib.Path(f"{output}.partial").write_text(str(status))
    os.replace(f"{output}.partial", f"{output}.code")
    os._exit(0)


def _run(code, environment, output):
    for descriptor, path in ((0, os.devnull), (1, f"{output}.out"), (2, f"{output}.err")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    os.environ |= environment
    end_after(lambda: exec(compile(code, "<fork>", "exec"), {"__name__": "__main__"}))


def end_after(work):
    """Ends this fork after a piece of work, with the exit code that a process would have."""
    code = 0
    try:
        work()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(sys.argv[1:])
