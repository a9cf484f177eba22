"""Runs launchers in forks of a process that has imported TensorFlow, which takes seconds.

Reads a line {"argv": [...], "cwd": "...", "output": "...", "file_bytes": null, "failing_write": [],
"keeps_op_stacks": false} and answers {"code": 2, "cpu_secs": 1.5}. `argv` holds the words after
`python -m`. The fork writes <output>.out and <output>.err, and no file larger than `file_bytes`.
`failing_writes.fail_at` gets `failing_write`. The processes that `launch.cluster` starts are forks
of that fork.
"""

import json
import logging
import os
import resource
import runpy
import signal
import subprocess
import sys
import time

from absl import flags

# These imports take seconds; the first one keeps TensorFlow's notices off the screen.
import launch.app  # noqa: F401
import mtl.tools.debugging.inspection  # noqa: F401
import mtl.tools.reports.report  # noqa: F401
import mtl.tools.scoring  # noqa: F401
import mtl.verbs  # noqa: F401
from tests import forks, op_stacks, quick_graphs
from tests.launch import failing_writes

_TIMEOUT_SECS = 300


def main() -> None:
    quick_graphs.spare_collector()
    quick_graphs.leave_out()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _run(**request)
        before = _read_clock()
        code = _wait(child)
        print(json.dumps({"code": code, "cpu_secs": _read_clock() - before}), flush=True)


def _read_clock():
    """The seconds of the processor of all forks that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(argv, cwd, output, file_bytes, failing_write, keeps_op_stacks):
    os.chdir(cwd)
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        # Python would cut the bytecode of a module, too, and every later import of it would fail.
        sys.dont_write_bytecode = True
    sys.path[0] = cwd
    op_stacks.turn_on(keeps_op_stacks)
    for descriptor, kind in ((0, None), (1, ".out"), (2, ".err")):
        path = output + kind if kind else os.devnull
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
    if argv[0] == "launch.cluster":
        subprocess.Popen = Member
    if failing_write:
        failing_writes.fail_at(*failing_write)
    _execute(argv)


class Member:
    """A process as `subprocess.Popen` starts it, but for the import of TensorFlow."""

    def __init__(self, command, env, stdout, stderr, text, start_new_session):
        reading, writing = os.pipe()
        self.returncode, self._pid = None, os.fork()
        if not self._pid:
            os.setsid()
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.environ |= env
            _forget()
            _execute(command[2:])
        os.close(writing)
        self.stdout = os.fdopen(reading)

    def poll(self):
        if self.returncode is None:
            done, status = os.waitpid(self._pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self._pid, number)


def _forget():
    """Reset the signals, loggers and flags that the launcher has set in its process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.getLogger("mtl").handlers.clear()
    for name in list(flags.FLAGS):
        flags.FLAGS[name].unparse()


def _execute(argv):
    module, *sys.argv[1:] = argv
    forks.end_after(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _wait(child: int) -> int:
    end = time.monotonic() + _TIMEOUT_SECS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


if __name__ == "__main__":
    main()
