"""Standard streams that are closed early, full, or closed from the start, in their own process."""

import os
import subprocess
import sys

import pytest

from tests.launch import conftest

# Without TensorFlow, as launch/__init__.py would import it.
START = f"""
import sys, types
package = types.ModuleType("launch")
package.__path__ = [{str(conftest.ROOT / "launch")!r}]
sys.modules["launch"] = package
from mtl import checks
from launch.processes import streams
def main():
"""
END = """
try:
    with streams.guarded():
        main()
except checks.UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
print("after", file=sys.stderr)
"""
PRINT = "    for i in range({}): print('a line of the output', i)"


def run(body, stdout):
    return subprocess.run(
        [sys.executable, "-c", START + body + END],
        env=conftest.environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("count", [1, 100_000])
def test_nobody_reads(count):
    reading, writing = os.pipe()
    os.close(reading)
    done = run(PRINT.format(count), writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("count", [1, 100_000])
def test_a_full_disk(count):
    with open("/dev/full", "w") as full:
        done = run(PRINT.format(count), full)
    said = "standard output must be writable, got 'No space left on device'.\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.medium
@pytest.mark.parametrize("nowhere", ["2>&1 >&3 | true", "3>&1 2>/dev/full"])
def test_work_outlives_the_reader_of_its_log(nowhere, tmp_path):
    wait = "    import time; time.sleep(0.2)\n"
    log = "    for i in range(20_000): print('a line of the log', i, file=sys.stderr)\n"
    body = wait + log + f"    open({str(tmp_path / 'done')!r}, 'w').close()\n"
    script = f'exec 3>&1; {sys.executable} -c "$0" {nowhere}'
    command = ["bash", "-c", script, START + body + END]
    subprocess.run(command, env=conftest.environment(), stdout=subprocess.PIPE)
    assert (tmp_path / "done").exists()


def test_other_errors_are_left_alone():
    done = run("    raise BrokenPipeError('of a socket')", subprocess.PIPE)
    assert done.returncode == 1 and "BrokenPipeError: of a socket" in done.stderr


def test_all_goes_well():
    done = run(PRINT.format(3), subprocess.PIPE)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "after\n", 3)


def test_closed_from_the_start():
    script = START + PRINT.format(3) + END
    command = ["sh", "-c", f'exec {sys.executable} -c "$0" >&-', script]
    done = subprocess.run(command, env=conftest.environment(), stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "after\n")
