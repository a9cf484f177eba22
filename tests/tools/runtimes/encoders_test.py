"""Encoders without TensorFlow: their ids equal the ids of the graph, and mistakes are one line."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from mtl.tools.runtimes.encoders import encoder

PLAIN = [("feature", "x", "float32", ""), ("input", "x", "x", "values")]


def make(directory, *lines, **files):
    (directory / encoder.FILE).write_bytes(encoder.describe(lines))
    for name, content in files.items():
        (directory / f"{name}.txt").write_bytes(content)
    return encoder.Encoder(str(directory))


def test_the_fingerprint_is_that_of_tensorflow_for_every_length():
    random = np.random.default_rng(0)
    texts = [bytes(random.integers(0, 256, n, np.uint8)) for n in (*range(260), 1000, 4096, 5003)]
    texts += ["é€😀".encode(), b"\0", b"-9223372036854775808"]
    for count in (2**63 - 1, 1000):
        wanted = tf.strings.to_hash_bucket_fast(texts, count).numpy()
        np.testing.assert_array_equal([encoder.fingerprint(t) % count for t in texts], wanted)


def test_known_categories_have_their_line_and_others_a_place_behind(tmp_path):
    lines = [
        ("feature", "a", "string", ""),
        ("input", "a/one", "a", "vocabulary", "words.txt", "4", "1"),
        ("input", "a/several", "a", "vocabulary", "words.txt", "4", "3"),
    ]
    odd = "tab\there"
    content = b"".join(
        encoder.escape_bytes(word) + b"\n" for word in (b"red", odd.encode(), b"a\\b", b"\xff\r\n")
    )
    encode = make(tmp_path, *lines, words=content)
    texts = ["red", odd, "a\\b", b"\xff\r\n", "", "blue", "é"]
    found = encode({"a": texts})
    np.testing.assert_array_equal(found["a/one"], [0, 1, 2, 3, 4, 4, 4])
    hashed = 4 + tf.strings.to_hash_bucket_fast(["", "blue", "é"], 3).numpy()
    np.testing.assert_array_equal(found["a/several"], [0, 1, 2, 3, *hashed])


def test_lists_lose_empty_texts_and_are_padded(tmp_path):
    lines = [
        ("feature", "tags", "string", "list"),
        ("feature", "tags/values_per_item", "int64", "list"),
        ("counts", "tags/values_per_item", "tags"),
        ("input", "tags", "tags", "values"),
        ("input", "tags/length", "tags", "length"),
        ("input", "tags/ids", "tags", "hash", "10"),
        ("input", "tags/values_per_item", "tags/values_per_item", "values"),
    ]
    encode = make(tmp_path, *lines)
    found = encode({"tags": [["a", "", "b"], None], "tags/values_per_item": [[2, 1], []]})
    np.testing.assert_array_equal(found["tags/length"], [2, 0])
    np.testing.assert_array_equal(found["tags"], [[b"a", b"b"], [b"", b""]])
    np.testing.assert_array_equal(found["tags/values_per_item"], [[1, 1], [0, 0]])
    wanted = tf.strings.to_hash_bucket_fast(["a", "b"], 10).numpy()
    np.testing.assert_array_equal(found["tags/ids"], [wanted, [0, 0]])
    assert encode({"tags": [[]], "tags/values_per_item": [[]]})["tags"].shape == (1, 1)
    with pytest.raises(ValueError, match="'tags' holds 1 values, but its counts"):
        encode({"tags": [["a"]], "tags/values_per_item": [[2]]})


def test_a_list_has_a_weight_for_each_value_that_is_not_empty(tmp_path):
    lines = [
        ("feature", "tags", "string", "list"),
        ("feature", "tags/weights", "float32", "list"),
        ("input", "tags/weights", "tags/weights", "values"),
    ]
    encode = make(tmp_path, *lines)
    found = encode({"tags": [["a", "b"], None], "tags/weights": [[0.5, 2], []]})
    np.testing.assert_array_equal(found["tags/weights"], np.float32([[0.5, 2], [0, 0]]))
    says = "feature 'tags' must have a weight for each value that is not empty, 1, got 2"
    with pytest.raises(ValueError, match=says):
        encode({"tags": [["a", ""]], "tags/weights": [[0.5, 2]]})


def test_missing_values_have_the_default_of_their_feature(tmp_path):
    lines = [
        ("feature", "x", "float32", "2", "nan"),
        ("feature", "flag", "bool", "", "1"),
        ("feature", "word", "string", "", ""),
        ("feature", "id", "int64", ""),
        *(("input", name, name, "values") for name in ("x", "flag", "word", "id")),
    ]
    encode = make(tmp_path, *lines)
    found = encode({"x": [None, [1.0, 2.0]], "id": [2**63 - 1, -(2**63)]})
    np.testing.assert_array_equal(found["x"], np.array([[np.nan, np.nan], [1, 2]], np.float32))
    np.testing.assert_array_equal(found["flag"], [True, True])
    np.testing.assert_array_equal(found["word"], [b"", b""])
    np.testing.assert_array_equal(found["id"], [2**63 - 1, -(2**63)])
    assert {name: value.dtype for name, value in found.items()} == {
        "x": np.float32,
        "flag": bool,
        "word": object,
        "id": np.int64,
    }


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("int64", [1.5], "'v' must be int64, got"),
        ("int64", [2**63], "'v' must be int64, got"),
        ("int64", ["7"], "'v' must be int64, got"),
        ("int64", [None], "'v' must be present, as it has no default"),
        ("bool", [2], "'v' must be bool, got 2"),
        ("uint8", [-1], "'v' must be uint8, got"),
        ("float32", ["x"], "'v' must be float32, got"),
        ("string", [7], "'v' must be string, got 7"),
        ("float32", [[1.0, 2.0]], r"'v' must have shape \(1,\), got \(1, 2\)"),
    ],
)
def test_a_wrong_value_names_its_feature(tmp_path, dtype, values, message):
    encode = make(tmp_path, ("feature", "v", dtype, ""), ("input", "v", "v", "values"))
    with pytest.raises(ValueError, match=message):
        encode({"v": values})


@pytest.mark.parametrize("row", ["a", b"a", [["a"]]])
def test_a_list_is_no_text_and_no_list_of_lists(tmp_path, row):
    encode = make(tmp_path, ("feature", "v", "string", "list"), ("input", "v", "v", "values"))
    with pytest.raises(ValueError, match="'v' must be a list in each row, got"):
        encode({"v": [row]})
    with pytest.raises(ValueError, match="'v' must have a value for each row, got 'abc'"):
        encode({"v": "abc"})


def test_a_matrix_keeps_its_shape(tmp_path):
    encode = make(tmp_path, ("feature", "v", "uint8", "2,3"), ("input", "v", "v", "values"))
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(encode({"v": image})["v"], image)
    with pytest.raises(ValueError, match=r"must have shape \(2, 2, 3\), got \(2, 6\)"):
        encode({"v": image.reshape(2, 6)})


@pytest.mark.parametrize("empty", [[], np.zeros([0, 2, 3])])
def test_no_rows_have_the_shape_of_the_feature(tmp_path, empty):
    encode = make(tmp_path, ("feature", "x", "float32", "2,3"), ("input", "x", "x", "values"))
    assert encode({"x": empty})["x"].shape == (0, 2, 3)
    with pytest.raises(ValueError, match=r"feature 'x' must have shape \(1, 2, 3\), got \(1, 0\)"):
        encode({"x": [[]]})


def test_unknown_and_uneven_columns_are_refused(tmp_path):
    encode = make(tmp_path, *PLAIN, ("feature", "y", "float32", "", "0"))
    with pytest.raises(ValueError, match="unknown feature 'z'; known are x, y"):
        encode({"z": [1.0]})
    with pytest.raises(ValueError, match="same number of rows, got"):
        encode({"x": [1.0], "y": [1.0, 2.0]})
    with pytest.raises(ValueError, match="at least one column"):
        encode({})


def test_damaged_files_are_refused(tmp_path):
    lines = [("feature", "a", "string", ""), ("input", "a", "a", "vocabulary", "w.txt", "2", "1")]
    with pytest.raises(ValueError, match="w.txt must hold 2 different categories, got 1"):
        make(tmp_path, *lines, w=b"red\n")
    (tmp_path / encoder.FILE).write_text("mtl-encoder\t9\n")
    with pytest.raises(ValueError, match="must start with 'mtl-encoder\\\\t1'"):
        encoder.Encoder(str(tmp_path))


@pytest.mark.medium
def test_a_copy_needs_numpy_alone(tmp_path):
    make(tmp_path, *PLAIN)
    source = pathlib.Path(encoder.__file__)
    (tmp_path / "encoder.py").write_bytes(source.read_bytes())
    code = (
        "import sys, encoder; print(encoder.Encoder('.')({'x': [1.5]})['x']);"
        "assert not {'tensorflow', 'mtl'} & set(sys.modules)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[1.5]"
