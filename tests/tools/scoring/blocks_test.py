"""Blocks equal the output of Python's json, csv and protobuf modules for the same rows."""

import csv
import datetime
import decimal
import io
import json

import numpy as np
import pytest
import tensorflow as tf

from mtl.data import examples
from mtl.tools.scoring import blocks

NAMES = [b"a", 'ü"\\'.encode(), b"x,y\nz", b"\xff\xfe", b"z\0"]
COLUMNS = {
    'of "a"/number': np.array([0.1, 5, 1e-7, 3e38, -2.5], np.float32),
    "infinite": np.array([np.nan, np.inf, -np.inf, 0, 0.1]),
    "half": np.array([0.1, 1, 2, 3, 4], np.float16),
    "id": np.array([-(2**63), 2**63 - 1, 0, 1, 300]),
    "small": np.array([0, 1, 2, 254, 255], np.uint8),
    "truth": np.array([True, False, True, True, False]),
    "name": np.array(NAMES, object),
    "names": np.array([NAMES[:2]] * 5, object),
    "matrix": np.arange(30, dtype=np.float32).reshape(5, 2, 3) / 7,
    "none": np.zeros((5, 0), np.float32),
}
KEPT = {
    "text": ["a", "b", "ü", 'q"', ","],
    "mixed": [None, True, "a,b", [1, [2, "x"]], {"k": 0.1}],
    "lists": [np.array([1, 2]), np.array([], np.int64), *[np.array([3])] * 3],
}
TEXTS = ["a", 'ü"\\', "x,y\nz", "//4=", "z\0"]


def test_json_lines():
    block = blocks.MAKERS["jsonl"]({**COLUMNS, **KEPT})
    rows = [json.loads(line) for line in block.rows.decode().splitlines()]
    assert [list(row) for row in rows] == [[*COLUMNS, *KEPT]] * 5
    read = {name: [row[name] for row in rows] for name in rows[0]}
    for name in ('of "a"/number', "infinite", "half", "id", "small", "truth", "matrix", "none"):
        np.testing.assert_array_equal(np.array(read[name], COLUMNS[name].dtype), COLUMNS[name])
    assert read["name"] == TEXTS and read["names"] == [TEXTS[:2]] * 5
    assert read["truth"][0] is True
    assert read["text"] == KEPT["text"] and read["mixed"] == KEPT["mixed"]
    assert read["lists"] == [[1, 2], [], [3], [3], [3]]
    kept = {
        "scores": [np.float32([0.1, np.nan]), np.float32([])],
        "items": [[np.float32([0.1])], []],
    }
    lines = blocks.MAKERS["jsonl"](kept).rows.splitlines()
    assert lines[0] == b'{"scores": [0.1, NaN], "items": [[0.1]]}'
    assert lines[1] == b'{"scores": [], "items": []}'
    assert blocks.MAKERS["csv"](kept).rows.split() == [b"0.1|nan,0.1", b","]
    # Parquet has such values; they are written as in CSV.
    kept = {"day": [datetime.date(2024, 5, 31)], "price": [decimal.Decimal("1.50")]}
    assert b'"2024-05-31"' in (rows := blocks.MAKERS["jsonl"](kept).rows) and b'"1.50"' in rows
    assert blocks.MAKERS["csv"](kept).rows.split() == [b"2024-05-31,1.50"]
    # The shortest text that reads back the same.
    assert b'"of \\"a\\"/number": 0.1,' in block.rows


def test_csv():
    block = blocks.MAKERS["csv"]({**COLUMNS, **KEPT})
    header, *rows = csv.reader(io.StringIO((block.header + block.rows).decode(), newline=""))
    assert header == [*COLUMNS, *KEPT]
    read = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name in ('of "a"/number', "infinite", "half", "id", "small"):
        np.testing.assert_array_equal(np.array(read[name], COLUMNS[name].dtype), COLUMNS[name])
    assert read["truth"] == ("1", "0", "1", "1", "0")
    assert read["name"] == tuple(TEXTS) and read["names"] == ('a|ü"\\',) * 5
    matrix = np.array([cell.split("|") for cell in read["matrix"]], np.float32)
    np.testing.assert_array_equal(matrix, COLUMNS["matrix"].reshape(5, 6))
    assert read["none"] == ("",) * 5 and read["text"] == tuple(KEPT["text"])
    assert read["mixed"][:4] == ("", "1", "a,b", "1|2|x")
    assert read["lists"] == ("1|2", "", "3", "3", "3")


def test_a_list_of_lists_in_csv_keeps_its_items():
    texts = [[["x", "y"], [], ["z"]], [], [[]], [[], []], [[], ["x"]]]
    numbers = [[np.float32([0.1, 2])], [], [np.float32([])], [np.float32([3])] * 2, []]
    block = blocks.MAKERS["csv"]({"items": texts, "scores": numbers})
    rows = list(csv.reader(io.StringIO(block.rows.decode())))
    assert rows == [["x;y||z", "0.1;2.0"], ["", ""], [";", ";"], ["|", "3.0|3.0"], ["|x", ""]]


@pytest.mark.parametrize("format_name", blocks.MAKERS)
def test_bfloat16_is_written_as_float32(format_name):
    values = np.array([0.5, np.inf, -3], tf.bfloat16.as_numpy_dtype)
    make = blocks.MAKERS[format_name]
    assert list(make({"a": values}).rows) == list(make({"a": values.astype(np.float32)}).rows)


