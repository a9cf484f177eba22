"""Copies of a layer on a machine that says it has a GPU; their graphs run anywhere."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.layers import copies

tf1 = tf.compat.v1

SCOPES = ("a", "b", "c")


def _build(widths, training):
    """Outputs of a layer in each scope, what they should be, and the types of all ops."""
    random = np.random.default_rng(0)
    rows = [random.normal(size=(5, width)).astype(np.float32) for width in widths]
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        outputs = copies.dense([tf.constant(own) for own in rows], 2, "layer", SCOPES, training)
        session.run(tf1.global_variables_initializer())
        found, *kernels = session.run([outputs, *tf1.trainable_variables()][: 1 + 2 * len(SCOPES)])
    expected = [own @ kernels[2 * i] + kernels[2 * i + 1] for i, own in enumerate(rows)]
    return found, expected, {op.type for op in graph.get_operations()}


@pytest.mark.parametrize(
    ("widths", "training", "is_batched"),
    [((4, 4, 4), True, True), ((4, 4, 4), False, False), ((4, 3, 4), True, False)],
)
def test_copies_of_one_width_are_one_product_in_training_alone(
    widths, training, is_batched, monkeypatch
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    found, expected, types = _build(widths, training)
    assert any(kind.startswith("BatchMatMul") for kind in types) == is_batched
    for own, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)
