"""Rows of every format become the same examples; a bad row is named by file, line and field."""

import csv as stdlib_csv
import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import arrow, csv, image_files, subset
from mtl.tools import scoring
from mtl.tools.scoring import batches as batches_lib
from mtl.tools.scoring import blocks
from tests import tiny

SPEC = spec.Spec(
    features={"age": "int64", "job": "string", "tags": ("string", (None,))},
    labels={"rich": "int64"},
    defaults={"job": "none"},
)


def reader(**settings):
    return scoring.Reader(**{"spec": SPEC, "batch_size": 2, "keep": ["id"], **settings})


def read(made, *paths):
    return [made.parse(chunk) for chunk in made.chunks(list(map(str, paths))) if chunk.numbers]


def parsed(batches):
    examples = [example for batch in batches for example in batch.examples]
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in SPEC.parse(tf.constant(examples), with_labels=False).items()
    }


def write(path, text):
    path.write_text(text)
    return str(path)


CSV = "id,age,job,tags,rich\na,1,cook,x|y,1\nb,2,,,0\n\nc,3,smith,z,\n"
JSON = """\
{"id": "a", "age": 1, "job": "cook", "tags": ["x", "y"], "rich": 1}
{"id": "b", "age": "2", "job": null}

{"id": "c", "age": 3.0, "job": "smith", "tags": "z"}
"""


def test_parquet_has_numbers_of_rows_and_names_bad_ones(tmp_path):
    columns = {"id": ["a", "b", "c"], "age": [1, 2, 3], "job": ["cook", None, "smith"]}
    path = tmp_path / "in.parquet-00000-of-00001"
    tags = [["x", "y"], None, ["z"]]
    parquet.write_table(pa.table({**columns, "tags": tags}), path, row_group_size=2)
    chunks = list(reader().chunks([str(path)]))
    assert [list(chunk.numbers) for chunk in chunks] == [[0, 1], [2]]
    found = read(reader(), path)
    assert [batch.kept["id"] for batch in found] == [["a", "b"], ["c"]]
    assert parsed(found)["job"] == [b"cook", b"none", b"smith"]
    assert parsed(found)["tags"] == [[b"x", b"y"], [], [b"z"]]
    parquet.write_table(pa.table({**columns, "age": [1, 2, 2.5], "tags": tags}), path)
    with pytest.raises(checks.UserError, match="of-00001 row 2: field 'age' must be int64"):
        read(reader(), path)
    with pytest.raises(checks.UserError, match="--keep must be one of id, age, job, tags, got"):
        read(reader(keep=["idd"]), path)
    parquet.write_table(pa.table({"id": ["a"], "age": [1]}), path)
    with pytest.raises(checks.UserError, match="the column of field 'job' must be one of"):
        reader().check([str(path)])


@pytest.mark.medium
@pytest.mark.parametrize(
    "column",
    [
        pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers()),
        pa.array([0, 1], pa.timestamp("s", "Mars/Olympus")),
        pa.array([0, 1 << 60], pa.timestamp("s")),
    ],
    ids=["not UTF-8", "an unknown zone", "beyond the year 9999"],
)
def test_a_column_to_keep_that_cannot_be_read_is_one_line(column, tmp_path):
    table = pa.table({"age": [1, 2], "job": ["a", "b"], "tags": [["x"], []], "kept": column})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
        file.write_table(table)
    with pytest.raises(checks.UserError, match="in.arrow: column 'kept' cannot be read: "):
        read(reader(keep=["kept"]), tmp_path / "in.arrow")


@pytest.mark.medium
@pytest.mark.parametrize(
    "name, text, numbers",
    [("in.csv", CSV, [[2, 3], [5]]), ("in.jsonl-00000-of-00002", JSON, [[1, 2], [4]])],
)
def test_text(name, text, numbers, tmp_path):
    path = write(tmp_path / name, text)
    assert [list(chunk.numbers) for chunk in reader().chunks([path])] == numbers
    batches = read(reader(), path)
    ids = [list(map(tf.compat.as_str, batch.kept["id"])) for batch in batches]
    assert ids == [["a", "b"], ["c"]]
    assert parsed(batches) == {
        "age": [1, 2, 3],
        "job": [b"cook", b"none", b"smith"],
        "tags": [[b"x", b"y"], [], [b"z"]],
    }


