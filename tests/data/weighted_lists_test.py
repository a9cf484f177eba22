"""Lists with weights mean the same through every door; wrong weights are one line."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import (
    arrow,
    csv,
    frames,
    joined,
    json_lines,
    mixture,
    pipeline,
    tfrecord,
    weighted_lists,
)
from mtl.tools import scoring

TOPICS, WEIGHTS = "topics", "topics/weights"
SPEC = spec.Spec(
    features={
        TOPICS: ("string", (None,)),
        WEIGHTS: ("float32", (None,)),
        "ids": ("int64", (None,)),
        "ids/weights": ("float32", (None,)),
    },
    labels={"y": "int64"},
)
# A key may hold the delimiter; an absent list is empty.
ROWS = [
    {TOPICS: [("a", 0.3), ("b:c", 7e-1)], "ids": [(7, 1.0)]},
    {TOPICS: [], "ids": [(8, 0.5), (7, 3.0), (9, 0.0)]},
    {TOPICS: [("é", -2.0)], "ids": []},
]


def _join(pairs, between="|", before=":"):
    return between.join(f"{key}{before}{weight}" for key, weight in pairs)


def _write_csv(folder, between="|", before=":", **settings):
    delimiter = settings.get("delimiter", ",")
    lines = [
        delimiter.join([*(_join(row[name], between, before) for name in (TOPICS, "ids")), "1"])
        for row in ROWS
    ]
    header = delimiter.join([TOPICS, "ids", "y"])
    (folder / "in.csv").write_text("\n".join([header, *lines, ""]))
    delimiters = {"list_delimiter": between, "weight_delimiter": before}
    return csv.Csv(files={"train": str(folder / "in.csv")}, **delimiters, **settings)


def _write_own_columns(folder):
    """CSV with a column of weights, under another name."""
    lines = [
        ",".join("|".join(map(str, own)) for name in (TOPICS, "ids") for own in _unzip(row[name]))
        for row in ROWS
    ]
    text = "\n".join(["topics,shares,ids,counts,y", *(f"{line},1" for line in lines), ""])
    (folder / "in.csv").write_text(text)
    rename = {WEIGHTS: "shares", "ids/weights": "counts"}
    return csv.Csv(files={"train": str(folder / "in.csv")}, rename=rename)


def _unzip(pairs):
    return [[pair[place] for pair in pairs] for place in (0, 1)]


def _write_json(folder, form):
    lines = [json.dumps({**form(row), "y": 1}) for row in ROWS]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return json_lines.JsonLines(files={"train": str(folder / "in.jsonl")})


def _as_lists(row):
    return {
        key: values
        for name in (TOPICS, "ids")
        for key, values in zip((name, f"{name}/weights"), _unzip(row[name]), strict=True)
    }


def _write_parquet(folder, make_type, form=lambda pairs: pairs, **settings):
    columns = {
        name: pa.array([form(row[name]) or None for row in ROWS], make_type(kind))
        for name, kind in ((TOPICS, pa.string()), ("ids", pa.int64()))
    }
    path = str(folder / "in.parquet")
    parquet.write_table(pa.table({**columns, "y": [1] * len(ROWS)}), path, row_group_size=2)
    return arrow.Arrow(files={"train": path}, **settings)


def _make_struct(kind):
    return pa.list_(pa.struct([("key", kind), ("score", pa.float64())]))


def _make_frames(folder, form):
    del folder
    names = (TOPICS, "ids")
    columns = {name: [form(row[name]) for row in ROWS] for name in names}
    return frames.Frames(splits={"train": {**columns, "y": [1] * len(ROWS)}})


def _write_examples(folder):
    with tf.io.TFRecordWriter(str(folder / "in.tfrecord")) as writer:
        for row in ROWS:
            writer.write(SPEC.serialize({**_as_lists(row), "y": 1}))
    return tfrecord.TfRecord(files={"train": str(folder / "in.tfrecord")})


def _join_topics(folder):
    """The rows of another table, by their number."""
    table = "\n".join(f"{number},{_join(row[TOPICS])}" for number, row in enumerate(ROWS))
    (folder / "table.csv").write_text(f"row,{TOPICS}\n{table}\n")
    lines = "\n".join(f"{number},{_join(row['ids'])},1" for number, row in enumerate(ROWS))
    (folder / "in.csv").write_text(f"row,ids,y\n{lines}\n")
    tables = {"row": csv.Csv(files={"train": str(folder / "table.csv")})}
    source = csv.Csv(files={"train": str(folder / "in.csv")})
    return joined.Joined(source=source, tables=tables, fields={"row": [TOPICS]})


DOORS = {
    "csv": _write_csv,
    "other delimiters": lambda folder: _write_csv(folder, "^", "="),
    "tsv": lambda folder: _write_csv(folder, " ", "@", delimiter="\t"),
    "csv with a column of weights": _write_own_columns,
    "json objects": lambda folder: _write_json(
        folder, lambda row: {name: dict(row[name]) for name in row}
    ),
    "json pairs": lambda folder: _write_json(folder, lambda row: row),
    "json of two members": lambda folder: _write_json(
        folder,
        lambda row: {n: [{"name": k, "score": w} for k, w in row[n]] or None for n in row},
    ),
    "json with a key of weights": lambda folder: _write_json(folder, _as_lists),
    "parquet maps": lambda folder: _write_parquet(folder, lambda kind: pa.map_(kind, pa.float32())),
    "parquet structs": lambda folder: _write_parquet(
        folder, _make_struct, lambda pairs: [{"key": k, "score": w} for k, w in pairs]
    ),
    "parquet texts": lambda folder: _write_parquet(folder, lambda _: pa.string(), _join),
    "parquet in windows": lambda folder: _write_parquet(
        folder, lambda kind: pa.map_(kind, pa.float64()), window=2
    ),
    "dicts": lambda folder: _make_frames(folder, dict),
    "tuples": lambda folder: _make_frames(folder, tuple),
    "texts": lambda folder: _make_frames(folder, _join),
    "examples": _write_examples,
    "joined": _join_topics,
}


def _plain(values):
    return {name: own.to_list() for name, own in values.items() if name != "y"}


def _find_bits():
    """The values of each field, as bits of float32."""
    columns = {}
    for name in (TOPICS, "ids"):
        keys, weights = zip(*(_unzip(row[name]) for row in ROWS), strict=True)
        columns[name] = [[k.encode() if name == TOPICS else k for k in own] for own in keys]
        columns[f"{name}/weights"] = [np.float32(own).tolist() for own in weights]
    return columns


@pytest.mark.medium
@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_bits(door, tmp_path):
    source = DOORS[door](tmp_path)
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=len(ROWS), cache=True)
    ((found, _),) = data.dataset("train", training=False, seed=0)
    assert _plain(found) == _find_bits()
    if door != "parquet in windows":  # Rows in memory, which Arrow has read if it can.
        training = next(iter(data.dataset("train", training=True, seed=1)))[0]
        assert sorted(training[WEIGHTS].to_list()) == sorted(_find_bits()[WEIGHTS])
    scanned = [row for _, row in source.scan("train", SPEC)]
    assert [np.float32(row[WEIGHTS]).tolist() for row in scanned] == _find_bits()[WEIGHTS]


@pytest.mark.medium
@pytest.mark.parametrize("door", ["csv", "json objects", "parquet maps"])
def test_a_pass_over_labels_reads_the_weights_of_the_feature_that_it_keeps(door, tmp_path):
    data = pipeline.Pipeline(source=DOORS[door](tmp_path), spec=SPEC, batch_size=9)
    ((found, labels),) = data.keep_labels().dataset("train", training=False, seed=0)
    assert list(found) == [TOPICS, WEIGHTS] and labels["y"].shape == [len(ROWS)]


@pytest.mark.medium
@pytest.mark.parametrize(
    "door", [n for n in DOORS if n not in ("dicts", "tuples", "texts", "joined")]
)
def test_files_are_scored_with_the_same_bits(door, tmp_path):
    source = DOORS[door](tmp_path)
    reader = scoring.Reader(spec=SPEC, settings=source)
    chunks = list(reader.chunks(reader.find([source.files["train"]])))
    examples = [row for chunk in chunks for row in reader.parse(chunk).examples]
    found = SPEC.parse(tf.constant(examples), with_labels=False)
    assert _plain(found) == _find_bits()


def test_a_source_without_the_list_has_no_weights_either(tmp_path):
    (tmp_path / "other.csv").write_text("ids,y\n5:2,1\n")
    other = csv.Csv(files={"train": str(tmp_path / "other.csv")})
    source = mixture.Mixture(
        sources={"all": _write_csv(tmp_path), "other": other}, absent_features={"other": [TOPICS]}
    )
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=9)
    ((found, _),) = data.dataset("other/train", training=False, seed=0)
    assert _plain(found) == {TOPICS: [[]], WEIGHTS: [[]], "ids": [[5]], "ids/weights": [[2.0]]}


_NUMBER = "must have a number as the weight of each value, such as 'a:0.5|b:2', got"
_ALIGNED = f"field '{WEIGHTS}' must hold a weight for each value of '{TOPICS}', 2, got"
WRONG = {
    "no number": ("a:0.5|b:x", f"field '{TOPICS}' {_NUMBER} 'b:x'"),
    "no weight": ("a:0.5|b", f"field '{TOPICS}' {_NUMBER} 'b'"),
    "no weight of a number": ("17|18:2", f"field '{TOPICS}' {_NUMBER} '17'"),
    "no key": (":0.5", f"field '{TOPICS}' {_NUMBER} ':0.5'"),
    "not finite": ("a:nan", f"field '{TOPICS}' {_NUMBER} 'a:nan'"),
    "no float32": ("a:1e39", f"field '{WEIGHTS}' must be float32, got '1e39'"),
}
NARROW = dataclasses.replace(
    SPEC, features={TOPICS: SPEC.features[TOPICS], WEIGHTS: SPEC.features[WEIGHTS]}
)


def _read(source, cache=False):
    data = pipeline.Pipeline(source=source, spec=NARROW, batch_size=2, cache=cache)
    with data.name_bad_record("train"):
        return list(data.dataset("train", training=False, seed=0))


@pytest.mark.medium
@pytest.mark.parametrize("kind", WRONG)
def test_a_text_with_a_wrong_weight_is_one_line(kind, tmp_path):
    cell, says = WRONG[kind]
    path = tmp_path / "in.csv"
    path.write_text(f"{TOPICS},y\na:1,1\n{cell},1\n")
    for cache in (False, True):
        with pytest.raises(checks.UserError) as caught:
            _read(csv.Csv(files={"train": str(path)}), cache)
        assert str(caught.value) == f"{path} line 3: {says}."
    rows = {TOPICS: ["a:1", cell], "y": [1, 1]}
    with pytest.raises(checks.UserError) as caught:
        frames.Table(rows, NARROW.fields).read(0, 2)
    assert str(caught.value) == f"the data row 1: {says}."


_FORM = 'must have a weight for each value, such as {"a": 0.5} or [["a", 0.5]], got'


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({TOPICS: {"a": None}}, "must have a number as the weight of each value, got None for 'a'"),
        ({TOPICS: {"a": "x"}}, "must have a number as the weight of each value, got 'x' for 'a'"),
        ({TOPICS: [["a", 1, 2]]}, f"{_FORM} [['a', 1, 2]]"),
        ({TOPICS: ["a", "b"]}, f"{_FORM} ['a', 'b']"),
        ({TOPICS: {"": 1}}, "must have a value for each weight, got an empty text for 1"),
        ({TOPICS: [[1, 0.5]]}, "must be string, got 1"),
        ({TOPICS: ["a"], WEIGHTS: [1, 2]}, "must have a weight for each of 1 values, got 2"),
    ],
)
def test_an_object_with_a_wrong_weight_is_one_line(row, says, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({TOPICS: None}) + "\n" + json.dumps(row) + "\n")
    reader = scoring.Reader(spec=NARROW)
    with pytest.raises(checks.UserError) as caught:
        [reader.parse(chunk) for chunk in reader.chunks([str(path)])]
    assert str(caught.value) == f"{path} line 2: field '{TOPICS}' {says}."
    (_, good), (place, problem) = json_lines.JsonLines(files={"a": str(path)}).scan("a", NARROW)
    assert good[WEIGHTS] == [] and place == f"{path} line 2"
    assert problem == f"field '{TOPICS}' {says}."


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[("a", 1.0)], [("b", None)]], "got None for 'b'"),
        ([[("a", 1.0)], [("b", float("nan"))]], "got nan for 'b'"),
        ([[("a", 1.0)], [("", 1.0)]], "got an empty text for 1.0"),
    ],
)
def test_a_map_with_a_wrong_weight_names_its_row(values, says, tmp_path):
    path = str(tmp_path / "in.parquet")
    kind = pa.map_(pa.string(), pa.float64())
    parquet.write_table(pa.table({TOPICS: pa.array(values, kind), "y": [1, 1]}), path)
    with pytest.raises(checks.UserError, match=f"row group 0 row 1: field '{TOPICS}' .*{says}"):
        _read(arrow.Arrow(files={"train": path}))
    reader = scoring.Reader(spec=NARROW)
    with pytest.raises(checks.UserError, match=f"in.parquet row 1: field '{TOPICS}' .*{says}"):
        [reader.parse(chunk) for chunk in reader.chunks([path])]


def test_two_columns_of_other_lengths_name_the_row(tmp_path):
    rows = {TOPICS: ["a", "a|b"], WEIGHTS: ["1", "1|2|3"], "y": [1, 1]}
    with pytest.raises(checks.UserError) as caught:
        frames.Table(rows, NARROW.fields).read(0, 2)
    assert str(caught.value) == f"the data row 1: {_ALIGNED} 3."
    path = tmp_path / "in.csv"
    path.write_text(f"{TOPICS},{WEIGHTS},y\na,1,1\na|b,1,1\n")
    parse = csv.Csv(files={"train": str(path)}).parser(NARROW)
    assert parse(b"a|b,1,1") == f"{_ALIGNED} 1."


@pytest.mark.parametrize("delimiter", ["", "::", "5", "-", "e", '"', 7])
def test_a_delimiter_is_one_character_of_no_number(delimiter):
    with pytest.raises(checks.UserError, match=r"Csv.weight_delimiter must be one character"):
        csv.Csv(files={"a": "b"}, weight_delimiter=delimiter)


def test_equal_delimiters_are_refused_only_for_weights(tmp_path):
    source = dataclasses.replace(_write_csv(tmp_path), list_delimiter=":")
    with pytest.raises(checks.UserError, match="weight_delimiter must differ from list_delimiter"):
        source.parser(SPEC)
    plain = dataclasses.replace(SPEC, features={TOPICS: ("string", (None,))})
    assert source.parser(plain)(b"a:b,7:1,1")[TOPICS] == ["a", "b"]


def test_fields_without_weights_stay_as_they_are():
    plain = {name: field for name, field in SPEC.fields.items() if "/" not in name}
    assert spec.find_weighted(plain) == {}
    assert weighted_lists.mark_parts(plain) == plain
    marked = weighted_lists.mark_parts(SPEC.fields, ["ids/weights"])
    assert {name: field.part_of for name, field in marked.items() if field.part_of} == {
        TOPICS: TOPICS,
        WEIGHTS: TOPICS,
    }
