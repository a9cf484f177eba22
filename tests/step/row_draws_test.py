"""Draws of rows: uniform, of the row's own values alone, and the same wherever it stands."""

import zlib

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from mtl.step import draws, row_draws


def fields(num=4000, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "number": rng.normal(size=num).astype("f"),
        "count": np.arange(num) + 2**40,
        "word": np.array([b"w%d" % n for n in rng.integers(0, 9, num)], object),
        "image": rng.integers(0, 255, [num, 2, 2, 1]).astype(np.uint8),
        "flag": rng.random(num) < 0.5,
    }


def draw(features, size=4, name="head/y"):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = {
            key: tf.ragged.constant(value, tf.int64, ragged_rank=1)
            if isinstance(value, list)
            else tf.constant(value)
            for key, value in features.items()
        }
        with draws.know_rows(given):
            assert row_draws.are_rows_known()
            return session.run(row_draws.draw(name, size))


def _mix(number):
    """`lowbias32` of Wellons, in Python."""
    number &= 0xFFFFFFFF
    number = ((number ^ number >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    number = ((number ^ number >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return number ^ number >> 16


def _hash_list(values):
    places = [0x9E3779B9 * place for place in range(len(values))]
    return sum(_mix(_mix(value) + place) for value, place in zip(values, places, strict=True))


@pytest.mark.parametrize("lists", [[[5, 7], [7, 5]], [[5], [], [7, 0, 7]]])
def test_a_row_draws_the_same_in_every_version(lists):
    """A server of an earlier export and a new run predict the same samples."""
    dense = len({len(values) for values in lists}) == 1
    features = {"x": np.array(lists) if dense else lists}
    expected = []
    for values in lists:
        key = _hash_list(values) + (0 if dense else len(values))
        key = _mix(key + zlib.crc32(b"x")) + zlib.crc32(b"head/y")
        hashes = [_mix(_mix(key) + 0x9E3779B9 * place) for place in (1, 2, 3)]
        expected.append([((number >> 9) + 0.5) / 2**23 for number in hashes])
    np.testing.assert_array_equal(draw(features, size=3), np.float32(expected))


def test_no_rows_no_draws():
    assert not row_draws.are_rows_known()
    assert row_draws.draw("y", 3) is None


def test_numbers_are_uniform_and_unrelated():
    drawn = draw(fields(), size=5)
    assert drawn.dtype == np.float32
    assert 0 < drawn.min() < drawn.max() < 1
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert stats.kstest(drawn[:5].ravel(), "uniform").pvalue > 1e-3
    related = np.corrcoef(np.column_stack([drawn, drawn[:, 0].take(range(1, 4001), mode="wrap")]).T)
    assert np.abs(related - np.eye(6)).max() < 0.06


def test_neighbours_of_one_field_draw_apart():
    """The rows differ by 1 in a single number."""
    drawn = draw({"id": np.arange(5000)}, size=1)[:, 0]
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.05


def test_other_rows_and_the_size_of_the_batch_change_nothing():
    features = fields(50)
    drawn = draw(features)
    some = np.array([31, 4, 9])
    np.testing.assert_array_equal(draw({k: v[some] for k, v in features.items()}), drawn[some])
    np.testing.assert_array_equal(draw(features, size=9)[:, :4], drawn)
    assert draw({k: v[:0] for k, v in features.items()}).shape == (0, 4)


@pytest.mark.parametrize("name", ["number", "count", "word", "image", "flag"])
def test_every_field_counts(name):
    features = fields(3)
    before = draw(features)
    changed = {**features, name: features[name].copy()}
    changed[name][1] = {
        "number": np.nextafter(features["number"][1], np.float32(9)),
        "count": features["count"][1] + 2**33,
        "word": b"other",
        "image": features["image"][1][::-1],
        "flag": not features["flag"][1],
    }[name]
    after = draw(changed)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert np.all(after[1] != before[1])


def test_lists_count_by_values_order_and_length():
    lists = {"tags": [[1, 2], [2, 1], [1, 2, 0], [0], [], [1, 2]]}
    drawn = draw(lists)
    assert len(np.unique(drawn, axis=0)) == 5
    np.testing.assert_array_equal(drawn[0], drawn[5])
    np.testing.assert_array_equal(draw({"tags": [[], [1, 2]]})[1], drawn[0])


def test_names_draw_apart_and_equal_numbers_draw_alike():
    features = {"x": np.array([0.0, -0.0, np.nan, -np.nan, 1.0], "f")}
    drawn = draw(features)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[2], drawn[3])
    assert np.all(draw(features, name="head/z") != drawn)


def test_no_random_op_is_in_the_graph():
    """Exports must not hold random ops; see `mtl/serving/verification.py`."""
    with tf.Graph().as_default() as graph:
        with draws.know_rows({"x": tf.zeros([3])}):
            row_draws.draw("y", 2)
        assert not [op.type for op in graph.get_operations() if "andom" in op.type]
