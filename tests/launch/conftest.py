"""The launchers as a user runs them: arguments in; exit code, standard output and error out."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from mtl.serving import exporter
from tests import budgets, op_stacks

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a mistake that a user can fix."""
        assert self.code == 2, self
        *progress, line = self.err.splitlines()
        assert line.startswith("Error: ") and not self.out, self
        known = r"Training|Going on|step |Still |Preparing|Frozen|Warm start"
        known += r"|Warning: (.* replaces |Task .* (has classes|makes up) )|\S+ goes on "
        assert all(re.match(known, said) for said in progress), self
        return line.removeprefix("Error: ")


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def run_process(cwd, *argv) -> Result:
    """Run a module in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", *argv], cwd=cwd, env=environment(), capture_output=True, text=True
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def server():
    """The fork server's process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.fork_server"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    before = budgets.read_children()
    process.wait(timeout=30)
    budgets.add_child(before - budgets.read_children())  # Each fork was counted as it ended.


@pytest.fixture(scope="session")
def launch_in(server, tmp_path_factory):
    """launch_in(directory, "train", "--gin_file", "x.gin").

    No file goes beyond `file_bytes`; of `failing_write`, (3, "counted"), the third write fails.
    """

    def run(directory, verb: str, *args: str, file_bytes=None, failing_write=None) -> Result:
        output = str(tmp_path_factory.mktemp("output") / verb)
        request = {"argv": [f"launch.{verb}", *args], "cwd": str(directory), "output": output}
        request |= {"file_bytes": file_bytes, "failing_write": failing_write}
        request["keeps_op_stacks"] = op_stacks.are_on()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        budgets.add_child(answer["cpu_secs"])
        texts = [pathlib.Path(output + end).read_text() for end in (".out", ".err")]
        result = Result(answer["code"], *texts)
        assert exporter.REWRITING_FAILED not in result.err, result
        return result

    return run


@pytest.fixture
def launch(launch_in, tmp_path):
    """launch("train", "--gin_file", "x.gin") in `tmp_path`."""
    return functools.partial(launch_in, tmp_path)
