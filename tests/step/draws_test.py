import numpy as np
import tensorflow as tf

from mtl.step import draws

tf1 = tf.compat.v1


def test_a_row_draws_the_same_numbers_however_the_batch_is_cut():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 3
        step = tf1.train.create_global_step()
        whole, other = draws.draw_rows("crop", 12, 5), draws.draw_rows("flip", 12, 5)
        parts = {}
        for count in (2, 3, 12):
            parts[count] = []
            # A number of the graph, as in the loop over slices, too.
            for index in (*range(count - 1), tf.constant(count - 1)):
                with draws.draw_for_slice(index, count):
                    parts[count].append(draws.draw_rows("crop", 12 // count, 5))
                    assert parts[count][-1].shape == (12 // count, 5)
        session.run(tf1.global_variables_initializer())
        expected, found, apart = session.run([whole, parts, other])
        step.load(1, session)
        later = session.run(whole)
    for values in found.values():
        np.testing.assert_array_equal(np.concatenate(values), expected)
    assert len(np.unique([expected, later, apart])) == 3 * 12 * 5
    assert expected.min() >= 0 and expected.max() < 1
