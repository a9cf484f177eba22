"""A plugin of pytest that writes the first failed case, whatever its name holds, to a file.

MTL_FAILED=failed.txt python -m pytest -p tests.strength.failures
"""

import os
import pathlib

import pytest


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    path = pathlib.Path(os.environ["MTL_FAILED"])
    if report.failed and not path.exists():
        path.write_text(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a case."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    _note(report)
