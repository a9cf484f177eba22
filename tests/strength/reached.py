"""Records which lines of mtl and launch each file of tests runs; also a plugin of pytest.

python -m tests.strength.reached --output reached.json    # goes on where it was stopped
reached = read(pathlib.Path("reached.json"))              # {test: {source: {line, ...}}}

Lines that run in other processes, such as those of launchers, are not seen, and fixtures of a
session count for the first file that uses them alone.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import coverage
import pytest

from tests import imports

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SOURCES = ("mtl", "launch")
_AT_A_TIME = 40

Reached = dict[str, dict[str, set[int]]]


def main() -> None:
    """Parse flags, and run the files of tests that the output does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="a file of JSON, gone on with")
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    output = pathlib.Path(options.output)
    tests, held = imports.Graph(_ROOT).tests, read(output)
    while waiting := [test for test in tests if test not in held]:
        chunk = waiting[:_AT_A_TIME]
        print(f"{len(waiting)} of {len(tests)} files are left", file=sys.stderr)
        held |= {test: {} for test in chunk} | _run(chunk, options.rest)
        lines = {t: {s: sorted(n) for s, n in by.items()} for t, by in held.items()}
        output.write_text(json.dumps(lines))


def read(path: pathlib.Path) -> Reached:
    """Return the lines of each source that each file of tests runs."""
    held = json.loads(path.read_text()) if path.exists() else {}
    return {test: {name: set(lines) for name, lines in by.items()} for test, by in held.items()}


def list_tests(graph: imports.Graph, reached: Reached, source: str, line: int) -> list[str]:
    """Return the files of tests that run a line, the nearest first.

    If no file runs it by itself, as it runs while a module is imported, those that run another line
    of the source are returned. A file is taken that may run the line in another process, or of
    which nothing is known.
    """
    by_imports = graph.list_tests([source])
    running = {test for test, by in reached.items() if line in by.get(source, ())}
    running = running or {test for test, by in reached.items() if source in by}
    near = [test for test in by_imports if test in running or test not in reached]
    far = [test for test in by_imports if test not in near and graph.starts_processes(test)]
    return near + sorted(running.intersection(graph.tests) - set(near)) + far


def _run(tests: list[str], rest: list[str]) -> Reached:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, *rest, *tests]
        command += [f"--reached={folder}", "--numprocesses", "auto", "--dist", "worksteal"]
        done = subprocess.run(command, cwd=_ROOT)
        if done.returncode not in (0, 1):  # Cases that fail have run lines, too.
            sys.exit(f"pytest ended with {done.returncode}: {tests} are not recorded.")
        return read_folder(pathlib.Path(folder))


def read_folder(folder: pathlib.Path) -> Reached:
    """Return what the processes of one run of pytest have recorded."""
    found: Reached = collections.defaultdict(dict)
    for path in folder.iterdir():
        for test, by in _list_lines(path).items():
            for name, lines in by.items():
                found[test].setdefault(name, set()).update(lines)
    return found


def _list_lines(path: pathlib.Path) -> Reached:
    data = coverage.CoverageData(str(path))
    data.read()
    found: Reached = {}
    for test in filter(None, data.measured_contexts()):
        data.set_query_context(test)
        for file in data.measured_files():
            if lines := data.lines(file):
                name = pathlib.Path(file).relative_to(_ROOT).as_posix()
                found.setdefault(test, {})[name] = set(lines)
    return found


class _Recorder:
    def __init__(self, folder: str, worker: str):
        measured = [str(_ROOT / name / "*") for name in _SOURCES]
        file = str(pathlib.Path(folder, worker))
        self._coverage = coverage.Coverage(file, include=measured, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._coverage.switch_context(item.nodeid.partition("::")[0])

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reached", help="a folder for the lines that are reached")


def pytest_configure(config: pytest.Config) -> None:
    folder, worker = config.getoption("--reached"), getattr(config, "workerinput", None)
    if folder and worker:  # The process that deals out the tests runs none.
        config.pluginmanager.register(_Recorder(folder, worker["workerid"]))


if __name__ == "__main__":
    main()