@pytest.mark.medium
def test_csv_as_the_experiment_reads_it_and_gzip(tmp_path):
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b"7;c;q;\n"))
    settings = csv.Csv(files={"x": "y"}, columns=["age", "id", "job", "tags"], delimiter=";")
    # Also where another source is around it.
    settings = subset.Subset(source=settings, share=0.5)
    (batch,) = read(reader(settings=settings, keep=["id", "age"]), path)
    assert batch.kept == {"id": [b"c"], "age": [7]}
    assert parsed([batch])["age"] == [7]


def test_tfrecords_pass_as_they_are(trained, tmp_path):
    path = trained.write(tmp_path / "in.tfrecord", 5)
    batches = read(reader(spec=None), path)
    assert [list(batch.examples) for batch in batches] == [
        trained.examples[:2],
        trained.examples[2:4],
        trained.examples[4:5],
    ]
    assert batches[2].kept == {"id": [b"r4"]}
    assert list(reader(spec=None).chunks([path]))[2].numbers == range(4, 5)
    x = read(reader(spec=tiny.SPEC, keep=["x"], batch_size=9), path)[0].kept["x"]
    np.testing.assert_array_equal(np.float32(x), tiny.SPLITS["test"]["x"][:5])


@pytest.mark.parametrize(
    "name, text, says",
    [
        (
            "a.csv",
            CSV.replace("2,,", "old,,"),
            "a.csv line 3: field 'age' must be int64, got 'old'",
        ),
        ("a.csv", CSV.replace("id,", "ids,"), "field 'id' must be one of ids.*Did you mean 'ids'"),
        (
            "a.jsonl",
            JSON.replace('"2"', "2.5"),
            "a.jsonl line 2: field 'age' must be int64, got 2.5",
        ),
        ("a.jsonl", JSON.replace('"age": 3.0,', ""), "line 4: field 'age' must be present"),
        ("a.jsonl", JSON.replace('"z"', '{"z": 1}'), "line 4: field 'tags' must be string, got"),
        ("a.jsonl", JSON.replace('"b"', "b"), "a.jsonl line 2: must be JSON, Expecting value"),
        ("a.jsonl", JSON.replace('"id": "c"', '"ids": "c"'), "line 4: --keep must .*mean 'ids'"),
        ("a.jsonl", "[1]\n", "a.jsonl line 1: must be a JSON object"),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl line 1: must be JSON with lists at most 100"),
        ("a.jsonl", JSON.replace('"2"', "9" * 400), "line 2: field 'age' must be int64, got 999"),
        ("a.jsonl", JSON.replace('"2"', "[[2]]"), "line 2: field 'age' must be a list without li"),
        ("a.jsonl", JSON.replace('"z"', r'"\ud800"'), r"line 4: field 'tags' must be .*ud800'"),
        ("a.jsonl", JSON.replace('"id": "c"', r'"id": "\udc00"'), r"'id' must be text, .*udc00'"),
        ("a.jsonl", JSON.replace('"id": "c"', r'"id": [{"\udc00": 1}]'), "'id' must be text"),
        (
            "a.jsonl",
            JSON.replace('"id": "c"', f'"id": {"[" * 300}{"]" * 300}'),
            "line 4: field 'id' must be at most 100 lists deep",
        ),
    ],
)
def test_a_bad_row(name, text, says, tmp_path):
    path = write(tmp_path / name, text)
    with pytest.raises(checks.UserError, match=says):
        read(reader(), path)


def test_damaged_files(trained, tmp_path):
    path = tmp_path / "in.tfrecord"
    trained.write(path, 5)
    path.write_bytes(path.read_bytes()[:-3])
    for known in (tiny.SPEC, None):
        with pytest.raises(checks.UserError, match="in.tfrecord record 4: cannot be read"):
            read(reader(spec=known), path)
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(JSON.encode() * 50)[:-9])
    with pytest.raises(checks.UserError, match="the file cannot be read further"):
        read(reader(), path)


