"""Brings tf.estimator back before any test module imports tensorflow_estimator."""

import functools

import pytest
import tensorflow as tf

from mtl import compat  # noqa: F401
from tests.compat import passed

tf.get_logger().setLevel("ERROR")


_holds = functools.cache(passed.holds)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave tests that take long to `make test-all` while nothing that they reach has changed."""
    is_long = item.get_closest_marker("medium") or item.get_closest_marker("slow")
    if is_long and item.path.name not in passed.OTHERS and _holds():
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
