"""Options, hooks and fixtures that all tests share."""

import os
import pathlib
import sys
import time
from collections.abc import Iterator

import mtl.compat  # noqa: F401  Before TensorFlow, which imports Keras 3 as well if not told.

# isort: split
import pytest
import tensorflow as tf

from tests import budgets, graph_optimizer, op_stacks, quick_graphs, selection

# The processor time that a case without a mark may take, in units of `budgets.time_probe`, as
# machines differ in speed.
_QUICK_UNITS = 3.0
_UNIT = pytest.StashKey[float]()
# Fixtures that train.
_TRAINED = {"trained", "trained_run", "source", "run"}
_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Before anything uses TensorFlow: two replicas need two devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
# Sessions run graphs as they were built: these are small. Those of Estimator optimize theirs where
# a test has the mark `optimizes_graphs`, and whole runs of the launchers do.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
graph_optimizer.leave_out()
quick_graphs.leave_out()


def pytest_collection_finish() -> None:
    quick_graphs.spare_collector()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"fail a case that is neither medium nor slow and takes over {_QUICK_UNITS:g} probes"
    parser.addoption("--quick", action="store_true", help=text)
    budgets.add_option(parser)
    selection.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    budgets.measure(config)
    if config.getoption("--quick"):
        config.stash[_UNIT] = budgets.time_probe()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that need a trained run, as each process of pytest trains one."""
    if _TRAINED.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.medium)


@pytest.hookimpl(trylast=True)  # After `-k` and `-m`, which choose among all cases.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.select(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    graph_optimizer.turn_on(item.get_closest_marker("optimizes_graphs") is not None)
    op_stacks.turn_on(item.get_closest_marker("keeps_op_stacks") is not None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        quick_graphs.forget_gradients()
        quick_graphs.release_memory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    start = time.process_time()
    yield
    took = time.process_time() - start
    is_marked = item.get_closest_marker("medium") or item.get_closest_marker("slow")
    if item.config.getoption("--quick") and not is_marked:
        probes = took / item.config.stash[_UNIT]
        if probes > _QUICK_UNITS:
            why = f"took {took:.1f} s, {probes:.1f} times a probe of this machine"
            pytest.fail(f"{why}: mark it medium or slow, or make it faster", pytrace=False)


@pytest.fixture(autouse=True)
def rewriting_passes(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test whose run published an export whole, as one without dead units was wrong.

    Users get such an export, and a line in the log. A test that causes it clears `caplog`.
    """
    yield
    exporter = sys.modules.get("mtl.serving.exporter")  # An import here would cost every test.
    logged = [*caplog.get_records("setup"), *caplog.get_records("call")] if exporter else []
    said = [record.getMessage() for record in logged]
    failed = [line for line in said if line.startswith(exporter.REWRITING_FAILED)]
    assert not failed, failed


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of real data sets, MTL_DATA_DIR or ../shared/data; skips where there is none."""
    folder = pathlib.Path(os.environ.get("MTL_DATA_DIR", _ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set MTL_DATA_DIR")
    return folder