def test_what_is_no_example(tmp_path):
    path = str(tmp_path / "in.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(b"\xff")
    with pytest.raises(checks.UserError, match="record 0: must be a serialized tf.Example"):
        read(reader(), path)


def test_files_that_are_found(tmp_path):
    for name in ("b.csv", "a.csv", "in.txt", "in.rows"):
        write(tmp_path / name, CSV)
    pattern = str(tmp_path / "*.csv")
    assert [path[-5:] for path in reader().find([pattern, pattern])] == ["a.csv", "b.csv"]
    with pytest.raises(checks.UserError, match="--input.* must name existing files"):
        reader().find([str(tmp_path / "*.jsonl")])
    with pytest.raises(checks.UserError, match="--input must name its format.*--input_format"):
        reader().find([str(tmp_path / "in.rows")])
    assert reader(format_name="csv").find([str(tmp_path / "in.rows")])
    assert reader().find([str(tmp_path / "in.txt")])
    with pytest.raises(checks.UserError, match="--input_format must be one of .*got 'orc'"):
        reader(format_name="orc")
    with pytest.raises(checks.UserError, match="must name files.*It is a folder"):
        reader().find([str(tmp_path)])
    with pytest.raises(checks.UserError, match="--keep must hold each name once, got .'id'"):
        reader(keep=["id", "x", "id"])
    with pytest.raises(checks.UserError, match="--input must hold TFRecords.*--model_dir"):
        reader(spec=None).find([pattern])


EVERY = spec.Spec(
    features={
        "number": "float32",
        "numbers": ("float32", (2,)),
        "flag": "bool",
        "pixels": ("uint8", (2, 2)),
        "counts": ("int64", (None,)),
        "names": ("string", (2,)),
    },
    labels={},
    defaults={"number": 0.5, "flag": True},
)
ROWS = [
    {
        "number": 0.1,
        "numbers": [1.5, -2.0],
        "flag": False,
        "pixels": [[0, 1], [254, 255]],
        "counts": [-(2**63), 7],
        "names": ["é", "a,b"],
    },
    {"numbers": [1, 2], "flag": True, "pixels": [0, 0, 0, 9], "counts": [], "names": ["", '"']},
    {"number": 3, "numbers": [0.1, 1e-9], "pixels": [[1, 2], [3, 4]], "names": ["x", "y"]},
]


def flat(value):
    parts = [flat(item) for item in value] if isinstance(value, list) else [str(value)]
    return "|".join(parts)


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_every_type_of_field(suffix, tmp_path):
    path = tmp_path / f"in.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif suffix == "parquet":
        squares = [np.ravel(row["pixels"]).tolist() for row in ROWS]
        columns = {name: [row.get(name) for row in ROWS] for name in EVERY.features}
        parquet.write_table(pa.table({**columns, "pixels": squares}), path)
    else:
        with path.open("w") as file:
            writer = stdlib_csv.DictWriter(file, list(EVERY.features))
            writer.writeheader()
            writer.writerows({name: flat(value) for name, value in row.items()} for row in ROWS)
    (batch,) = read(reader(spec=EVERY, keep=[], batch_size=9), path)
    filled = [{**EVERY.defaults, "counts": [], **row} for row in ROWS]
    expected = EVERY.parse([EVERY.serialize(row) for row in filled], with_labels=False)
    found = EVERY.parse(tf.constant(batch.examples), with_labels=False)
    for name, value in expected.items():
        tf.debugging.assert_equal(found[name], value, message=name)


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([[]], [[]]),
        ([[], []], [[], []]),
        ([["x"], []], [[b"x"], []]),
        ([["x", "é"], ["y"]], [[b"x", "é".encode()], [b"y"]]),
        ([["x"], None, "z"], [[b"x"], [], [b"z"]]),
        ([["x", "y"], ["z", "u"]], [[b"x", b"y"], [b"z", b"u"]]),
        ([["x|y"], ["[x]"], "[x]", "y z"], [[b"x|y"], [b"[x]"], [b"[x]"], [b"y z"]]),
    ],
)
def test_lists_of_any_length(rows, expected, tmp_path):
    lines = [json.dumps({"age": 1, "tags": tags}) for tags in rows]
    path = write(tmp_path / "in.jsonl", "\n".join(lines))
    assert parsed(read(reader(keep=[]), path))["tags"] == expected


