"""RowWiseAdagrad keeps a number for each row of its tables, and Adagrad's state of others."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.optimization import optimizers

tf1 = tf.compat.v1

RATE, INITIAL = 0.5, 0.1


@pytest.mark.parametrize("is_table", [True, False])
def test_rows_of_a_batch_move_by_the_formula_and_no_others(is_table):
    random = np.random.default_rng(0)
    start, rows = random.normal(size=[4, 2]), np.array([2, 0])
    gradients = random.normal(size=[3, 2, 2])
    with tf.Graph().as_default(), tf1.Session() as session:
        optimizer = optimizers.RowWiseAdagrad(initial_accumulator=INITIAL)(tf.constant(RATE))
        optimizer.tables = {"table"} if is_table else set()
        table = tf1.get_variable("table", initializer=tf.constant(start, tf.float32))
        given = tf1.placeholder(tf.float32, [2, 2])
        pair = tf.IndexedSlices(given, tf.constant(rows), tf.constant([4, 2])), table
        move = optimizer.apply_gradients([pair])
        session.run(tf1.global_variables_initializer())
        for gradient in gradients:
            session.run(move, {given: gradient})
        found = session.run(table)
    expected, total = start.copy(), np.full([2, 2], INITIAL)
    for gradient in gradients:
        squares = gradient**2
        total += squares.mean(axis=1, keepdims=True) if is_table else squares
        expected[rows] -= RATE * gradient / np.sqrt(total)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(found[[1, 3]], start[[1, 3]].astype(np.float32))
