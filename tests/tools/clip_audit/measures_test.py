"""The loss that an audit notes for a row with several labels."""

import numpy as np
import tensorflow as tf

from mtl import features, heads, model, networks
from mtl.optimization import optimizers, update
from mtl.tools.clip_audit import measures

tf1 = tf.compat.v1

STATISTICS = features.Statistics(directory="", entries={})
LABELS = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])


def test_the_loss_of_a_row_is_the_mean_over_its_labels():
    made = model.MultiTaskModel(
        columns=[features.Numeric(names=["x"], normalization="none")],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[5])),
        heads=[heads.MultiLabel(name="topics", classes=3)],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=0.1)),
    )
    values = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        rows, labels = {"x": tf.constant(values)}, {"topics": tf.constant(LABELS)}
        measured = measures.measure(
            made, STATISTICS, rows, labels, lambda losses: dict.fromkeys(losses, 1.0)
        )
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            logits = made.build_outputs(rows, STATISTICS, training=False).logits["topics"]
        session.run(tf1.global_variables_initializer())
        found, logits = session.run([measured.examples["loss/topics"], logits])
    shares = 1 / (1 + np.exp(-logits.astype(np.float64)))
    by_label = -np.log(np.where(LABELS == 1, shares, 1 - shares))
    np.testing.assert_allclose(found, by_label.mean(axis=1), rtol=1e-5)
