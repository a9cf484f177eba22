"""One table for many fields: fields hash apart, and equal values with one salt share a row."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories, types
from mtl.features import embeddings, encoding, unified
from mtl.variables import row_names

tf1 = tf.compat.v1

ITEMS = {"item": np.array(["a", "b", "a"], object), "last": np.array(["a", "b", "c"], object)}


def _column(*names, **settings):
    return features.Unified(**{"names": names, "num_buckets": 1000, "dimension": 3, **settings})


def _run(columns, batch=ITEMS):
    """Return the outputs of columns for a batch, the random tables, and their gradients."""
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = {
            name: tf.ragged.constant(values) if isinstance(values, list) else tf.constant(values)
            for name, values in batch.items()
        }
        outputs = features.encode_columns(columns, fed, features.load_statistics(""))
        variables = tf1.trainable_variables()
        total = tf.add_n([tf.reduce_sum(value) for value in outputs.values()])
        gradients = tf.gradients(total, variables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        session.run(tf1.global_variables_initializer())
        tables = {variable.op.name: variable for variable in variables}
        return session.run((outputs, tables, [each.values for each in gradients]))


def _rows(output, tokens, num_lookups=2):
    key = unified._make_key(output)
    return embeddings.hash_tokens(tf.constant(tokens), 1000, num_lookups, key).numpy()


def test_a_value_joins_the_rows_of_hashes_that_depend_on_the_field():
    columns = [_column("item"), _column("last", num_lookups=3)]
    outputs, tables, gradients = _run(columns)
    assert list(tables) == ["features/unified/embedding"]
    (table,) = tables.values()
    assert table.shape == (1000, 3)
    for name, lookups in (("item", 2), ("last", 3)):
        rows = _rows(f"unified_{name}", ITEMS[name].tolist(), lookups)
        expected = table[rows].reshape(3, 3 * lookups)
        np.testing.assert_array_equal(outputs[f"unified_{name}"], expected)
    # Nothing is summed before the optimizer: 3 rows of 2 lookups, and 3 of 3.
    assert sum(map(len, gradients)) == 15


def test_values_of_two_fields_meet_by_chance_alone():
    tokens = [str(number) for number in range(2000)]
    first, second = _rows("unified_item", tokens), _rows("unified_last", tokens)
    for one, other in ((first[:, 0], second[:, 0]), (first[:, 0], first[:, 1])):
        assert (one == other).sum() < 15  # 2 are expected.


def test_fields_of_one_salt_give_equal_values_equal_rows():
    columns = [_column("item", salt="item"), _column("last", salt="item")]
    outputs, _, _ = _run(columns)
    item, last = outputs["unified_item"], outputs["unified_last"]
    np.testing.assert_array_equal(item[:2], last[:2])
    assert (item[2] != last[2]).any()


@pytest.mark.medium
def test_lists_are_pooled_and_integers_are_their_digits():
    batch = {"item": [[1, 2], [], [2]], "last": np.array(["1", "2", "2"], object)}
    columns = [_column("item", salt="s", pooling="sum"), _column("last", salt="s")]
    outputs, _, _ = _run(columns, batch)
    lists, single = outputs["unified_item"], outputs["unified_last"]
    np.testing.assert_allclose(lists, [single[0] + single[1], np.zeros(6), single[1]], rtol=1e-6)


def test_keys_stay_the_same():
    """Checkpoints depend on them."""
    assert _rows("unified_item", ["a", "b"]).tolist() == [[782, 135], [351, 156]]


def test_items_of_a_history_have_the_rows_of_the_item_that_is_shown():
    clicked = _column("clicked", salt="item")
    history = features.History(
        name="clicks", events=[clicked], encoder=histories.Pooling(kind="sum")
    )
    shown = _column("item", salt="item")
    batch = {"item": ITEMS["item"], "clicked": [["a"], ["b"], ["a"]]}
    outputs, tables, _ = _run([history, shown], batch)
    assert list(tables) == ["features/unified/embedding"]
    np.testing.assert_array_equal(outputs["clicks"], outputs["unified_item"])
    assert history.row_names(features.load_statistics(""))["unified"].names == ("item",)


def test_rows_stand_for_what_the_hashes_of_all_columns_make_of_them():
    columns = [_column("item", "last"), _column("now", salt="item")]
    named = {}
    for column in columns:
        named = row_names.join(named, column.row_names(features.load_statistics("")))
    expected = types.RowNames(
        names=("item", "unified_item", "unified_last"), axis=0, are_grouped=True, are_a_set=True
    )
    assert named == {"unified": expected}


def test_settings():
    with pytest.raises(checks.UserError, match="Unified.dimension must be a whole number"):
        _column("item", dimension=None)
    with pytest.raises(checks.UserError, match="Unified.num_lookups must be at least 1"):
        _column("item", num_lookups=0)
    with pytest.raises(checks.UserError, match="'unified' must have the same Unified.num_buckets"):
        encoding.check_columns([_column("item"), _column("last", num_buckets=9)], ITEMS)
    own = _column("item", "last", table=None)
    _, tables, _ = _run([own])
    assert list(tables) == ["features/unified_item/embedding", "features/unified_last/embedding"]
