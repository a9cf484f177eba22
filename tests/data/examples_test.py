"""Serialized rows: the bytes that protocol buffers write for each value."""

import datetime
import decimal

import numpy as np
import pytest
import tensorflow as tf

from mtl.data import examples

_SIZES = [0, 1, 2, 100, 115, 127, 128, 129, 16_000, 16_384]
TEXTS = [*("x" * size for size in _SIZES), "ä\0b", "", "x"]
_EDGES = [1 << bits for bits in range(63)]
NUMBERS = [0, *_EDGES, *(edge - 1 for edge in _EDGES), *(-edge for edge in _EDGES), -(2**63)]


def _serialize(values, kind):
    """One example for each value, made by protocol buffers alone."""
    features = [tf.train.Feature(**{kind: {"value": [value]}}) for value in values]
    rows = [tf.train.Features(feature={"a": feature}) for feature in features]
    return [tf.train.Example(features=row).SerializeToString() for row in rows]


@pytest.mark.parametrize("is_bytes", [False, True])
def test_texts_of_any_length(is_bytes):
    encoded = [text.encode() for text in TEXTS]
    values = np.array(encoded if is_bytes else TEXTS, object)
    found = examples.serialize_examples({"a": values})
    assert found.tolist() == _serialize(encoded, "bytes_list")


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_integers_of_any_size(dtype):
    values = np.array(NUMBERS, np.int64).astype(dtype)
    found = examples.serialize_examples({"a": values})
    assert found.tolist() == _serialize(values.tolist(), "int64_list")


def test_columns_are_joined_row_by_row():
    columns = {"n": np.array([7, -1]), "t": np.array(["b", ""], object), "f": np.float32([1, 2])}
    found = examples.serialize_examples({**columns, "l": [np.array([1, 2]), None]})
    parsed = [tf.train.Example.FromString(row).features.feature for row in found]
    assert [list(row["n"].int64_list.value) for row in parsed] == [[7], [-1]]
    assert [list(row["t"].bytes_list.value) for row in parsed] == [[b"b"], [b""]]
    assert [list(row["f"].float_list.value) for row in parsed] == [[1], [2]]
    assert [list(row["l"].int64_list.value) for row in parsed] == [[1, 2], []]


def test_other_values_are_their_texts():
    values = [decimal.Decimal("1.5"), datetime.date(2024, 5, 31), {"at": datetime.time(7, 30)}]
    (found,) = {
        tuple(
            tf.train.Example.FromString(row).features.feature["x"].bytes_list.value[0]
            for row in examples.serialize_examples({"x": values})
        )
    }
    assert found == (b'"1.5"', b'"2024-05-31"', b'{"at": "07:30:00"}')


def test_no_rows():
    assert examples.serialize_examples({"a": np.array([], object)}).tolist() == []
    assert examples.serialize_examples({"a": np.array([], np.int64)}).tolist() == []
