"""RowWiseAdagrad keeps a number for each row of its tables, and Adagrad's state of others."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.optimization import optimizers
from tests.optimization import references

tf1 = tf.compat.v1

RATE = 0.5


@pytest.mark.parametrize("is_table", [True, False])
def test_rows_of_a_batch_move_by_the_formula_and_no_others(is_table):
    random = np.random.default_rng(0)
    start, rows = random.normal(size=[4, 2]), np.array([2, 0])
    gradients = random.normal(size=[3, 2, 2])
    with tf.Graph().as_default(), tf1.Session() as session:
        optimizer = optimizers.RowWiseAdagrad(initial_accumulator=0.1)(tf.constant(RATE))
        optimizer.tables = {"table"} if is_table else set()
        table = tf1.get_variable("table", initializer=tf.constant(start, tf.float32))
        given = tf1.placeholder(tf.float32, [2, 2])
        pair = tf.IndexedSlices(given, tf.constant(rows), tf.constant([4, 2])), table
        move = optimizer.apply_gradients([pair])
        session.run(tf1.global_variables_initializer())
        for gradient in gradients:
            session.run(move, {given: gradient})
        found = session.run(table)
    expected, move_row = (
        start.copy(),
        references.row_wise_adagrad if is_table else references.adagrad,
    )
    for row, row_gradients in zip(rows, gradients.swapaxes(0, 1), strict=True):
        state: dict = {}
        for gradient in row_gradients:
            move_row(expected[row], state, gradient, RATE, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(found[[1, 3]], start[[1, 3]].astype(np.float32))
