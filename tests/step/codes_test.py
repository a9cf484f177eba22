"""Remembered ids belong to the values of a tensor, however a list of them is wrapped."""

import pytest
import tensorflow as tf

from mtl.step import codes


@pytest.mark.parametrize("is_list", [False, True])
def test_ids_are_found_by_the_values_and_the_column(is_list):
    with tf.Graph().as_default():
        values, ids = tf.constant([b"a", b"b"]), tf.constant([3, 4])

        def wrap(flat):
            return tf.RaggedTensor.from_row_lengths(flat, [2, 0]) if is_list else flat

        codes.remember(wrap(values), {"job": wrap(ids)})
        found = codes.find_ids(wrap(values), "job")
        assert (found.flat_values if is_list else found) is ids
        assert codes.find_ids(wrap(values), "city") is None
        assert codes.find_ids(wrap(tf.identity(values)), "job") is None
    assert codes.find_ids(tf.constant([b"a"]), "job") is None
