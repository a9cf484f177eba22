"""Someone who types the blocks of a page, one after the other, in a folder.

reader = page_reader.Reader(launch_in, tmp_path)
for block in pages.list_blocks("have_a_table.md"):
    reader.read(block)
assert not reader.problems, reader.report()
"""

import re
import shlex
import signal
import socket
import subprocess
import sys
import time

from tests import pages
from tests.launch import conftest

# {command that the reader skips: the reason}. All other commands of a page run.
_NOT_RUN = {r"make test": "it runs these tests", r"make demo": "it installs"}
_JOB_SECS = 120.0


class Reader:
    """Saves files, applies changes to them, types commands, and compares what they print.

    `mtl` and `python -m` run in forks of the fork server, all other commands in a shell, which
    finds `mtl` and `python`. A command that ends in `&` runs until `kill %1`, `wait` or `close`.
    """

    def __init__(self, launch_in, folder):
        self._launch_in, self._folder = launch_in, folder
        self._jobs = []
        self._ports = dict(zip(("8500", "8501"), _find_ports(), strict=True))
        self._printed, self.problems, self.typed = None, [], []

    def read(self, block):
        """Save or change a file, or type commands."""
        named = re.search(r"Save this as\s`([\w.]+)`", block.above)
        changed = re.search(r"In `([\w.]+)`", block.above)
        titled = re.match(r"# (\w+\.(?:py|gin|sh))\n", block.text)
        if named or titled:
            (self._folder / (named or titled)[1]).write_text(block.text)
        elif block.kind == "diff":
            path = self._folder / changed[1]
            path.write_text(pages.apply_diff(block.text, path.read_text()))
        elif block.kind == "":
            for command, expected in pages.split_commands(block):
                self._compare(command, expected)

    def close(self):
        """End the commands that run beside the others."""
        for job in self._jobs:
            job.end()

    def report(self):
        """Return the problems as one text."""
        return "\n\n".join(self.problems)

    def _compare(self, command, expected):
        if command:
            is_left = any(re.match(pattern, command) for pattern in _NOT_RUN)
            self._printed = None if is_left else self._type(command, expected)
        if self._printed is not None:
            missing = pages.find_missing(self._move_ports(expected), self._printed)
            if missing is not None:
                self.problems.append(f"{command}\nnot printed: {missing}\n{self._printed}")

    def _type(self, command, expected):
        self.typed.append(command)
        command = self._move_ports(command)
        if command.startswith("mtl serve"):
            ports = f"--rest_port {self._ports['8501']} --grpc_port {self._ports['8500']}"
            command = command.replace("mtl serve", f"mtl serve {ports}", 1)
        if command.endswith("&"):
            self._jobs.append(Job(command, self._folder, f"job_{len(self._jobs)}"))
            return self._jobs[-1].read_until(self._move_ports(expected))
        if command == "wait":
            return "".join(job.wait() for job in self._jobs)
        if command == "kill %1":
            return self._jobs[0].end()
        fails = bool(re.search(r"^\w*Error: ", expected, re.M))
        words = shlex.split(command, comments=True)
        if words[0] == "mtl" or words[1:2] == ["-m"]:
            verb, *args = words[1:] if words[0] == "mtl" else words[2:]
            done = self._launch_in(self._folder, verb.removeprefix("launch."), *args)
            assert done.code == (2 if fails else 0), f"{command}\n{done.err}"
            return done.err + done.out
        done = _start(command, self._folder, subprocess.PIPE)
        text, _ = done.communicate()
        assert bool(done.returncode) == fails, f"{command}\n{text}"
        return text

    def _move_ports(self, text):
        """Use ports that are free here in place of the usual ones."""
        return re.sub(r"\b850[01]\b", lambda port: self._ports[port[0]], text)


class Job:
    """A command that runs while the reader types others."""

    def __init__(self, command, folder, name):
        self._path = folder / f".{name}.txt"
        with open(self._path, "w") as output:
            self._process = _start(command.rstrip("& "), folder, output)

    def read_until(self, expected):
        """Return the output as soon as it has the expected lines, or after some time."""
        end = time.monotonic() + _JOB_SECS
        while time.monotonic() < end and self._process.poll() is None:
            if pages.find_missing(expected, self._path.read_text()) is None:
                break
            time.sleep(0.1)
        return self._path.read_text()

    def wait(self):
        """Wait for its end; return all that it has printed."""
        assert self._process.wait(_JOB_SECS) == 0, self._path.read_text()
        return self._path.read_text()

    def end(self):
        """Stop it, if it still runs; return all that it has printed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_JOB_SECS)
        return self._path.read_text()


def _start(command, folder, output):
    programs = folder / ".programs"
    if not programs.exists():
        programs.mkdir()
        for name, text in {
            "python": f'exec {sys.executable} "$@"',
            "mtl": f'verb=$1; shift; exec {sys.executable} -m "launch.$verb" "$@"',
        }.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
    environment = conftest.environment()
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}" if re.match(r"mtl |bash ", command) else command],
        cwd=folder,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _find_ports():
    listeners = [socket.socket() for _ in range(2)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [str(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