ITEMS = spec.Spec(features={"items": ("int64", (None, None))}, labels={})


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_lists_of_lists(suffix, tmp_path):
    """Items of several values, items without any, and rows without items."""
    rows = [[[1, 2], [3]], [], [[], [4], []], [[]], None]
    cells = ["1;2|3", "", "|4|", ";", ""]
    lines = [json.dumps({"items": row}) for row in rows]
    text = "\n".join(["more,items", *(f"a,{cell}" for cell in cells)])
    path = write(tmp_path / f"in.{suffix}", text if suffix == "csv" else "\n".join(lines))
    if suffix == "parquet":
        parquet.write_table(pa.table({"items": rows, "more": ["a"] * 5}), path)
    (batch,) = read(reader(spec=ITEMS, keep=["items"], batch_size=9), path)
    kept = [[list(item) for item in row or ()] for row in batch.kept["items"]]
    assert kept == [row or [] for row in rows]
    assert blocks.MAKERS["csv"](batch.kept).rows.decode().splitlines() == cells
    found = ITEMS.parse(tf.constant(batch.examples), with_labels=False)
    assert found["items"].to_list() == [[1, 2, 3], [], [4], [], []]
    assert found["items/values_per_item"].to_list() == [[2, 1], [], [0, 1, 0], [0], []]


def test_counts_of_items_that_a_line_tells_have_to_be_right(tmp_path):
    rows = [{"items": [[1, 2], []], "items/values_per_item": told} for told in ([2, 0], None)]
    path = write(tmp_path / "in.jsonl", "\n".join(map(json.dumps, rows)))
    (batch,) = read(reader(spec=ITEMS, keep=[], batch_size=9), path)
    found = ITEMS.parse(tf.constant(batch.examples), with_labels=False)
    assert found["items/values_per_item"].to_list() == [[2, 0], [2, 0]]
    for wrong in ({"items/values_per_item": [1]}, {**rows[0], "items/values_per_item": [1, 1]}):
        write(tmp_path / "in.jsonl", json.dumps(rows[0]) + "\n" + json.dumps(wrong))
        says = "line 2: field 'items/values_per_item' must be left out, or "
        with pytest.raises(checks.UserError, match=says):
            read(reader(spec=ITEMS, keep=[]), path)


def test_a_list_of_another_type_is_named(tmp_path):
    lines = [json.dumps({"age": 1, "tags": tags}) for tags in (["x"], ["y", 3])]
    path = write(tmp_path / "in.jsonl", "\n".join(lines))
    with pytest.raises(checks.UserError, match="line 2: field 'tags' must be string, got 3"):
        read(reader(keep=[]), path)


def test_an_empty_file_between_others_has_its_place(trained, tmp_path):
    paths = [tmp_path / name for name in ("a.tfrecord", "b.tfrecord", "c.csv", "d.csv")]
    trained.write(paths[0], 3)
    for path in paths[1:3]:
        path.write_text("" if path.suffix == ".tfrecord" else "id,x,word\n")
    trained.write(paths[3], 1)
    chunks = list(reader(spec=tiny.SPEC).chunks(list(map(str, paths))))
    found = [(chunk.path[-10:], list(chunk.numbers)) for chunk in chunks]
    names = [str(path)[-10:] for path in paths]
    assert found == list(zip([names[0], *names], [[0, 1], [2], [], [], [2]], strict=True))


