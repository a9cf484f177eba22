"""Places of keys: found again, two buckets each, and moved into a table of another size."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.features import key_table

tf1 = tf.compat.v1


def _draw(count, seed=0):
    return np.unique(np.random.default_rng(seed).integers(1, 2**63 - 1, count))


def _fill(keys, capacity):
    """A table of these keys."""
    origins = key_table.place_keys(keys, capacity)
    return np.where(origins < 0, 0, keys[origins]).reshape(-1, key_table.PLACES)


def _find(table, keys):
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("keys", initializer=table)
        session.run(variable.initializer)
        return session.run(key_table.find_rows(variable, tf.constant(keys, tf.int64)))


def test_every_key_is_found_where_it_lies_and_no_other():
    keys = _draw(600)
    held, others = keys[::2], keys[1::2]
    table = _fill(held, 400)
    rows, is_known = _find(table, np.concatenate([held, others, [0]]))
    assert is_known.tolist() == [True] * len(held) + [False] * (len(others) + 1)
    np.testing.assert_array_equal(table.reshape(-1)[rows[: len(held)]], held)
    assert (rows[len(held) :] == 0).all()
    for key, row in zip(held, rows, strict=False):
        assert row // 8 in (key % 50, key // 50 % 50)


def test_of_a_key_that_lies_twice_the_first_bucket_counts():
    table = np.zeros([2, 8], np.int64)
    key = 2  # Its buckets are 0 and 1.
    table[0, 5] = table[1, 3] = key
    assert _find(table, [key])[0].tolist() == [5]


def test_tokens_have_keys_of_their_own_and_an_empty_one_has_none():
    with tf.Graph().as_default(), tf1.Session() as session:
        tokens = tf.constant([b"a", b"", b"b", b"a", "ü".encode()])
        keys = session.run(key_table.make_keys(tokens))
    assert keys[1] == key_table.NO_KEY and keys[0] == keys[3]
    assert len({*keys.tolist()}) == 4 and (keys[[0, 2, 4]] > 0).all()


@pytest.mark.parametrize("capacity", [1200, 4000])
def test_keys_move_into_a_table_of_another_size(capacity):
    saved = _fill(_draw(600), 800)
    origins = key_table.place_keys(saved, capacity)
    moved = origins >= 0
    table = np.where(moved, saved.reshape(-1)[origins], 0).reshape(-1, 8)
    held = saved[saved > 0]
    rows, is_known = _find(table, held)
    assert is_known.all() and moved.sum() == len(held)
    np.testing.assert_array_equal(saved.reshape(-1)[origins[rows]], held)


def test_two_choices_fill_nine_tenths_of_a_table():
    keys = _draw(72_000)
    origins = key_table.place_keys(keys, 80_000)
    assert (origins >= 0).sum() > 0.99 * len(keys)
    few = key_table.place_keys(keys, 8000)
    assert (few >= 0).all()
