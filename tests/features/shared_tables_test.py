"""One table for several columns: one vocabulary, one variable, and settings in common."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import encoding

tf1 = tf.compat.v1

ITEMS = {
    "item": np.array(["a", "a", "b"], object),
    "last": np.array(["b", "c", "c"], object),
}


def test_one_vocabulary_of_all_fields_and_one_variable(encode):
    columns = [
        features.Categorical(names=["item"], table="items", dimension=4),
        features.Categorical(names=["last"], table="items", dimension=4, pooling="sum"),
    ]
    encoded = encode(columns, ITEMS)
    # a, b and c occur twice each, over both fields: equals in order of their bytes.
    assert encoded["categorical_item"][:, 0].tolist() == [0, 0, 1]
    assert encoded["categorical_last"][:, 0].tolist() == [1, 2, 2]


def test_one_object_may_share_a_table_between_its_fields(encode):
    column = features.Categorical(names=["item", "last"], table="items")
    encoded = encode([column], ITEMS)
    assert encoded["categorical_last"][:, 0].tolist() == [1, 2, 2]


def test_a_field_that_two_columns_read_counts_once(fit):
    columns = [
        features.Categorical(names=["item"], table="items", min_count=2),
        features.Categorical(names=["item", "last"], table="items", min_count=2, prefix="again"),
    ]
    fitted = fit(columns, ITEMS)
    assert fitted.for_column("items")["size"] == 3
    assert fitted.for_column("items")["fitted"].startswith("Vocabulary(source='item, last',")
    columns = [features.Categorical(names=["item"], table="items", min_count=3)] * 2
    assert encoding._list_accumulators(columns)["items"].reads.keys() == {"item"}


def test_variables_and_gradients_are_those_of_the_table():
    columns = [
        features.Hashed(names=["item"], table="items", num_buckets=50, dimension=3),
        features.Hashed(names=["last"], table="items", num_buckets=50, dimension=3, prefix="b"),
        features.Hashed(names=["last"], num_buckets=50, dimension=3),
    ]
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = {name: tf.constant(values) for name, values in ITEMS.items()}
        inputs = features.encode_columns(columns, fed, features.load_statistics(""))
        names = {v.op.name: v for v in tf1.global_variables()}
        assert set(names) == {"features/items/embedding", "features/hashed_last/embedding"}
        total = tf.add_n([tf.reduce_sum(inputs[name]) for name in ("hashed_item", "b_last")])
        gradient = tf.gradients(total, names["features/items/embedding"])[0]
        assert isinstance(gradient, tf.IndexedSlices)
        session.run(tf1.global_variables_initializer())
        dense = session.run(tf.convert_to_tensor(gradient))
    assert dense.sum() == 6 * 3  # Each of six lookups moves its row by one.


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (
            {"dimension": 16},
            r"table 'items' must have the same Hashed.dimension in all columns, got '8 and 16'",
        ),
        ({"num_buckets": 9}, r"the same Hashed.num_buckets in all columns, got '50 and 9'"),
        ({"trainable": False}, r"the same Hashed.trainable in all columns, got 'True and False'"),
    ],
)
def test_a_table_has_one_width(others, says):
    settings = {"table": "items", "num_buckets": 50}
    columns = [
        features.Hashed(names=["item"], **settings),
        features.Hashed(names=["last"], **{**settings, **others}),
    ]
    with pytest.raises(checks.UserError, match=says):
        encoding.check_columns(columns, ITEMS)


def test_a_table_has_columns_of_one_kind_and_a_name_of_its_own():
    hashed = features.Hashed(names=["item"], table="items", num_buckets=50)
    identity = features.Identity(names=["last"], table="items", size=50)
    with pytest.raises(
        checks.UserError, match="must belong only to Hashed columns, got 'Identity'"
    ):
        encoding.check_columns([hashed, identity], ITEMS)
    taken = features.Hashed(names=["last"], table="hashed_item", num_buckets=50)
    own = features.Hashed(names=["item"], num_buckets=50)
    with pytest.raises(checks.UserError, match="must have distinct names, got .'hashed_item'."):
        encoding.check_columns([own, taken], ITEMS)
    with pytest.raises(checks.UserError, match="be None if Hashed.dimension is None"):
        features.Hashed(names=["item"], num_buckets=9, dimension=None, table="items")
