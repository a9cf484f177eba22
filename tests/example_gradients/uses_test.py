"""Shapes by which a weight is recognized."""

import pytest
import tensorflow as tf

from mtl.example_gradients import uses


@pytest.mark.parametrize(
    "shape, core",
    [
        ([1, 5], [5]),
        ([1, 1, 5, 2], [5, 2]),
        ([2, 1], [2, 1]),
        ([1, 1], []),
        ([], []),
        ([None, 5], None),
    ],
)
def test_leading_ones_are_left_out_of_a_shape(shape, core):
    with tf.Graph().as_default():
        assert uses.core_shape(tf.compat.v1.placeholder(tf.float32, shape)) == core
