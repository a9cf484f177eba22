import numpy as np
import pytest
import tensorflow as tf

from mtl.step import gradients

DENSE = np.arange(8.0, dtype=np.float32).reshape(4, 2)
IDS = np.array([2, 0, 2], np.int64)
ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def _sparse():
    return tf.IndexedSlices(tf.constant(ROWS), tf.constant(IDS), tf.constant([4, 2], tf.int64))


def _dense_of(gradient):
    table = np.zeros([4, 2], np.float32)
    with tf.compat.v1.Session() as session:
        value = session.run(gradient)
    if isinstance(value, np.ndarray):
        return value
    np.add.at(table, value.indices, value.values)
    return table


@pytest.mark.parametrize("left", ["dense", "sparse", "none"])
@pytest.mark.parametrize("right", ["dense", "sparse", "none"])
def test_add(left, right):
    make = {"dense": lambda: tf.constant(DENSE), "sparse": _sparse, "none": lambda: None}
    with tf.Graph().as_default():
        operands = [make[left](), make[right]()]
        total = gradients.add_gradients(*operands)
        if left == right == "none":
            assert total is None
            return
        assert isinstance(total, tf.IndexedSlices) == ("dense" not in (left, right))
        expected = sum(_dense_of(part) for part in operands if part is not None)
        np.testing.assert_array_equal(_dense_of(total), expected)


def test_merge_rows():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        merged = session.run(gradients.merge_rows(_sparse()))
        np.testing.assert_array_equal(merged.indices, [2, 0])
        np.testing.assert_array_equal(merged.values, [[6, 8], [3, 4]])
        dense = tf.constant(DENSE)
        assert gradients.merge_rows(dense) is dense
        assert gradients.merge_rows(None) is None


def test_squared_norms_of_merged_rows_are_those_of_the_dense_gradients():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        parts = [gradients.merge_rows(_sparse()), tf.constant(DENSE)]
        squares = session.run(gradients.squared_norms(parts))
        np.testing.assert_allclose(squares, [(_dense_of(part) ** 2).sum() for part in parts])
