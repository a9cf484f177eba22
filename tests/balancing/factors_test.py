"""Gradients as products of thin matrices, against the gradients themselves in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.balancing import factors, task_gradients

WIDTH, BATCH = 24, 6
CLASSES = (1, 3, 1, 2)


def _gradients(classes=CLASSES, transposed=False):
    """Return the gradients of linear heads at their input [B, H], each with so many logits."""
    random = np.random.default_rng(0)
    hidden = tf.constant(random.normal(size=(BATCH, WIDTH)), tf.float32)
    gradients = []
    for count in classes:
        kernel = random.normal(size=(count, WIDTH) if transposed else (WIDTH, count))
        logits = tf.linalg.matmul(hidden, tf.constant(kernel, tf.float32), transpose_b=transposed)
        loss = tf.reduce_mean(tf.nn.softplus(logits) ** 2)
        gradients.append(tf.gradients(loss, hidden)[0])
    return gradients


@pytest.mark.parametrize("transposed", [False, True])
def test_products_and_sums_equal_those_of_the_gradients(transposed):
    weights = np.array([0.5, -2.0, 9.0, 3.0, 0.1])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gradients = _gradients(transposed=transposed)
        leaf = task_gradients.Leaf.from_gradients([*gradients[:2], None, *gradients[2:]])
        assert isinstance(leaf, factors.Factors)
        gramian = task_gradients.compute_gramian([leaf], 5)
        combined = leaf.to_gradient(leaf.combine(tf.constant(weights)))
        rows, gramian, combined = session.run([leaf.rows, gramian, combined])
        rows = np.insert(rows.astype(np.float64), 2, 0, axis=0)
    expected = np.einsum("sbh,tbh->st", rows, rows)
    np.testing.assert_allclose(gramian, expected, rtol=1e-6, atol=1e-6 * expected.max())
    np.testing.assert_allclose(combined, np.tensordot(weights, rows, 1), rtol=1e-5, atol=1e-6)


def test_opposite_heads_have_exactly_opposite_products():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gradient = _gradients([2])[0]
        left, right = gradient.op.inputs
        other = tf.linalg.matmul(-left, right, transpose_b=True)
        gramian = session.run(
            factors.Factors.from_gradients((0, 1), [gradient, other]).multiply_pairs()
        )
    np.testing.assert_array_equal(gramian, gramian[0, 0] * np.array([[1, -1], [-1, 1]]))


def test_only_where_it_is_cheaper_and_of_products_only():
    with tf.Graph().as_default():
        assert factors.Factors.from_gradients((0, 1), _gradients([2, 2])) is not None
        assert factors.Factors.from_gradients((0, 1), _gradients([WIDTH, WIDTH])) is None
        gradients = _gradients([1, 1])
        assert factors.Factors.from_gradients((0, 1), [gradients[0], tf.tanh(gradients[1])]) is None
        unknown = tf.compat.v1.placeholder(tf.float32, [None, WIDTH])
        kernels = [tf.linalg.matmul(unknown, unknown, transpose_a=True)] * 2
        assert factors.Factors.from_gradients((0, 1), kernels) is None
