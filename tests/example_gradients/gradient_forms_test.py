"""Forms of gradients of single examples, joined and in NumPy."""

import numpy as np
import tensorflow as tf

from mtl.example_gradients import gradient_forms

BATCH = 3


def _look_up(ids, examples, seed):
    values = np.random.default_rng(seed).normal(size=[len(ids), 2])
    parts = map(tf.constant, (np.array(ids), np.array(examples), values, np.int64(BATCH)))
    return gradient_forms.Rows(*parts)


def test_lookups_of_one_table_are_joined():
    parts = [_look_up([4, 4, 1], [0, 0, 2], 0), _look_up([4, 0], [0, 1], 1)]
    joined = gradient_forms.join_gradients(parts)
    gradients = np.zeros([BATCH, 5, 2])
    for part in parts:
        np.add.at(gradients, (part.examples.numpy(), part.ids.numpy()), part.values.numpy())
    np.testing.assert_allclose(joined.squared_norms(), (gradients**2).sum((1, 2)))
    np.testing.assert_array_equal(joined.ids, [4, 4, 1, 4, 0])
    assert joined.batch_size == BATCH
