"""Runs the tests on every TensorFlow and Python that this project supports and this machine has.

python -m tests.matrix                    # one Python for each TensorFlow
python -m tests.matrix --every_python     # all pairs
python -m tests.matrix --tensorflow 2.15 --tests tests/compat --slow
python -m tests.matrix --tensorflow 2.15 --install
python -m tests.matrix --shard 1 --shards 4       # every fourth environment, from the first on
# Prints a table; an interpreter that is not here is skipped, and the table says so.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

from mtl import versions

ROOT = pathlib.Path(__file__).resolve().parents[1]
OLD_PROTOBUF = ROOT / "constraints" / "tensorflow_2.15_to_2.19.txt"
_ON_ALL_CORES = ("--numprocesses", "auto", "--dist", "worksteal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One environment: a TensorFlow minor version on a Python minor version."""

    tensorflow: str
    python: str

    @property
    def name(self) -> str:
        return f"tf{self.tensorflow}-py{self.python}"

    @property
    def requirements(self) -> list[str]:
        """The arguments of pip beside the project: the version, and limits for older protobufs."""
        constraints = ["-c", str(OLD_PROTOBUF)] if int(self.tensorflow[2:]) < 20 else []
        return [f"tensorflow~={self.tensorflow}.0", *constraints]


def rows(tensorflows: list[str], every_python: bool) -> list[Row]:
    """The pairs to run: all, or for each TensorFlow the Python that came least often before it."""
    found = []
    for tensorflow, pythons in versions.PYTHONS.items():
        if not every_python:
            used = [row.python for row in found]
            pythons = (min(pythons, key=used.count),)
        found += [Row(tensorflow=tensorflow, python=python) for python in pythons]
    return [row for row in found if row.tensorflow in tensorflows]


def deal(found: list[Row], shard: int, shards: int) -> list[Row]:
    """Return the rows that machine `shard` of `shards` runs; the first machine is 1."""
    return found[shard - 1 :: shards]


def interpreter(python: str) -> str | None:
    """The path of Python `python`, on the PATH or under pyenv, or None."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    under_pyenv = sorted(root.glob(f"versions/{python}.*/bin/python"))
    candidates = [*map(str, under_pyenv), shutil.which(f"python{python}")]
    return next((path for path in candidates if path and _is_python(path, python)), None)


def _is_python(path: str, python: str) -> bool:
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([path, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() == python


def run(row: Row, options: argparse.Namespace) -> str:
    """Makes or reuses the environment, runs the tests, and says in a few words how it went."""
    base = interpreter(row.python)
    if not base:
        return f"skipped: no Python {row.python} here"
    folder = options.envs / row.name
    log = options.envs / f"{row.name}.log"
    print(f"{row.name}: to follow it, tail -f {log}", file=sys.stderr)
    with log.open("w") as output:
        if not _install(base, folder, row, output):
            return f"FAILED to install, see {log}"
        if options.install:
            return "installed"
        result = _test(folder / "bin" / "python", options, output)
    if options.discard:
        shutil.rmtree(folder)
    return result if "FAILED" not in result else f"{result}, see {log}"


def _install(base: str, folder: pathlib.Path, row: Row, output) -> bool:
    if not folder.exists():
        subprocess.run([base, "-m", "venv", folder], check=True, stdout=output, stderr=output)
    command = [folder / "bin" / "python", "-m", "pip", "install", "-q", f"{ROOT}[dev]"]
    done = subprocess.run([*command, *row.requirements], stdout=output, stderr=output)
    return done.returncode == 0


def _test(python: pathlib.Path, options: argparse.Namespace, output) -> str:
    report = options.envs / "report.xml"
    report.unlink(missing_ok=True)
    selection = [] if options.slow else ["-m", "not slow or main_job"]
    selection += ["-k", options.match] if options.match else []
    subprocess.run(
        [
            python,
            "-m",
            "pytest",
            *_ON_ALL_CORES,
            *options.tests,
            *selection,
            f"--junitxml={report}",
        ],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=output,
        stderr=output,
    )
    return outcome(report)


def outcome(report: pathlib.Path) -> str:
    """'12 passed, 1 skipped' or '11 passed, 1 FAILED' from pytest's XML report."""
    if not report.exists():
        return "FAILED to run"
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
        for key in counts:
            counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    parts = {"passed": passed, "FAILED": failed, "skipped": counts["skipped"]}
    if not counts["tests"]:
        return "FAILED: no test ran"
    return ", ".join(f"{number} {name}" for name, number in parts.items() if number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--envs", type=pathlib.Path, default=".matrix", help="folder for environments"
    )
    parser.add_argument(
        "--tensorflow", nargs="+", default=list(versions.PYTHONS), choices=versions.PYTHONS
    )
    parser.add_argument("--every_python", action="store_true", help="all Pythons, not one each")
    parser.add_argument("--shard", type=int, default=1, help="which of the shards, from 1")
    parser.add_argument("--shards", type=int, default=1, help="over how many machines all is dealt")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="what pytest is given")
    parser.add_argument("--match", help="of these the tests that fit pytest's expression -k")
    parser.add_argument("--install", action="store_true", help="run no tests")
    parser.add_argument("--slow", action="store_true", help="run the slow tests as well")
    parser.add_argument(
        "--discard", action="store_true", help="remove each environment after its run (3 GB each)"
    )
    parser.add_argument("--all_here", action="store_true", help="fail if a Python is not here")
    options = parser.parse_args()
    if not 1 <= options.shard <= options.shards:
        parser.error(f"--shard must be between 1 and --shards, got {options.shard}")
    return options


def main() -> int:
    """Prints one line for each environment; 1 if any failed."""
    options = _options()
    options.envs = options.envs.resolve()
    options.envs.mkdir(parents=True, exist_ok=True)
    print(f"{'TensorFlow':<12}{'Python':<8}{'seconds':>8}  result")
    results = []
    for row in deal(rows(options.tensorflow, options.every_python), options.shard, options.shards):
        start = time.monotonic()
        results.append(run(row, options))
        seconds = time.monotonic() - start
        print(f"{row.tensorflow:<12}{row.python:<8}{seconds:>8.0f}  {results[-1]}", flush=True)
    wrong = ("FAILED", "skipped: no") if options.all_here else ("FAILED",)
    return int(any(word in result for result in results for word in wrong))


if __name__ == "__main__":
    sys.exit(main())
