"""The encoder in C++ gives what the encoder in Python gives; skipped without a compiler."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from mtl.tools.runtimes.encoders import encoder

pytestmark = pytest.mark.medium

LIMITS = [2**63 - 1, -(2**63), 0, -1]
RANDOM = np.random.default_rng(0)
# Texts without UTF-8, and of each length that the hash treats in another way.
TEXTS = ["", "red", "été", "😀", "a\\b", "tab\t", "line\n", b"\xff\xfe", b"\0", "x" * 4]
TEXTS += [bytes(RANDOM.integers(0, 256, n, np.uint8)) for n in range(1, 200, 3)]
COUNT = len(TEXTS)
LINES = [
    ("feature", "a b\\c", "string", "", "none"),
    ("feature", "id", "int64", ""),
    ("feature", "pair", "float32", "2", "nan"),
    ("feature", "flag", "bool", "", "1"),
    ("feature", "tags", "string", "list"),
    ("feature", "tags/values_per_item", "int64", "list"),
    ("feature", "ids", "int64", "list"),
    ("feature", "words", "string", "list"),
    ("feature", "words/weights", "float32", "list"),
    ("counts", "tags/values_per_item", "tags"),
    *(("input", name, name, "values") for name in ("a b\\c", "id", "pair", "flag", "tags", "ids")),
    ("input", "tags/values_per_item", "tags/values_per_item", "values"),
    ("input", "tags/length", "tags", "length"),
    ("input", "ids/length", "ids", "length"),
    ("input", "text/one", "a b\\c", "vocabulary", "words.txt", "4", "1"),
    ("input", "text/several", "a b\\c", "vocabulary", "words.txt", "4", "5"),
    ("input", "text/hash", "a b\\c", "hash", str(2**63 - 1)),
    ("input", "id/hash", "id", "hash", "1000"),
    ("input", "flag/hash", "flag", "hash", "1000"),
    ("input", "tags/words", "tags", "vocabulary", "words.txt", "4", "2"),
    ("input", "ids/hash", "ids", "hash", "77"),
]


def _draw_lists(values):
    lists = [list(values[k : k + k % 4]) for k in range(COUNT)]
    return [[], *lists[1:]]


@pytest.fixture(scope="module")
def encode(tmp_path_factory):
    """encode(columns, count) -> the answer of the program, by input."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++, so encoder.h is not tried")
    folder = tmp_path_factory.mktemp("header")
    (folder / encoder.FILE).write_bytes(encoder.describe(LINES))
    words = ("red", "a\\b", "tab\t", "line\n")
    content = b"".join(encoder.escape_bytes(word.encode()) + b"\n" for word in words)
    (folder / "words.txt").write_bytes(content)
    source = pathlib.Path(__file__).with_name("encode_rows.cc")
    header = pathlib.Path(encoder.__file__).parent
    flags = ("-std=c++11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{header}")
    program = str(folder / "encode_rows")
    subprocess.run([compiler, *flags, str(source), "-o", program], check=True)

    def run(columns, count):
        lines = [
            f"{name}\t{_kind(own)}\t{';'.join(map(_show, own))}" for name, own in columns.items()
        ]
        return subprocess.run(
            [program, str(folder), str(count)],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
        )

    return str(folder), run


def _kind(rows):
    is_list = isinstance(rows[0], list)
    values = [value for row in rows for value in row] if is_list else rows
    kinds = {int: "int64", float: "float32", tuple: "float32", str: "string", bytes: "string"}
    return ("list " if is_list else "") + kinds[type(next(iter(values)))]


def _show(row):
    values = row if isinstance(row, (list, tuple)) else [row]
    return ",".join(
        "x" + (v.encode() if isinstance(v, str) else v).hex()
        if isinstance(v, (str, bytes))
        else repr(v)
        for v in values
    )


def _parse(kind, shape, values):
    values = values.split(",")[:-1]
    convert = {"float32": float.fromhex, "string": lambda v: bytes.fromhex(v[1:])}.get(kind, int)
    dtype = {"string": object}.get(kind, kind)
    array = np.empty(len(values), dtype)
    array[:] = [convert(value) for value in values]
    return array.reshape([int(size) for size in shape.split(",")[:-1]])


def _columns():
    return {
        "a b\\c": TEXTS,
        "id": [*LIMITS, *map(int, RANDOM.integers(-9, 9, COUNT - len(LIMITS)))],
        "pair": [(0.5 * k, -1e-30 * k) for k in range(COUNT)],
        "tags": _draw_lists(TEXTS),
        "tags/values_per_item": [[len(own)] for own in _draw_lists(TEXTS)],
        "ids": _draw_lists(LIMITS * COUNT),
    }


def test_both_encoders_give_the_same_for_odd_values(encode):
    folder, run = encode
    columns = _columns()
    found = run(columns, COUNT)
    assert found.returncode == 0, found
    wanted = encoder.Encoder(folder)(columns)
    answers = dict(line.split("\t", 1) for line in found.stdout.splitlines())
    assert set(answers) == set(wanted)
    for name, array in wanted.items():
        value = _parse(*answers[name].split("\t"))
        assert value.dtype == array.dtype or array.dtype == bool
        np.testing.assert_array_equal(value, array, err_msg=name)


def test_columns_that_are_absent_have_defaults(encode):
    folder, run = encode
    columns = {"id": [7, 8]}
    wanted = encoder.Encoder(folder)(columns)
    found = run(columns, 2)
    for line in found.stdout.splitlines():
        name, *answer = line.split("\t")
        np.testing.assert_array_equal(_parse(*answer), wanted[name], err_msg=name)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"idd": [7]}, "unknown feature 'idd'"),
        ({"ids": [[7]]}, "feature 'id' must be present, as it has no default"),
        ({"id": [7, 8]}, "feature 'id' has another number of values"),
        ({"id": ["7"]}, "feature 'id' must be int64"),
        ({"id": [[7]]}, "feature 'id' must hold no lists"),
        ({"id": [7], "ids": [7]}, "feature 'ids' must hold lists"),
        ({"id": [7], "ids": [["7"]]}, "feature 'ids' has lists of another type"),
        ({"id": [7], "flag": [2]}, "feature 'flag' must be bool"),
        (
            {"id": [7], "words": [["a", ""]]},
            "feature 'words' must have a weight for each value",
        ),
        ({"id": [7], "tags": [["a"]]}, "the counts of feature 'tags' do not fit its values"),
    ],
)
def test_mistakes_are_told(encode, columns, message):
    found = encode[1](columns, 1)
    assert found.returncode == 2 and found.stdout == f"error: {message}\n"
