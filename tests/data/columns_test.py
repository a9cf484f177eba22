"""Columns that are read at once mean the same as values that `frames.Table` reads one by one."""

import datetime
import decimal
import re

import numpy as np
import pyarrow as pa
import pytest

from mtl import checks, spec
from mtl.data import columns, csv, frames, packed

CELLS = csv.Csv(files={"input": ""}, missing=("", "?"))
NUMBERS = ["1", " 2 ", "-3", "4.0", "+5", "0", "7.5", "1e3", ".5", "5.", "nan", "inf", "-Infinity"]
ODD = ["", "?", " ", "x", "0x10", "1,000", "1_000", "1e39", "nan(1)", "True", "FALSE", "1e-50", "é"]
ODD += ["9223372036854775807", "9223372036854775808", "256", "-1", "007", "1\u00a0", "٣", "1 2"]
LISTS = ["1|2", "1||2", " 3|4 ", "5", "", "?", "|", "1| 2", "[1, 2]", "['a', 'b']", "a| b", "[a|b"]
KINDS = {
    "scalar": (),
    "one": (1,),
    "array": (2,),
    "list": (None,),
    "lists": (None, None),
    "square": (2, 2),
}
COLUMNS = {
    "float64": pa.array([1.5, None, -2.0, float("nan"), 3.0]),
    "float32": pa.array([1.5, 2.0, -2.0, float("inf"), 3.0], pa.float32()),
    "half": pa.array([np.float16(1.5), None, np.float16(2)], pa.float16()),
    "int64": pa.array([1, None, 2**60 + 1, -1, 0]),
    "int8": pa.array([1, 0, 1, 0, 1], pa.int8()),
    "uint64": pa.array([1, 2**64 - 1], pa.uint64()),
    "bool": pa.array([True, False, None]),
    "full bool": pa.array([True, False]),
    "null": pa.nulls(3),
    "decimal": pa.array([decimal.Decimal("1.25"), None]),
    "date": pa.array([datetime.date(2024, 5, 31), None]),
    "text": pa.array(["a", None, " b ", "a", "?"]),
    "large text": pa.array(["1", "2", "1"], pa.large_string()),
    "bytes": pa.array([b"1", b"2", None], pa.binary()),
    "no text": pa.array([b"\xff", b"a"], pa.binary()),
    "dictionary": pa.array(["1", "2", None, "1"]).dictionary_encode(),
    "dictionary of numbers": pa.array([1, 2, None, 1]).dictionary_encode(),
    "list of int": pa.array([[1, 2], [], None, [3]]),
    "list of two": pa.array([[1, 2], [3, 4]]),
    "list of float": pa.array([[1.5, float("nan")], [2.0, 3.0]]),
    "list of text": pa.array([["a", " b"], ["1", ""]]),
    "list of bool": pa.array([[True, False], [True, True]]),
    "list with null": pa.array([[1, None], [3, 4]]),
    "sized list": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
    "squares": pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    "flat squares": pa.array([[1, 2, 3, 4], [5, 6, 7, 8]]),
    "empty lists": pa.array([[], []]),
    "slice": pa.array([[9], [1, 2], [3, 4], [5]]).slice(1, 2),
    "no row": pa.array([], pa.string()),
}


def _expect(field, column):
    """Return the values that `frames.Table` reads, or None for an error."""
    try:
        values = columns.to_python("column", pa.chunked_array([column]))
        table = frames.Table({"x": values}, {"x": field}, "data", CELLS)
        return packed.pack_field(table.read(0, len(table))["x"], field)
    except checks.UserError:
        return None


def _plain(values):
    if isinstance(values, packed.Texts):
        return [values.distinct[number].as_py() for number in values.numbers.tolist()]
    if isinstance(values, packed.Lists):
        flat, splits = _plain(values.values), values.splits.tolist()
        return [flat[a:b] for a, b in zip(splits[:-1], splits[1:], strict=True)]
    return values.tolist()


