"""Tells the cost of each file of tests, in units that mean about the same on every machine.

python -m pytest --numprocesses auto --budgets tell     # the dearest files, at the end
python -m pytest --numprocesses auto --dist loadfile --budgets refuse   # fails beyond a budget
python -m pytest --numprocesses auto --dist loadfile --budgets write    # notes today's costs

A unit is the time of the processor that a probe takes: it builds a fixed graph fifty times. Each
process of pytest times the probe when it starts and once a minute, because the speed of a machine
changes by half while tests run. A budget is 1.5 times the cost of the file when it was noted. If
several processes run a file, each makes its fixtures: `--dist loadfile` keeps it in one process.
"""

import collections
import json
import pathlib
import resource
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TABLE = _ROOT / "tests" / "budgets.json"
_SLACK = 1.5
# A file below this needs no line in the table.
_LEAST_UNITS = 10.0
_SHOWN = 20
_PROBE_EVERY_SECS = 60.0
# A probe between cases costs less than the first, and the mean of some is taken.
_FIRST_BUILDS, _NEXT_BUILDS, _MEAN_OF = 50, 10, 3

_of_children = 0.0


def add_child(secs: float) -> None:
    """Count what a process that pytest does not wait for has taken for the case that runs."""
    global _of_children
    _of_children += secs


def read_children() -> float:
    """Return the seconds of the processor of all processes that pytest has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_clock() -> float:
    return time.process_time() + read_children() + _of_children


def time_probe(builds: int = _FIRST_BUILDS) -> float:
    """Return the seconds of the processor that building a fixed graph fifty times takes.

    Args:
      builds: how often it is built here.
    """
    start = time.process_time()
    for _ in range(builds):
        with tf.Graph().as_default():
            rows = tf.compat.v1.placeholder(tf.float32, [None, 8])
            weights = [tf.constant(0.5, shape=[8, 8]) for _ in range(4)]
            for weight in weights:
                rows = tf.nn.relu(tf.linalg.matmul(rows, weight))
            tf.gradients(tf.reduce_mean(rows), weights)
    return (time.process_time() - start) * _FIRST_BUILDS / builds


class Meter:
    """Measures the files of a process of pytest."""

    def __init__(self) -> None:
        self.units: collections.Counter[str] = collections.Counter()
        self._probes = collections.deque([time_probe()], maxlen=_MEAN_OF)
        self._next_probe = time.monotonic() + _PROBE_EVERY_SECS

    @property
    def probe(self) -> float:
        """The seconds of a probe at the speed that the machine has now."""
        return statistics.fmean(self._probes)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if time.monotonic() >= self._next_probe:
            self._probes.append(time_probe(_NEXT_BUILDS))
            self._next_probe = time.monotonic() + _PROBE_EVERY_SECS
        start = _read_clock()
        result = yield
        self.units[item.nodeid.partition("::")[0]] += (_read_clock() - start) / self.probe
        return result

    def tell(self) -> dict[str, Any]:
        """Return {file: units}, and the memory of this process in GB."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {"units": dict(self.units), "memory": memory}


class Budgets:
    """Compares what files took in all processes with the table."""

    def __init__(self, mode: str):
        self._mode = mode
        self._units: collections.Counter[str] = collections.Counter()
        self._memory = 0.0

    def add(self, told: dict[str, Any]) -> None:
        self._units.update(told["units"])
        self._memory = max(self._memory, told["memory"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear from a process of pytest-xdist that ends; one that was killed has told nothing."""
        told = getattr(node, "workeroutput", {}).get("budgets")
        if told:
            self.add(told)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        chosen = session.config.getoption("keyword") or session.config.getoption("markexpr")
        is_whole = session.exitstatus <= pytest.ExitCode.TESTS_FAILED and not chosen
        if self._mode == "write" and is_whole:
            write_table(self._units)
        elif self._mode == "refuse" and self.list_exceeded():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def list_exceeded(self) -> list[str]:
        """Return the files that took more than the table allows; none without a table."""
        table = read_table()
        if not table:
            return []
        return [f for f, units in self._units.items() if units > table.get(f, _LEAST_UNITS)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self._units.values())
        terminalreporter.write_sep("-", f"{total:.0f} units, at most {self._memory:.1f} GB")
        exceeded, table = set(self.list_exceeded()), read_table()
        for file, units in self._units.most_common(_SHOWN):
            over = "  beyond its budget" if file in exceeded else ""
            allowed = f" of {table.get(file, _LEAST_UNITS):6.0f}" if table else ""
            terminalreporter.write_line(f"{units:6.0f}{allowed}  {file}{over}")
        for file in sorted(exceeded.difference(f for f, _ in self._units.most_common(_SHOWN))):
            terminalreporter.write_line(f"{self._units[file]:6.0f}  {file}  beyond its budget")


def read_table() -> dict[str, float]:
    """Return {file of tests: the units that it may take}, of files that take some."""
    return json.loads(_TABLE.read_text()) if _TABLE.exists() else {}


def write_table(units: dict[str, float]) -> None:
    """Note what files took; files that did not run keep their budget, and those gone lose it."""
    kept = {file: budget for file, budget in read_table().items() if (_ROOT / file).exists()}
    kept |= {file: round(_SLACK * number) for file, number in units.items()}
    dear = {file: budget for file, budget in sorted(kept.items()) if budget > _LEAST_UNITS}
    _TABLE.write_text(json.dumps(dear, indent=1) + "\n")


def add_option(parser: pytest.Parser) -> None:
    """Add --budgets to pytest."""
    modes = ("tell", "refuse", "write")
    parser.addoption("--budgets", choices=modes, help="tell what files of tests cost, as well")


def measure(config: pytest.Config) -> None:
    """Measure in the processes that run tests, and sum up in the process that distributes them."""
    mode, workers = config.getoption("--budgets"), config.getoption("numprocesses", None)
    if not mode:
        return
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Worker(config))
        return
    budgets = Budgets(mode)
    config.pluginmanager.register(budgets if workers else _Single(budgets))
    if not workers:
        config.pluginmanager.register(budgets)


class _Worker(Meter):
    """A process of pytest-xdist."""

    def __init__(self, config: Any):
        super().__init__()
        self._config = config

    def pytest_sessionfinish(self) -> None:
        self._config.workeroutput["budgets"] = self.tell()


class _Single(Meter):
    """The only process."""

    def __init__(self, budgets: Budgets):
        super().__init__()
        self._budgets = budgets

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._budgets.add(self.tell())
