"""Chooses the cases that `make test` runs; `make test-all` runs every case, by `--thorough`.

`tests/left_out.json` lists cases that `make test` leaves out. Each test keeps its shortest case, if
that takes less than a minute, and further short ones. The kept cases run every line of a module
that the other cases run, except lines that take long; if possible, a case in a test file that
imports the module runs the line. This command writes the list anew, from the records of
`tests.strength.reached`:

    python -m tests.strength.reached --output reached        # or with --selected, in half the time
    python -m tests.selection --reached reached

With `--selected`, only cases of `make test` are recorded, and listed cases stay on the list.

Cases that are not listed run, such as new and renamed cases. So do the cases of `make check`. Marks
decide on cases that run in other processes, because the lines of those are not recorded:

    @pytest.mark.always              # this test, whatever the list says
    @pytest.mark.thorough            # no case of this test in make test
    @pytest.mark.drawn(8)            # eight cases of this test, chosen by a hash

A case that the command line names, as in `pytest tests/x_test.py::test_y`, always runs.
"""

import argparse
import collections
import functools
import hashlib
import heapq
import json
import pathlib
from collections.abc import Iterable, Mapping

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_LIST = _ROOT / "tests" / "left_out.json"
# A case stays for lines that nobody else runs if it brings so many a second.
_LEAST_RATE = 8.0
# A test keeps its shortest case up to so many seconds: it looks at values that no other test does,
# such as whether a run that was killed continues to the bit.
_TEST_SECS = 60.0
# And further cases, of so many seconds in all, as they look at other values.
_SHORT_SECS = 1.0
# Seconds that any case takes beside its own.
_START_SECS = 0.1


def add_option(parser: pytest.Parser) -> None:
    text = "run every case: also those that make test leaves to make test-all"
    parser.addoption("--thorough", action="store_true", help=text)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what a run without `--thorough` leaves out."""
    if config.getoption("--thorough") or any("::" in name for name in config.args):
        return
    listed = read_list()
    left_out = {
        item
        for item in items
        if not item.get_closest_marker("always")
        if item.get_closest_marker("thorough") or item.nodeid in listed
    }
    for group in _group(item for item in items if item not in left_out).values():
        count = group[0].get_closest_marker("drawn").args[0]
        left_out.update(sorted(group, key=lambda item: _hash(item.name))[count:])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@functools.cache
def read_list() -> frozenset[str]:
    """Return the cases that the list names."""
    listed = json.loads(_LIST.read_text()) if _LIST.exists() else {}
    return frozenset(f"{file}::{name}" for file, names in listed.items() for name in names)


def _group(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Return the cases of each test that has the mark `drawn`."""
    groups = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn"):
            groups[item.nodeid.partition("[")[0]].append(item)
    return groups


def _hash(case: str) -> str:
    parameters = case.partition("[")[2]
    return hashlib.sha256(parameters.encode()).hexdigest()


def main() -> None:
    """Parse flags, and write the list of the cases that `make test` leaves out."""
    # pytest imports this module first, which must not import tests itself.
    from tests import imports
    from tests.strength import reached

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reached", required=True, help="a folder of tests.strength.reached")
    folder = pathlib.Path(parser.parse_args().reached)
    cases = reached.read_cases(folder)
    graph = imports.Graph(_ROOT)
    tests = {case.partition("::")[0] for case in cases} & graph.files
    near = {test: _list_near(graph, test) for test in tests}
    lines = {
        name: case.split_lines(near.get(name.partition("::")[0], ()))
        for name, case in cases.items()
    }
    kept = {name for name, case in cases.items() if case.is_quick or not case.lines}
    kept |= find_shortest({name: case.secs for name, case in cases.items()})
    kept |= choose(lines, {name: case.secs for name, case in cases.items()}, kept)
    listed = collections.defaultdict(list)
    unknown = {name for name in read_list() - cases.keys() if _exists(name)}
    for name in sorted((cases.keys() - kept) | unknown):
        file, _, case = name.partition("::")
        listed[file].append(case)
    _LIST.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
    secs = sum(cases[name].secs for name in kept), sum(case.secs for case in cases.values())
    print(f"{len(kept):,} of {len(cases):,} cases stay, {secs[0]:,.0f} of {secs[1]:,.0f} seconds")


def _exists(case: str) -> bool:
    return pathlib.Path(_ROOT, case.partition("::")[0]).exists()


def _list_near(graph, test: str) -> set[str]:
    """Return the modules that a file of tests imports, or whose package it imports."""
    named = graph.list_imports(test)
    packages = {name for name in named if name.endswith("__init__.py")}
    return named.union(*map(graph.list_imports, packages)) & graph.sources


def find_shortest(secs: Mapping[str, float]) -> set[str]:
    """Return the shortest case of each test, unless it takes more than `_TEST_SECS`."""
    shortest: dict[str, str] = {}
    for case in sorted(secs, key=lambda case: (secs[case], case)):
        shortest.setdefault(case.partition("[")[0], case)
    return {case for case in shortest.values() if secs[case] <= _TEST_SECS}


def choose(
    lines: Mapping[str, Mapping[tuple[str, bool], int]],
    secs: Mapping[str, float],
    kept: Iterable[str],
) -> set[str]:
    """Choose cases that run, beside those that are kept, every line that any case runs.

    The case with the most lines a second comes first, again and again (D. Johnson, "Approximation
    algorithms for combinatorial problems", Journal of Computer and System Sciences 9, 1974). Then
    each test gets further ones, as long as they are short.

    Args:
      lines: {case: {(source, whether the case is near): its lines as bits}}.
      secs: {case: seconds}.
      kept: the cases that run anyway.
    """
    done: dict[tuple[str, bool], int] = collections.defaultdict(int)

    def add(case: str) -> None:
        for place, bits in lines[case].items():
            done[place] |= bits

    def rate(case: str) -> float:
        gained = sum((bits & ~done[place]).bit_count() for place, bits in lines[case].items())
        return gained / (secs[case] + _START_SECS)

    for case in kept:
        add(case)
    chosen: set[str] = set()
    waiting = [(-rate(case), case) for case in lines.keys() - kept]
    heapq.heapify(waiting)
    while waiting:
        before, case = heapq.heappop(waiting)
        now = -rate(case)
        if -now < _LEAST_RATE:
            continue
        if now == before or not waiting or now <= waiting[0][0]:
            chosen.add(case)
            add(case)
        else:  # Cases that were chosen since run some of its lines.
            heapq.heappush(waiting, (now, case))
    return chosen | _list_short(secs, {*kept, *chosen})


def _list_short(secs: Mapping[str, float], kept: set[str]) -> set[str]:
    """Return further cases of each test, until its cases take `_SHORT_SECS`."""
    total: dict[str, float] = collections.defaultdict(float)
    for case in kept:
        total[case.partition("[")[0]] += secs[case]
    found = set()
    for case in sorted(secs.keys() - kept, key=lambda case: (_hash(case), case)):
        test = case.partition("[")[0]
        if total[test] + secs[case] <= _SHORT_SECS:
            total[test] += secs[case]
            found.add(case)
    return found


if __name__ == "__main__":
    main()