@pytest.mark.parametrize(
    "kind, value, says",
    [
        ("float32", 10**400, "must be float32, got 1000"),
        ("float32", [1.0], None),
        ("float32", [[1.0]], "must be a list without lists, got"),
        (("float32", (2,)), [[1, 2]], "must be a list without lists, got"),
        (("float32", (2,)), [[1], [2]], "must be a list without lists, got"),
        (("float32", (2, 2)), [[1, 2], [3, 4]], None),
        (("float32", (2, 2)), [1, 2, 3, 4], None),
        (("float32", (2, 2)), [[1, 2, 3], [4]], r"without lists, or lists as in its shape \(2, 2"),
        (("float32", (2, 2)), [[1, 2], 3, 4], "without lists, or"),
        (("float32", (2, 2)), [[[1, 2], [3, 4]]], "without lists, or"),
        (("string", (None,)), [["a"]], "without lists, got"),
        (("string", (None, None)), ["a"], "must be a list of lists, one for each item, got"),
        (("string", (None, None)), [["a"], "b"], "must be a list of lists, one for each item, got"),
        (("string", (None, None)), [[["a"]]], "must be a list of lists, one for each item, got"),
        (("int64", (None, None)), [[1], [2, "b"]], "must be int64, got 'b'"),
        (("string", (None,)), ["a", "\ud83d"], "must be string, got"),
        (
            ("string", (None,)),
            "a|b",
            "must be a list of texts, such as .*, got 'a|b', one text",
        ),
        (("string", (None,)), "['a', 'b']", "must be a list of texts, such as"),
        (("string", (None,)), '["a"]', "must be a list of texts, such as"),
        (("string", (None,)), "[]", "must be a list of texts, such as"),
        ("string", "\U0001f600", None),
    ],
)
def test_lists_and_texts_of_json(kind, value, says, tmp_path):
    fields = spec.Spec(features={"x": kind}, labels={})
    path = write(tmp_path / "a.jsonl", json.dumps({"x": value}) + "\n")
    if says is None:
        (batch,) = read(reader(spec=fields, keep=()), path)
        found = fields.parse(tf.constant(batch.examples), with_labels=False)["x"].numpy().ravel()
        given = [value.encode()] if kind == "string" else np.ravel(value)
        np.testing.assert_array_equal(found, given)
        return
    with pytest.raises(checks.UserError, match=f"a.jsonl line 1: field 'x' .*{says}"):
        read(reader(spec=fields, keep=()), path)


@pytest.mark.parametrize("kind", ["float32", ("float32", (2,)), ("float32", (None,))])
def test_numbers_of_json_that_are_no_float32(kind, tmp_path):
    fields = spec.Spec(features={"x": kind, "y": "float32"}, labels={})
    several = isinstance(kind, tuple)

    def parse(text):
        value = f"[1, {text}]" if several else text
        path = write(tmp_path / "a.jsonl", f'{{"x": {value}, "y": 1e-50}}\n' * 2)
        return read(reader(spec=fields, keep=()), path)

    for text in ("Infinity", "-Infinity", "NaN", "3.4e38", '"1e3"', '"-inf"', "1e5", "true"):
        assert len(parse(text)[0].examples) == 2, text
    for text in ("1e39", "-1e39", "1e999", "1" + "0" * 39, '"1e39"', '"1_000"', '"0x1p3"', '" 1"'):
        with pytest.raises(
            checks.UserError, match="a.jsonl line 1: field 'x' must be float32, got"
        ):
            parse(text)
    for text in ("1_000", ".5", "5.", "+1", "0x1p3", "inf", "1e", "\u0661"):
        with pytest.raises(checks.UserError, match="a.jsonl line 1: must be JSON"):
            parse(text)


@pytest.mark.parametrize("known", [tiny.SPEC, None])
def test_a_record_that_is_no_example_is_found_later(known, trained, tmp_path):
    path = str(tmp_path / "in.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in (*trained.examples[:2], b"\xff\xfe no example"):
            writer.write(record)
    chunks = list(reader(spec=known, keep=()).chunks([path]))
    error = batches_lib.RefusedError("no")
    said = reader(spec=known, keep=()).explain(chunks[-1], error)
    assert said == f"{path} record 2: must be a serialized tf.Example."
    with pytest.raises(checks.UserError, match="record 2: must be a serialized tf.Example"):
        read(reader(spec=known, keep=["id"], batch_size=9), path)


def test_a_wrong_image_in_a_table_is_named_by_its_row(tmp_path):
    (tmp_path / "images").mkdir()
    source = arrow.Arrow(files={"train": "train.parquet"})
    folder = str(tmp_path / "images")
    files = image_files.ImageFiles(source=source, fields=["photo"], folder=folder)
    photos = spec.Spec(features={"photo": "string"}, labels={})
    path = str(tmp_path / "in.parquet")
    parquet.write_table(pa.table({"photo": ["no.png"]}), path)
    with pytest.raises(checks.UserError, match=r"in.parquet row 0: field 'photo' must be an image"):
        read(reader(spec=photos, keep=[], settings=files), path)
