"""LazyAdam moves the rows of a batch as Adam's formula says."""

import numpy as np
import tensorflow as tf

from mtl.optimization import optimizers

tf1 = tf.compat.v1

RATE, BETA1, BETA2, EPSILON = 0.1, 0.9, 0.99, 0.5


def test_rows_of_a_batch_move_by_the_formula_and_no_others():
    random = np.random.default_rng(0)
    start, rows = random.normal(size=[4, 2]), np.array([2, 0])
    gradients = random.normal(size=[3, 2, 2])
    part = optimizers.LazyAdam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON)
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable("table", initializer=tf.constant(start, tf.float32))
        given = tf1.placeholder(tf.float32, [2, 2])
        pair = tf.IndexedSlices(given, tf.constant(rows), tf.constant([4, 2])), table
        move = part(tf.constant(RATE)).apply_gradients([pair])
        session.run(tf1.global_variables_initializer())
        for gradient in gradients:
            session.run(move, {given: gradient})
        found = session.run(table)
    expected, first, second = start.copy(), np.zeros([2, 2]), np.zeros([2, 2])
    for step, gradient in enumerate(gradients, start=1):
        first = BETA1 * first + (1 - BETA1) * gradient
        second = BETA2 * second + (1 - BETA2) * gradient**2
        rate = RATE * np.sqrt(1 - BETA2**step) / (1 - BETA1**step)
        expected[rows] -= rate * first / (np.sqrt(second) + EPSILON)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(found[[1, 3]], start[[1, 3]].astype(np.float32))