def test_tables():
    table = blocks.MAKERS["parquet"]({**COLUMNS, **KEPT}).rows
    assert table.column_names == [*COLUMNS, *KEPT]
    read = table.to_pydict()
    for name in ('of "a"/number', "infinite", "half", "id", "small", "truth", "matrix", "none"):
        np.testing.assert_array_equal(np.array(read[name], COLUMNS[name].dtype), COLUMNS[name])
    assert read["name"] == TEXTS and read["names"] == [TEXTS[:2]] * 5
    assert read["text"] == KEPT["text"] and read["lists"] == [[1, 2], [], [3], [3], [3]]
    assert read["mixed"] == [None, "true", "a,b", '[1, [2, "x"]]', '{"k": 0.1}']
    # One row has the types of all.
    one = {name: values[:1] for name, values in {**COLUMNS, **KEPT}.items() if name != "mixed"}
    first = blocks.MAKERS["parquet"](one).rows.schema
    assert first == table.drop_columns(["mixed"]).schema


@pytest.mark.parametrize(
    "values, written",
    [
        ([1.5, True], ["1.5", "true"]),
        ([[1.5], [False]], ["[1.5]", "[false]"]),
        ([1, True], ["1", "true"]),
        ([1.5, 2, None], [1.5, 2.0, None]),
    ],
)
def test_values_of_no_common_type_are_json_in_tables(values, written):
    assert blocks.MAKERS["parquet"]({"id": values}).rows["id"].to_pylist() == written


def test_records():
    columns = {**COLUMNS, "text": KEPT["text"], "lists": KEPT["lists"]}
    records = blocks.MAKERS["tfrecord"](columns).rows
    for index, record in enumerate(records):
        features = tf.train.Example.FromString(record).features.feature
        assert sorted(features) == sorted(columns)
        for name, values in columns.items():
            dtype = np.asarray(values[0]).dtype.kind
            kind = {"f": "float_list", "S": "bytes_list", "O": "bytes_list", "U": "bytes_list"}
            kind = kind.get(dtype, "int64_list")
            assert features[name].WhichOneof("kind") == kind
            expected = np.array(values[index], None if dtype in "fiub" else object).ravel().tolist()
            if kind == "bytes_list":
                expected = list(map(tf.compat.as_bytes, expected))
            if kind == "float_list":
                expected = np.float32(expected).tolist()
            np.testing.assert_equal(list(getattr(features[name], kind).value), expected)
    fields = {"small": tf.io.FixedLenFeature((), tf.int64), "name": tf.io.VarLenFeature(tf.string)}
    parsed = tf.io.parse_example(tf.constant(records), fields)
    assert parsed["small"].numpy().tolist() == [0, 1, 2, 254, 255]
    assert parsed["name"].values.numpy().tolist() == NAMES


@pytest.mark.parametrize("values", [np.zeros((3, 2), np.float32), [1, 2, 3], [[], [1], [1, 2]]])
def test_examples_of_one_column(values):
    found = examples.serialize_examples({"x": values})
    for example, value in zip(found, values, strict=True):
        feature = tf.train.Example.FromString(example).features.feature["x"]
        (numbers,) = (feature.float_list.value or feature.int64_list.value,)
        assert list(numbers) == np.ravel(value).tolist()


def test_an_empty_list_of_texts():
    (found,) = examples.serialize_examples({"x": [np.array([], object)]})
    feature = tf.train.Example.FromString(found).features.feature["x"]
    assert feature.WhichOneof("kind") == "bytes_list"


HARMLESS = ["a", "1=1", "'=1", "", " =1", "ü"]
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("x","y")', "＝1"]


@pytest.mark.parametrize("kind", [str, bytes])
def test_formulas_in_csv(kind):
    texts = [*HARMLESS, *FORMULAS]
    given = [text if kind is str else text.encode() for text in texts]
    columns = {"=id": given, "x": np.linspace(-2, 2, len(texts), dtype=np.float32)}
    block = blocks.find_maker("csv", escape_formulas=True)(columns)
    header, *rows = csv.reader(io.StringIO((block.header + block.rows).decode(), newline=""))
    assert header == ["'=id", "x"]
    assert [row[0] for row in rows] == HARMLESS + [f"'{text}" for text in FORMULAS]
    np.testing.assert_array_equal(np.float32([row[1] for row in rows]), columns["x"])
    plain = blocks.find_maker("csv")(columns)
    assert plain == blocks.MAKERS["csv"](columns) and plain.rows != block.rows


@pytest.mark.parametrize(
    "values, expected",
    [
        ([-1, None, "-1"], ["-1", "", "'-1"]),
        ([["=1", "b"], ["b", "=1"], [-1, 2]], ["'=1|b", "b|=1", "'-1|2"]),
        ([True, -2.5], ["1", "-2.5"]),
        ([10**30, -(10**30)], [str(10**30), str(-(10**30))]),
        (np.array([[-1.0, 2.0]]), ["-1|2"]),
    ],
)
def test_formulas_in_cells_of_every_type(values, expected):
    block = blocks.find_maker("csv", escape_formulas=True)({"k": values})
    assert [
        row[0] if row else "" for row in csv.reader(block.rows.decode().splitlines())
    ] == expected


@pytest.mark.parametrize("name", ["jsonl", "tfrecord", "parquet"])
def test_other_formats_have_no_formulas(name):
    assert blocks.find_maker(name, escape_formulas=True) is blocks.MAKERS[name]
