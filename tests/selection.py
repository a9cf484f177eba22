"""Chooses the cases that `make test` runs; `make test-all` runs every case, by `--thorough`.

Two marks leave cases to `make test-all`:

    @pytest.mark.thorough            # all cases of this test
    @pytest.mark.drawn(8)            # all of its cases but eight

A hash of its parameters decides whether a case is among the eight: a new row changes one of them at
most, and tests that share the rows of a fixture draw the same ones. A case that the command line
names, as in `pytest tests/x_test.py::test_y`, always runs.
"""

import collections
import hashlib

import pytest


def add_option(parser: pytest.Parser) -> None:
    text = "run every case: also those that make test leaves to make test-all"
    parser.addoption("--thorough", action="store_true", help=text)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what a run without `--thorough` leaves out."""
    if config.getoption("--thorough") or any("::" in name for name in config.args):
        return
    left_out = {item for item in items if item.get_closest_marker("thorough")}
    for group in _group(item for item in items if item not in left_out).values():
        count = group[0].get_closest_marker("drawn").args[0]
        left_out.update(sorted(group, key=_hash)[count:])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _group(items) -> dict[str, list[pytest.Item]]:
    """Return the cases of each test that has the mark `drawn`."""
    groups = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn"):
            groups[item.nodeid.partition("[")[0]].append(item)
    return groups


def _hash(item: pytest.Item) -> str:
    parameters = item.name.partition("[")[2]
    return hashlib.sha256(parameters.encode()).hexdigest()
