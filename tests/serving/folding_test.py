import numpy as np
import tensorflow as tf

from mtl.serving import folding, graphs

tf1 = tf.compat.v1


def test_batch_norm_becomes_the_same_multiplication_and_addition():
    random = np.random.default_rng(0)
    rows = random.normal(size=(4, 2, 2, 3)).astype(np.float32)
    scale, offset, mean = random.normal(size=(3, 3)).astype(np.float32)
    variance = random.uniform(0.5, 2, size=3).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = tf1.placeholder(tf.float32, [None, 2, 2, 3], "inputs")
        normed, _, _ = tf1.nn.fused_batch_norm(
            inputs, scale, offset, mean, variance, epsilon=0.01, is_training=False
        )
        tf.identity(normed, "outputs")
        folded = folding.fold_graph(session, ["outputs"]).pruned(["outputs"])
    assert not [node.op for node in folded.node if node.op.startswith("FusedBatchNorm")]
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(folded, name="")
        found = session.run("outputs:0", {"inputs:0": rows})
    expected = (rows - mean) / np.sqrt(variance + 0.01) * scale + offset
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_constants_without_axes_are_added_up():
    with tf.Graph().as_default() as graph:
        read = tf1.placeholder(tf.float32, [None], name="read")
        tf.identity((read + 1.0) * 3.0 + 2.0, name="found")
        folded = folding.fold_scales(graphs.Graph(graph.as_graph_def()), ["found"])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(folded.pruned(["found"]), name="")
        found = session.run("found:0", {"read:0": [1.0, -2.0]})
    np.testing.assert_array_equal(found, [8.0, -1.0])
    assert [node.op for node in folded.nodes.values()].count("AddV2") == 1
