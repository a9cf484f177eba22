"""Values that a column does not know are counted by field, whatever holds them."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import features, histories
from mtl.features import unknown

LISTS = tf.ragged.constant([["a", "x"], [], ["y", "a", "b"]])


@pytest.mark.parametrize(
    "column, values, counts",
    [
        (features.Categorical(names=["f"], vocabulary=["a", "b"]), ["a", "x", "", "b"], [4, 1]),
        (
            features.Categorical(names=["f"], vocabulary=["a"], num_unknown=3),
            ["a", "x", "y"],
            [3, 2],
        ),
        (features.Categorical(names=["f"], vocabulary=["a", "b"]), LISTS, [5, 2]),
        (features.Categorical(names=["f"], vocabulary=[1, 2]), [1, 2, 3], [3, 1]),
        (features.Identity(names=["f"], size=3), [0, 2, 3, -1], [4, 2]),
    ],
)
def test_what_is_unknown_is_counted(column, values, counts):
    given = values if isinstance(values, tf.RaggedTensor) else tf.constant(values)
    columns = [column, features.Hashed(names=["g"], num_buckets=3)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        if isinstance(given, tf.RaggedTensor):
            held = tf.ragged.constant(given.to_list())
        else:
            held = tf.constant(given.numpy())
        found = unknown.count_unknown(columns, {"f": held, "g": held}, None)
        session.run(tf.compat.v1.tables_initializer())
        assert session.run(found).tolist() == [counts]
    assert unknown.list_fields(columns) == ["f"]


def test_a_field_of_two_columns_and_one_of_a_history():
    event = features.Categorical(names=["f"], vocabulary=["a"], prefix="event")
    column = features.Categorical(names=["f", "g"], vocabulary=["a", "b"])
    both = [features.History(name="h", events=[event], encoder=histories.Pooling()), column]
    assert unknown.list_fields(both) == ["f", "g"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        lists, one = tf.ragged.constant([["a", "b"], ["c"]]), tf.constant(["a", "c"])
        found = unknown.count_unknown(both, {"f": lists, "g": one}, None)
        session.run(tf.compat.v1.tables_initializer())
        assert session.run(found).tolist() == [[3, 2], [2, 1]]


def test_no_column_knows_all_values_and_none_is_counted():
    assert unknown.list_fields([features.Numeric(names=["x"])]) == []


@pytest.mark.parametrize("count, is_told", [(5, False), (6, True)])
def test_a_share_is_told_above_a_twentieth(count, is_told):
    shares = unknown.Shares(["job", "town"])
    shares.add(np.array([[60, count - 1], [0, 0]]))
    shares.add(np.array([[40, 1], [0, 0]]))
    lines = shares.describe("of split 'test'")
    assert len(lines) == is_told
    assert not lines or lines[0].startswith(
        "The model does not know 6.0% of the values of field 'job' of split 'test', 6 of 100: "
    )
