"""Gradients of single examples of smaller tables: clipped together as one by one."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import features, heads, model, networks
from mtl.balancing import example_clipping, surgery
from mtl.features import embeddings
from mtl.model import graph_options
from mtl.optimization import clipping, update

tf1 = tf.compat.v1

COMMON = {"names": ["lists"], "num_buckets": 100, "dimension": 4}
COLUMNS = (
    features.Hashed(embedding=embeddings.QuotientRemainder(num_remainders=9), **COMMON),
    features.Hashed(embedding=embeddings.MultiHash(num_buckets=9), prefix="several", **COMMON),
    features.Hashed(storage="bfloat16", prefix="half", **COMMON),
    features.Unified(**COMMON),
    features.Categorical(
        names=["x", "lists"],  # `x` has one value per row.
        vocabulary=list(range(20)),
        dimension=4,
        embedding=embeddings.MixedDimensions(ends=[4, 9], dimensions=[4, 2, 1]),
    ),
)
X, LISTS, LABELS = [1, 13], [[1, 2, 2], [9, 12]], [0, 1]
MOST = 0.3


class _Kept(clipping.GlobalNorm):
    """Keeps the gradients that the update is given, by variable."""

    kept = None

    def __call__(self, gradients, variables, norm):
        dense = map(tf.convert_to_tensor, gradients)
        type(self).kept = {v.op.name: g for v, g in zip(variables, dense, strict=True)}
        return gradients


def _gradients(rows, part):
    """{variable: the gradient of the mean loss over these rows}."""
    made = model.MultiTaskModel(
        columns=COLUMNS,
        network=networks.SharedBottom(trunk=networks.MLP(layers=[6])),
        heads=[heads.Binary(name="y")],
        update=update.Update(clipping=_Kept(max_norm=1.0)),
        surgery=part,
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        lists = tf.ragged.constant(
            [LISTS[row] for row in rows], tf.int64, ragged_rank=1, row_splits_dtype=tf.int64
        )
        batch = {"x": tf.constant([X[row] for row in rows], tf.int64), "lists": lists}
        labels = {"y": tf.constant([LABELS[row] for row in rows], tf.int64)}
        made.model_fn(
            batch,
            labels,
            "train",
            options=graph_options.GraphOptions(statistics=features.load_statistics("")),
        )
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        rng = np.random.default_rng(0)
        for variable in sorted(tf1.trainable_variables(), key=lambda own: own.name):
            value = rng.normal(size=variable.shape) / 4
            variable.load(value.astype(variable.dtype.as_numpy_dtype), session)
        return session.run(_Kept.kept)


@pytest.mark.slow
def test_each_example_is_clipped_by_its_own_norm():
    expected = {}
    for row in range(len(X)):
        own = _gradients([row], surgery.Sum())
        norm = sum((np.float64(values) ** 2).sum() for values in own.values()) ** 0.5
        assert norm > MOST
        for name, values in own.items():
            expected[name] = expected.get(name, 0) + values * MOST / norm / len(X)
    together = _gradients(range(len(X)), example_clipping.ExampleClipping(max_norm=MOST))
    assert together.keys() == expected.keys()
    for name, values in together.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
