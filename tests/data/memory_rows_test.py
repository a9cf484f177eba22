"""Rows in memory give the values that they were made of, in any order."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import spec
from mtl.data import memory_rows

FIELDS = spec.Spec(
    features={
        "age": "float32",
        "pair": ("int64", (2,)),
        "word": "string",
        "words": ("string", (2,)),
        "tags": ("string", (None,)),
        "counts": ("int64", (None,)),
        "seen": "bool",
    },
    labels={"label": "int64"},
).fields
TEXTS = ["", "a", "b", "é", b"\xff\x00", "a" * 100]


def _draw(count):
    """{field: its values}."""
    draw = np.random.default_rng(0)

    def texts(size):
        drawn = np.empty(size, object)
        drawn[:] = [TEXTS[number] for number in draw.integers(0, len(TEXTS), size)]
        return drawn

    lengths = draw.integers(0, 4, [2, count])
    return {
        "age": draw.normal(size=count).astype(np.float32),
        "pair": draw.integers(-9, 9, [count, 2]),
        "word": texts(count),
        "words": texts(2 * count).reshape(count, 2),
        "tags": [texts(length) for length in lengths[0]],
        "counts": [draw.integers(0, 9, length) for length in lengths[1]],
        "seen": draw.integers(0, 2, count) == 1,
        "label": draw.integers(0, 5, count),
    }


def _encode(values):
    if isinstance(values, (list, np.ndarray)):
        return [_encode(value) for value in values]
    return values.encode() if isinstance(values, str) else getattr(values, "item", lambda: values)()


# Few rows of few texts, and few of many: the texts of a call are found in two ways.
@pytest.mark.parametrize(("count", "taken"), [(40, 40), (40, 1), (500, 2), (3, 0), (0, 0)])
def test_any_rows_can_be_taken(count, taken):
    values = _draw(count)
    layout = memory_rows.Layout(FIELDS)
    rows = memory_rows.Rows(layout, values)
    chosen = np.random.default_rng(1).permutation(count)[:taken]
    splits = tf.zeros([taken], tf.int64)
    found = memory_rows.take(layout, lambda split: rows, splits, tf.constant(chosen, tf.int64))
    assert found.keys() == FIELDS.keys()
    for name, field in FIELDS.items():
        expected = _encode([values[name][row] for row in chosen])
        assert found[name].dtype == field.dtype and found[name].shape[0] == taken
        got = found[name].to_list() if field.is_ragged else found[name].numpy().tolist()
        assert got == expected


def test_a_call_gets_only_the_texts_of_its_rows():
    layout = memory_rows.Layout({name: FIELDS[name] for name in ("word", "tags")})
    words = np.array([f"word {row}" for row in range(1000)], object)
    rows = memory_rows.Rows(layout, {"word": words, "tags": [["tag"], *[[]] * 999]})
    for taken in ([5, 5, 7], [0], list(range(500))):
        *_, texts = rows.take(np.array(taken))
        expected = {f"word {row}".encode() for row in taken} | ({b"tag"} if 0 in taken else set())
        assert set(texts) == expected and len(texts) == len(expected)


def test_the_size_of_a_row_counts_the_places_of_its_lists():
    sizes = {"age": 4, "pair": 16, "word": 4, "words": 8, "seen": 1, "tags": 8, "counts": 8}
    for name, size in sizes.items():
        assert memory_rows.Layout({name: FIELDS[name]}).row_bytes == size
    layout = memory_rows.Layout({name: FIELDS[name] for name in sizes})
    assert layout.row_bytes == sum(sizes.values())
