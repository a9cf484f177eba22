"""Layers of many equal tasks."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.layers import stacked

tf1 = tf.compat.v1

WHOLE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("axis", "order", "is_whole"),
    [(1, [0, 1, 2], True), (1, [0, 2, 1], False), (1, [0, 1], False), (0, [0, 1], False)],
)
def test_what_was_unstacked_is_not_stacked_again(axis, order, is_whole):
    with tf.Graph().as_default(), tf1.Session() as session:
        given = tf.constant(WHOLE)
        parts = tf.unstack(given, axis=axis)
        found = stacked.stack_parts([parts[number] for number in order])
        assert (found is given) == is_whole
        assert found.op.type == ("Const" if is_whole else "Pack")
        wanted = np.stack([np.take(WHOLE, number, axis) for number in order], axis=1)
        np.testing.assert_array_equal(session.run(found), wanted)


def test_parts_of_two_tensors_are_stacked():
    with tf.Graph().as_default(), tf1.Session() as session:
        parts = [tf.constant(WHOLE[:, number]) for number in (2, 1)]
        np.testing.assert_array_equal(session.run(stacked.stack_parts(parts)), WHOLE[:, [2, 1]])
