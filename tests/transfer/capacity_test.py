"""Variables are matched with their keys, and rows are placed in a table of another capacity."""

import numpy as np
import pytest

from mtl import checks
from mtl.transfer import capacity

NAMES = [
    "features/items/keys",
    "features/items/embedding",
    "features/items/embedding/Adam",
    "features/items/last_seen",
    "features/embedding/keys",
    "features/embedding/embedding",
    "features/hashed_item/embedding",
    "network/keys/kernel",
]


@pytest.mark.parametrize(
    ("name", "keys", "table"),
    [
        ("features/items/keys", "items/keys", "features/items/embedding"),
        ("features/items/last_seen", "items/keys", "features/items/embedding"),
        ("features/items/embedding", "items/keys", "features/items/embedding"),
        ("features/items/embedding/Adam", "items/keys", "features/items/embedding/Adam"),
        # A table may have any name.
        ("features/embedding/keys", "embedding/keys", "features/embedding/embedding"),
        ("features/embedding/embedding", "embedding/keys", "features/embedding/embedding"),
        ("features/hashed_item/embedding", None, "features/hashed_item/embedding"),
        ("network/keys/kernel", None, "network/keys/kernel"),
    ],
)
def test_keys_are_those_of_the_scope(name, keys, table):
    assert capacity.find_keys(name, NAMES) == (keys and f"features/{keys}")
    assert capacity.find_table(name, NAMES) == table


def test_rows_of_unknown_keys_stay_behind_those_of_keys():
    keys = np.zeros([2, 8], np.int64)
    keys[1, 0] = 3
    origins = capacity.place_keys(keys, 32, "a run")
    assert (origins >= 0).sum() == 1 and origins.max() == 8
    rows = capacity.place_rows(origins, 16, [18, 4], [35, 4])
    assert rows[:32].tolist() == origins.tolist() and rows[32:].tolist() == [16, 17, 16]
    assert capacity.place_rows(origins, 16, [16], [32]).shape == (32,)
    assert capacity.place_rows(origins, 16, [2, 8], [4, 8]).shape == (4, 8)


def test_keys_of_a_table_of_the_same_capacity_stay():
    """A full table has no other order: placed anew, some of its keys would find no place."""
    full = np.arange(1, 17).reshape(2, 8)
    assert capacity.place_keys(full, 16, "a run").tolist() == list(range(16))


def test_keys_that_find_no_place_are_told():
    full = np.arange(1, 17).reshape(2, 8)
    with pytest.raises(
        checks.UserError, match="must hold the 16 keys of a run, got 8. 8 of them find no"
    ):
        capacity.place_keys(full, 8, "a run")
