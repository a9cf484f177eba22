"""Histories whose events hold several values, such as the categories of a clicked item."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories, layers, networks, spec, verbs
from mtl.optimization import optimizers
from tests import tiny
from tests.histories import padding
from tests.tools.clip_audit import norms_test

tf1 = tf.compat.v1

NOTHING = features.Statistics(directory="", entries={})
COUNTS = spec.counts_name("kinds")
ROWS = [[[3, 1], [], [2]], [], [[]], [[0, 0, 4]]]


def _fields(rows, as_text=False, **others):
    """The kinds of events, as a Spec gives them to columns."""
    counts = [[len(event) for event in row] for row in rows]
    flat = [value for row in rows for event in row for value in event]
    values = tf.constant([str(v) for v in flat]) if as_text else tf.constant(flat, tf.int64)
    made = {
        "kinds": tf.RaggedTensor.from_row_lengths(values, [sum(own) for own in counts]),
        COUNTS: _list(counts),
    }
    return {**made, **{name: _list(own) for name, own in others.items()}}


def _list(rows):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(sum(rows, []), tf.int64), [len(own) for own in rows]
    )


def _kinds(**settings):
    return features.Identity(**{"names": ["kinds"], "size": 5, "dimension": 2, **settings})


def _history(**settings):
    defaults = {"name": "clicks", "events": [_kinds()], "encoder": histories.Pooling(kind="sum")}
    return features.History(**{**defaults, **settings})


def _run(history, make_fields):
    """The vectors of rows, each table, and the gradient of the sum of squares by it."""
    with tf.Graph().as_default(), tf1.Session() as session:
        encoded = features.encode_columns([history], make_fields(), NOTHING)[history.name]
        tables = tf1.trainable_variables()
        slopes = tf.gradients(tf.reduce_sum(encoded**2), tables)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        slopes = [tf.convert_to_tensor(slope) for slope in slopes]
        return session.run((encoded, tables, slopes))


@pytest.mark.parametrize("last", [None, 2])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_an_event_is_what_its_values_pool_to(pooling, last):
    others = [features.Identity(names=["place"], size=9, dimension=2)]
    places = [[1, 2, 3], [], [4], [5]]
    history = _history(events=[_kinds(pooling=pooling), *others], last=last)
    encoded, (table, of_places), (slope, _) = _run(history, lambda: _fields(ROWS, place=places))
    expected, expected_slope = np.zeros([4, 4]), np.zeros_like(table)
    for row, (events, places_of) in enumerate(zip(ROWS, places, strict=True)):
        events, places_of = events[-(last or 99) :], places_of[-(last or 99) :]
        for event, place in zip(events, places_of, strict=True):
            weight = 1 / len(event) if pooling == "mean" and event else 1
            expected[row, :2] += weight * sum((table[v] for v in event), np.zeros(2))
            expected[row, 2:] += of_places[place]
        for event in events:
            weight = 1 / len(event) if pooling == "mean" and event else 1
            for value in event:
                expected_slope[value] += 2 * weight * expected[row, :2]
    np.testing.assert_allclose(encoded, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5, atol=1e-6)
    assert (encoded[1] == 0).all() and (encoded[2, :2] == 0).all()


def test_an_event_without_values_is_an_event():
    history = _history(encoder=histories.Pooling())
    encoded, (table,), _ = _run(history, lambda: _fields([[[1], [1], []]]))
    np.testing.assert_allclose(encoded[0], table[1] * 2 / 3, rtol=1e-5)


def test_numbers_are_fitted_to_batches_whose_events_have_no_values():
    numbers = features.Numeric(names=["price"])
    kinds = features.Identity(names=["kinds"], size=9, dimension=2)
    history = features.History(name="h", events=[numbers, kinds], encoder=histories.Pooling())
    accumulator = history.accumulators()["numeric_price"]
    for rows, prices in (([[[], []]], [[1, 3]]), ([[[5]]], [[8]])):
        accumulator.update(_fields(rows, price=prices))
    assert accumulator.save("", "numeric_price")["mean"] == [4.0]


def test_boundaries_of_a_cross_are_fitted_to_batches_whose_events_have_no_values():
    crossed = features.Crossed(crosses=[["kinds", "price"]], boundaries={"price": 2}, dimension=2)
    accumulator = _history(events=[crossed]).accumulators()["crossed_price"]
    expected = crossed.accumulators()["crossed_price"]
    for rows, prices in (([[[], []]], [[1, 3]]), ([[[5]]], [[8]])):
        accumulator.update(_fields(rows, price=prices))
        expected.update({"price": tf.constant(prices[0])})
    assert accumulator.save("", "crossed_price") == expected.save("", "crossed_price")


def test_batches_without_events_or_without_values_are_encoded():
    for rows in ([[], []], [[[]], [[], []]]):
        encoded, _, (slope,) = _run(_history(), lambda rows=rows: _fields(rows))
        assert (encoded == 0).all() and encoded.shape == (2, 2) and (slope == 0).all()


def test_a_vocabulary_and_a_table_that_grows_take_every_value(tmp_path):
    rows = [[["b", "a"], []], [], [["b"]]]
    column = features.Categorical(names=["kinds"], min_count=1, dimension=2)
    batches = [(_fields(rows, as_text=True), {})]
    features.fit_columns([_history(events=[column])], batches, str(tmp_path))
    fitted = features.load_statistics(str(tmp_path))
    with open(fitted.path(fitted.for_column("categorical_kinds")["file"])) as file:
        assert file.read().split() == ["b", "a"]
    growing = features.Growing(names=["kinds"], capacity=16)
    keys = _history(events=[growing], last=1).keys(_fields(rows, as_text=True))
    assert keys["growing_kinds"].shape == [1]  # The event without a value is the last of its row.


@pytest.mark.parametrize("counts", [[[2], [1]], [[1, 1], [2]], [[3, -1], [1]], [[2**62] * 4, [1]]])
def test_values_that_are_not_counted_as_they_are(counts):
    def make():
        fields = _fields([[[1, 2], [3]], [[4]]])
        return {**fields, COUNTS: _list(counts)}

    says = "features.clicks must read as many values of kinds as kinds/values_per_item counts"
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        _run(_history(), make)


def test_lists_beside_it_hold_an_entry_for_each_event():
    others = [features.Identity(names=["place"], size=9, dimension=2)]
    history = _history(events=[_kinds(), *others])
    says = "must read lists of equal length in a row, kinds and place"
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        _run(history, lambda: _fields([[[1, 2], [3]]], place=[[1, 2, 3]]))
    with pytest.raises(checks.UserError, match="History.times must hold one time for each event"):
        _run(_history(times="kinds", now="place"), lambda: _fields(ROWS, place=[[1]] * 4))
    with pytest.raises(checks.UserError, match=r"fields of shape \(\) or \(n,\), got 'kinds'"):
        _run(
            _history(events=[features.Numeric(names=["kinds"], normalization="none")]),
            lambda: _fields(ROWS),
        )


def _split(rows):
    """The same rows with tags by item: of each row the items have one value, none and the rest."""
    counts = [[1, 0, len(tags) - 1][: len(tags) + 1] if tags else [] for tags in rows["tags"]]
    return {**rows, spec.counts_name("tags"): [np.array(own, np.int64) for own in counts]}


def _make(**settings):
    token = {"dimension": 4, "table": "token", "min_count": 1}
    history = features.History(
        name="clicks",
        events=[features.Categorical(names=["tags"], **token)],
        encoder=histories.TargetAttention(layers=[4]),
        target=["categorical_word"],
        last=2,
    )
    word = features.Categorical(names=["word"], **token)
    splits = {name: _split(rows) for name, rows in tiny.TAGGED_SPLITS.items()}
    made = tiny.make(splits=splits, columns=[history, word], **settings)
    nested = {**tiny.SPEC.features, "tags": ("string", (None, None))}
    described = dataclasses.replace(tiny.SPEC, features=nested)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, spec=described))


@pytest.mark.medium
def test_ragged_and_padded_rows_are_served_alike(tmp_path):
    """The export's own check compares rows of tf.Examples with the Estimator."""
    verbs.train(_make(check_rows=32, train_steps=8, micro_batches=2), str(tmp_path))
    rows = {key: own[:8] for key, own in _split(tiny.TAGGED_SPLITS["test"]).items()}
    fillers = {"tags": b"b", spec.counts_name("tags"): 7}
    given = {name: rows[name] for name in ("x", "word", *fillers)}
    padding.assert_padding_changes_nothing(_make(), tmp_path, given, fillers)


@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path):
    plain = networks.SharedBottom(trunk=networks.MLP(layers=[8]))
    descent = optimizers.SGD(learning_rate=0.05)
    make = functools.partial(_make, network=plain, optimizer=descent)
    tiny.assert_trains_in_parts(make, tmp_path, 5)


@pytest.mark.slow
def test_norms_of_examples_are_those_of_a_pass_for_each():
    rows = [[[3, 1], [], [2]], [], [[]], [[0, 0, 4]], [[1]]]

    def make_batch():
        batch = {name: norms_test.row_batch()[name] for name in ("x", "label")}
        return {**batch, **_fields(rows)}

    def network(batch):
        own = {name: batch[name] for name in ("kinds", COUNTS)}
        encoded = features.encode_columns([_history()], own, NOTHING)["clicks"]
        both = tf.concat([encoded, batch["x"]], axis=1)
        logits = layers.dense(both, norms_test.CLASSES, "a")
        return {"a": norms_test.cross_entropy(logits, batch["label"])}

    fast, slow, _ = norms_test.measured(network, make_batch)
    norms_test.assert_same(fast, slow)
