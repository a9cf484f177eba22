"""Records which lines of mtl and launch each case of the tests runs; also a plugin of pytest.

python -m tests.strength.reached --output reached    # a folder; goes on where it was stopped
cases = read_cases(pathlib.Path("reached"))          # {case: Case(secs, is_quick, lines)}

Lines that run in other processes, such as launchers, are not recorded. The lines of a fixture that
several cases share count only for the first case.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence

import coverage
import pytest

from tests import imports, selection

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SOURCES = ("mtl", "launch")
_AT_A_TIME = 40
_CASES = "cases.json"


@dataclasses.dataclass
class Case:
    """A case that has run.

    Attributes:
      secs: the seconds that it took, with its fixtures.
      is_quick: whether it is a case of `make check`.
      lines: {source: the lines that it ran, as bits}.
    """

    secs: float
    is_quick: bool
    lines: dict[str, int] = dataclasses.field(default_factory=dict)

    def split_lines(self, near: Container[str]) -> Mapping[tuple[str, bool], int]:
        """Return {(source, False): lines}, and the same with True for sources that are near."""
        found = {(name, False): bits for name, bits in self.lines.items()}
        return found | {(name, True): bits for name, bits in self.lines.items() if name in near}


Cases = Mapping[str, Case]


def main() -> None:
    """Parse flags, and run the files of tests that the output does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="a folder, gone on with")
    text = "record the cases of make test alone, and not those that it leaves out"
    parser.add_argument("--selected", action="store_true", help=text)
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    output = pathlib.Path(options.output)
    tests = imports.Graph(_ROOT).tests
    while waiting := [test for test in tests if test not in _list_done(output)]:
        chunk = waiting[:_AT_A_TIME]
        print(f"{len(waiting)} of {len(tests)} files are left", file=sys.stderr)
        scope = [] if options.selected else ["--thorough"]
        _run(chunk, [*scope, *options.rest], output)


def read_cases(folder: pathlib.Path) -> dict[str, Case]:
    """Return {case: what it ran}."""
    found = {}
    for path in folder.glob(f"*/{_CASES}"):
        for name, (secs, is_quick) in json.loads(path.read_text())["cases"].items():
            found[name] = Case(secs, is_quick)
        for data in path.parent.glob("gw*"):
            for name, source, bits in _list_lines(data):
                if name in found:
                    found[name].lines[source] = found[name].lines.get(source, 0) | bits
    return found


def list_cases(graph: imports.Graph, cases: Cases, source: str, line: int) -> list[str]:
    """Return the cases of `make test` that run a line, those of the nearest files first."""
    files = {file: place for place, file in enumerate(graph.list_tests([source]))}
    left_out = selection.read_list()
    running = [
        (files.get(name.partition("::")[0], len(files)), case.secs, name)
        for name, case in cases.items()
        if case.lines.get(source, 0) >> line & 1 and name not in left_out
    ]
    return [name for _, _, name in sorted(running)]


def list_files(graph: imports.Graph, cases: Cases, source: str, line: int) -> list[str]:
    """Return the files of tests that run a line, the nearest first.

    If no file runs it by itself, as it runs while a module is imported, those that run another line
    of the source are returned. A file is taken that may run the line in another process, or of
    which nothing is known.
    """
    by_imports, known = graph.list_tests([source]), {name.partition("::")[0] for name in cases}
    lines: collections.Counter[str] = collections.Counter()
    for name, case in cases.items():
        if bits := case.lines.get(source, 0):
            file = name.partition("::")[0]
            lines[file] = lines[file] | bits
    running = {file for file, bits in lines.items() if bits >> line & 1} or set(lines)
    near = [test for test in by_imports if test in running or test not in known]
    far = [test for test in by_imports if test not in near and graph.starts_processes(test)]
    return near + sorted(running.intersection(graph.tests) - set(near)) + far


def cut(names: Sequence[str], cases: Cases, secs: float) -> list[list[str]]:
    """Return cases in parts, each of which takes about so many seconds."""
    parts: list[list[str]] = []
    total = secs
    for name in names:
        if total >= secs:
            parts.append([])
            total = 0.0
        parts[-1].append(name)
        total += cases[name].secs
    return parts


def _run(tests: list[str], rest: list[str], output: pathlib.Path) -> None:
    numbers = (output / str(number) for number in itertools.count())
    folder = next(path for path in numbers if not (path / _CASES).exists())
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, *rest]
    command += [*tests, f"--reached={folder.absolute()}", "--numprocesses", "auto"]
    done = subprocess.run([*command, "--dist", "worksteal"], cwd=_ROOT)
    if done.returncode not in (0, 1):  # Cases that fail have run lines, too.
        sys.exit(f"pytest ended with {done.returncode}: {tests} are not recorded.")
    cases = json.loads((folder / _CASES).read_text())
    (folder / _CASES).write_text(json.dumps({**cases, "files": tests}))


def _list_done(folder: pathlib.Path) -> set[str]:
    paths = folder.glob(f"*/{_CASES}")
    return {test for path in paths for test in json.loads(path.read_text()).get("files", ())}


def _list_lines(path: pathlib.Path) -> Iterator[tuple[str, str, int]]:
    """Yield (case, source, lines as bits)."""
    data = coverage.CoverageData(str(path))
    data.read()
    for file in data.measured_files():
        found: collections.Counter[str] = collections.Counter()
        for line, cases in data.contexts_by_lineno(file).items():
            for case in filter(None, cases):
                found[case] += 1 << line
        name = pathlib.Path(file).relative_to(_ROOT).as_posix()
        yield from ((case, name, bits) for case, bits in found.items())


class _Recorder:
    """Records the lines that a process of pytest runs."""

    def __init__(self, folder: str, worker: str):
        measured = [str(_ROOT / name / "*") for name in _SOURCES]
        file = str(pathlib.Path(folder, worker))
        self._coverage = coverage.Coverage(file, include=measured, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._coverage.switch_context(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


class _Clock:
    """Notes the seconds of all cases, in the process that deals them out."""

    def __init__(self, folder: str):
        self._path = pathlib.Path(folder, _CASES)
        self._secs: collections.Counter[str] = collections.Counter()
        self._quick: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._secs[report.nodeid] += report.duration
        self._quick[report.nodeid] = not {"medium", "slow"} & set(report.keywords)

    def pytest_sessionfinish(self) -> None:
        cases = {name: [round(secs, 3), self._quick[name]] for name, secs in self._secs.items()}
        self._path.write_text(json.dumps({"cases": cases}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reached", help="a folder for the lines that are reached")


def pytest_configure(config: pytest.Config) -> None:
    folder, worker = config.getoption("--reached"), getattr(config, "workerinput", None)
    if folder:
        own = _Recorder(folder, worker["workerid"]) if worker else _Clock(folder)
        config.pluginmanager.register(own)


if __name__ == "__main__":
    main()