def _compare(field, column):
    """Fail unless both readers agree; return True if the fast one has read the column."""
    expected = _expect(field, column)
    chunks = [column.slice(0, 1), column.slice(1)] if len(column) else []
    found = columns.read_column(field, pa.chunked_array(chunks, column.type), CELLS)
    if found is None:
        return False
    assert expected is not None, (field, column)
    if isinstance(found, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        return True
    assert repr(_plain(found)) == repr(_plain(expected)), (field, column)
    return True


def _fields():
    for dtype, default in [("float32", 2.5), ("int64", 3), ("uint8", 4), ("bool", True)]:
        for kind, shape in KINDS.items():
            for value in (None, default) if "list" not in kind else (None,):
                yield spec.Field(name="x", dtype=dtype, shape=shape, default=value)
    for shape in KINDS.values():
        yield spec.Field(name="x", dtype="string", shape=shape)
    yield spec.Field(name="x", dtype="string", default="none")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_each_type_means_what_its_values_mean(name):
    for field in _fields():
        _compare(field, COLUMNS[name])


@pytest.mark.parametrize("text", [*NUMBERS, *ODD, *LISTS])
def test_each_text_means_what_it_means_alone(text):
    for field in _fields():
        _compare(field, pa.array([text]))
        _compare(field, pa.array(["1", text, None]))


@pytest.mark.parametrize(
    ("dtype", "shape", "column"),
    [
        ("float32", (), "float64"),
        ("int64", (), "int64"),
        ("bool", (), "bool"),
        ("string", (), "text"),
        ("string", (), "date"),
        ("int64", (), "dictionary"),
        ("int64", (None,), "list of int"),
        ("string", (None,), "list of text"),
        ("uint8", (2, 2), "squares"),
        ("float32", (2, 2), "flat squares"),
        ("int64", (2,), "sized list"),
        ("int64", (None,), "slice"),
    ],
)
def test_usual_columns_are_read_at_once(dtype, shape, column):
    default = None if shape else {"int64": -1, "float32": 0.5, "bool": False}.get(dtype)
    assert _compare(
        spec.Field(name="x", dtype=dtype, shape=shape, default=default), COLUMNS[column]
    )


def test_texts_of_usual_numbers_and_lists_are_read_at_once():
    number = spec.Field(name="x", dtype="float32", default=0.0)
    whole = spec.Field(name="x", dtype="int64", shape=(None,))
    words = spec.Field(name="x", dtype="string", shape=(None,))
    assert _compare(number, pa.array(["1", " 2.5", "", "-1e3", "nan", "?"]))
    assert _compare(whole, pa.array(["1|2", "", " 3|4 ", "?", "5||6"]))
    assert _compare(words, pa.array(["a|b", "", " c| d", None]))


def test_numbers_round_as_in_a_csv_file():
    """Python rounds a text to float64 first: this one then becomes another float32."""
    import tensorflow as tf

    texts = ["1.00000017881393432617187499", "0.1", "16777217", "3.4028235e38"]
    field = spec.Field(name="x", dtype="float32")
    found = columns.read_column(field, pa.chunked_array([pa.array(texts)]), CELLS)
    assert found.tolist() == tf.strings.to_number(texts, tf.float32).numpy().tolist()
    assert np.float32(float(texts[0])) != found[0]


def test_columns_that_are_read_at_the_same_time_hold_the_same_values(monkeypatch):
    count = len(NUMBERS)
    names = ["number", "text", "list", "odd"]
    texts = [NUMBERS, ODD[:count], [f"{n}|2" for n in range(count)], ODD[-count:]]
    table = pa.table(dict(zip(names, texts, strict=True)))
    kinds = {"number": "float32", "text": "string", "list": ("int64", (None,)), "odd": "float32"}
    defaults = {"text": "-"}
    fields = spec.Spec(features=kinds, labels={}, defaults=defaults).fields
    found = []
    for least in (1 << 16, 1):
        monkeypatch.setattr(columns, "_CELLS_OF_THREADS", least)
        values = columns.read_columns(table, {name: name for name in names}, fields, CELLS)
        assert values.get("odd") is None and values["text"] is not None
        found.append(re.sub(r" at 0x\w+", "", repr(values)))
    assert found[0] == found[1]
