"""Rows are taken and permuted whole, lists too."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.explaining import rows

tf1 = tf.compat.v1


def lists(*values):
    return tf1.ragged.constant_value(
        [list(own) for own in values], np.int64, row_splits_dtype="int64"
    )


@pytest.fixture
def some():
    features = {
        "a": np.array([1.0, 2.0, 3.0]),
        "pic": np.arange(12).reshape(3, 2, 2),
        "own": lists([1, 2], [], [3]),
        "nested": lists([1, 2, 3], [4], []),
        "nested/values_per_item": lists([1, 2], [1], []),
    }
    return rows.Rows("test", features, {"y": np.array([0, 1, 2])})


def test_rows_are_taken_with_their_lists(some):
    taken = some.take([2, 0, 0])
    assert taken.size == 3 and taken.labels["y"].tolist() == [2, 0, 0]
    assert taken.features["own"].to_list() == [[3], [1, 2], [1, 2]]
    assert taken.features["pic"][0].tolist() == [[8, 9], [10, 11]]
    assert some.take([1]).features["own"].to_list() == [[]]
    assert some.take([]).features["own"].to_list() == []


def test_only_the_fields_that_are_named_are_permuted_and_counts_go_along(some):
    order = np.array([1, 2, 0])
    found = some.permute(["own", "nested"], order)
    assert found["own"].to_list() == [[], [3], [1, 2]]
    assert found["nested"].to_list() == [[4], [], [1, 2, 3]]
    assert found["nested/values_per_item"].to_list() == [[1], [], [1, 2]]
    assert found["a"] is some.features["a"]


def test_a_field_is_filled_with_one_value_of_its_type(some):
    assert some.fill("a", 7)["a"].tolist() == [7.0, 7.0, 7.0]
    words = rows.Rows("test", {"w": np.array([b"x", b"yyy"], object)}, {})
    assert words.fill("w", b"longer")["w"].tolist() == [b"longer"] * 2


@pytest.mark.medium
def test_batches_are_as_large_as_in_training_and_the_rest_is_left_out(run):
    sizes = [one.size for one in rows.read_batches(run[0], "test", 20)]
    assert sizes == [64] * 4
    assert [one.size for one in rows.read_batches(run[0], "bare", 20)] == [60]
    assert len(list(rows.read_batches(run[0], "train", 3))) == 3
