"""Numbers of texts and ids in training batches, beside the batches of texts."""

import functools

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from mtl import spec
from mtl.checkpoints import settings
from mtl.data import coded_rows, pipeline
from mtl.step import codes
from tests import tiny

tf1 = tf.compat.v1

SPEC = spec.Spec(
    features={
        "word": "string",
        "pair": ("string", (2,)),
        "tags": ("string", (None,)),
        "items": ("int64", (None,)),
        "age": "int64",
        "free": ("string", (None,)),
    },
    labels={"y": "int64"},
)
NUM = 50
WORDS = np.array([b"a", b"bc", b"", b"\xff\0x", b"d"], object)


def _list(values, seed):
    """Lists of up to three values."""
    rng = np.random.default_rng(seed)
    return [[values[i] for i in rng.integers(0, len(values), n)] for n in rng.integers(0, 4, NUM)]


def _rows():
    rng = np.random.default_rng(0)
    return {
        "word": WORDS[rng.integers(0, 5, NUM)],
        "pair": WORDS[rng.integers(0, 5, (NUM, 2))],
        "tags": _list([b"x", b"", b"y"], 1),
        "items": _list([-(2**63), 7, 2**62], 2),
        "age": rng.integers(-3, 3, NUM),
        "free": _list([b"p", b""], 3),
        "y": rng.integers(0, 2, NUM),
    }


def _hash(values, buckets):
    texts = values if values.dtype == tf.string else tf.strings.as_string(values)
    return tf.strings.to_hash_bucket_fast(texts, buckets)


HASHES = {
    "first": functools.partial(_hash, buckets=5),
    "second": functools.partial(_hash, buckets=9),
}
ENCODERS = {
    "word": HASHES,
    "pair": {"first": HASHES["first"]},
    "tags": HASHES,
    "items": {"second": HASHES["second"]},
    "age": {"first": HASHES["first"]},
}


def _read(data, count=9, unpack=lambda features: features, look=lambda features: {}):
    """Return the features and the results of `look` for the first batches, and the graph."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(
            data.dataset("train", training=True, seed=4, start_step=2)
        )
        features, _ = iterator.get_next()
        features = unpack(features)
        fetched = {**features, **look(features)}
        session.run(iterator.initializer)
        return [session.run(fetched) for _ in range(count)], graph


def _plain(batches):
    """{feature: plain lists} of each batch."""
    return [
        {
            name: value.to_list() if hasattr(value, "to_list") else value.tolist()
            for name, value in batch.items()
        }
        for batch in batches
    ]


def _make(window):
    """A plain and a coded pipeline of rows in memory, or in windows of so many rows."""
    source = tiny.Rows(splits={"train": _rows()})
    if window is not None:
        source = tiny.Blocks(splits=source.splits, window=window)
    plain = pipeline.Pipeline(source=source, spec=SPEC, batch_size=8, cache=window is None)
    return plain, coded_rows.code_texts(plain, ENCODERS)


# Windows of some batches, and of less than a batch.
WINDOWS = pytest.mark.parametrize("window", [None, 20, 3])


@WINDOWS
def test_texts_are_those_of_a_plain_pipeline(window):
    plain, coded = _make(window)
    expected, _ = _read(plain, count=40)
    texts, _ = _read(coded, count=40, unpack=coded.unpack)
    assert _plain(texts) == _plain(expected)


@WINDOWS
def test_ids_are_those_that_the_graph_looks_up(window):
    plain, coded = _make(window)

    def look_up(features):
        return {
            f"{field} {column}": tf.ragged.map_flat_values(encode, features[field])
            for field, columns in ENCODERS.items()
            for column, encode in columns.items()
        }

    def find(features):
        return {
            f"{field} {column}": codes.find_ids(features[field], column)
            for field, columns in ENCODERS.items()
            for column in columns
        }

    expected, _ = _read(plain, look=look_up)
    ids, graph = _read(coded, unpack=coded.unpack, look=find)
    assert _plain(ids) == _plain(expected)
    assert not {op.type for op in graph.get_operations()} & {"StringToHashBucketFast", "AsString"}
    for _, kept in graph.get_collection_ref(codes._KEY):
        assert {one.dtype for one in kept.values()} == {tf.int64}


def test_a_changed_feature_has_no_ids():
    with tf.Graph().as_default():
        texts, ids = tf.constant(["a", "b"]), tf.constant([4, 2], tf.int64)
        codes.remember(texts, {"first": ids})
        assert codes.find_ids(texts, "first") is ids
        assert codes.find_ids(texts, "second") is None
        assert codes.find_ids(texts[:1], "first") is None
        assert codes.find_ids(tf.identity(texts), "first") is None
    assert codes.find_ids(tf.constant(["a"]), "first") is None


@pytest.mark.parametrize("count", [0, 1, 5])
def test_values_are_looked_up_some_at_a_time(monkeypatch, count):
    monkeypatch.setattr(coded_rows, "_AT_ONCE", 2)
    distinct = WORDS[:count]
    expected = [int(_hash(tf.constant([text]), 9)[0]) for text in distinct.tolist()]
    look_up = coded_rows.Lookups([(HASHES["second"], "string"), (HASHES["first"], "string")])
    tables = look_up([distinct, distinct])
    look_up.close()
    assert tables[0].tolist() == expected and len(tables[1]) == count


def test_texts_stay_until_no_batch_can_hold_their_numbers(monkeypatch):
    monkeypatch.setattr(coded_rows, "_MOST_TEXTS", 64)  # Numbers begin anew again and again.
    texts, added = coded_rows.Texts(), []
    texts.most_rows = 20
    for window in range(50):
        own = [f"{window} {place}".encode() for place in range(6)]
        first = texts.add({"word": pa.array(own, pa.large_binary())}, rows=10)["word"]
        assert first + 6 <= 64
        added.append((first, own))
        # The window that is read ahead, the present one, and two with the rows in batches.
        for first, own in added[-4:]:
            numbers = np.arange(first, first + 6).reshape(2, 3)
            assert texts.find("word", numbers).ravel().tolist() == own
    assert len(texts._parts) == 4


def test_records_of_settings_are_those_of_the_plain_pipeline():
    plain, coded = _make(None)
    assert settings.compute_digest(coded) == settings.compute_digest(plain)
    assert settings.digest_of_repr(coded) == settings.digest_of_repr(plain)
