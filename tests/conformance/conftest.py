import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have `make test` run the costly tests of the table for one network of each family alone."""
    if item.get_closest_marker("by_family") and not item.callspec.params["row"].leads_family:
        item.add_marker(pytest.mark.thorough)
