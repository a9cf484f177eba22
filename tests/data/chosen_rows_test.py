"""Chosen rows are the same by every way to read a source."""

import dataclasses
import gzip

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, spec, types
from mtl.data import (
    arrow,
    chosen_rows,
    csv,
    csv_columns,
    eager_pass,
    field_splits,
    in_memory,
    long_tail,
    packed,
    pipeline,
    splits,
    subset,
    tfrecord,
)
from tests.data import csv_columns_test

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "x": "int64",
        "word": "string",
        "tags": ("string", (None,)),
        "two": ("float32", (2,)),
    },
    labels={"y": "int64"},
    defaults={"word": "none"},
)
NUM = 500
COLUMNS = {
    "x": list(range(NUM)),
    "word": [f"w{i % 7}" * (i % 5 > 0) for i in range(NUM)],
    "tags": [[f"t{i}", f"t{i % 3}"][: i % 3] for i in range(NUM)],
    "two": [[i + 0.5, -i] for i in range(NUM)],
    "user": [f"u{i // 4}" if i % 9 else "" for i in range(NUM)],
    "y": [i % 3 for i in range(NUM)],
    "day": [f"2024-01-{1 + i // 20:02d}" for i in range(NUM)],
}
CUTS = {
    "subset": lambda source: subset.Subset(source=source, share=0.4, held_out={"a": 0.2}),
    "shares": lambda source: splits.Splits(source=source, shares={"train": 0.4, "a": 0.2}),
    "keys": lambda source: splits.Splits(source=source, shares={"train": 0.8, "a": 0.2}, keys=KEYS),
    "stratify": lambda source: splits.Splits(source=source, shares=SHARES, stratify="y"),
    "key": lambda source: field_splits.ByKey(source=source, field="user", held_out={"a": 0.3}),
    "time": lambda source: field_splits.ByTime(
        source=source, field="day", starts={"a": "2024-01-20"}
    ),
    "tail": lambda source: long_tail.LongTail(source=source, label="y", held_out={"a": 30}),
    "nested": lambda source: subset.Subset(source=CUTS["key"](source), share=0.5),
}
KEYS, SHARES = ["user", "word"], {"train": 0.75, "a": 0.25}


def write_csv(folder, columns=COLUMNS, odd=""):
    rows = zip(*columns.values(), strict=True)
    text = ["|".join(map(str, v)) if isinstance(v, list) else str(v) for row in rows for v in row]
    size = len(columns)
    lines = [",".join(text[i : i + size]) for i in range(0, len(text), size)]
    half = len(lines) // 2
    header = ",".join(columns) + "\n"
    # Blank lines and comments are not rows, and the second file continues the numbers.
    (folder / "a.csv").write_text(header + "\n#no\n".join(lines[:half]) + "\n")
    rest = header + "\n".join(lines[half:]) + odd + "\n"
    (folder / "b.csv.gz").write_bytes(gzip.compress(rest.encode()))
    return csv.Csv(files={"train": ["a.csv", "b.csv.gz"]}, data_dir=str(folder), comment="#")


def write_parquet(folder, **settings):
    parquet.write_table(pa.table(COLUMNS), str(folder / "a.parquet"), row_group_size=30)
    return arrow.Arrow(files={"train": "a.parquet"}, data_dir=str(folder), **settings)


def read_rows(blocks):
    """The rows of blocks of packed values, as plain Python."""
    joined = {n: packed.join([b[n] for b in blocks], f) for n, f in SPEC.fields.items()}
    return csv_columns_test._rows([joined], SPEC.fields)


def decode_rows(cut, split):
    return read_rows(list(in_memory._decode_blocks(cut, split, SPEC)))


@pytest.mark.parametrize("name", CUTS)
def test_packed_values_are_the_rows_that_decoding_gives(tmp_path, monkeypatch, name):
    monkeypatch.setattr(csv_columns, "_CHUNK", 700)
    source = write_csv(tmp_path)
    for split in ("train", "a")[: 1 + (name != "nested")]:
        cut = CUTS[name](source)
        blocks = list(cut.read_values(split, SPEC))
        rows = read_rows(blocks)
        assert len(blocks) > 10 and 10 < len(rows["x"]) < NUM
        assert rows == decode_rows(cut, split)
        assert [row["x"] for _, row in cut.scan(split, SPEC)] == rows["x"]


@pytest.mark.parametrize("name", ["subset", "keys"])
def test_training_takes_these_rows_by_number(tmp_path, name):
    cut = CUTS[name](write_csv(tmp_path))
    data = pipeline.Pipeline(source=cut, spec=SPEC, batch_size=10, cache=True)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        decode = in_memory._decode_blocks
        patch.setattr(in_memory, "_decode_blocks", lambda *a: calls.append(1) or decode(*a))
        found = data.dataset("train", training=True, seed=1).take(60)
        rows = [int(x) for features, _ in found for x in features["x"]]
    expected = decode_rows(cut, "train")["x"]
    size = len(expected)
    assert sorted(rows[:size]) == expected and data.starts_anywhere and not calls


def test_a_value_that_only_decoding_can_tell_leaves_the_rows_the_same(tmp_path):
    bad = write_csv(tmp_path, odd="\nnone,a,,1|2,,1,2024-01-30")
    cut = CUTS["subset"](bad)
    with pytest.raises(types.DecodeOnlyError):
        list(cut.read_values("train", SPEC))
    # The bad row is in no split of this cut, so both splits are read as before.
    taken = {split: bool(cut._takes(split, NUM)) for split in ("train", "a")}
    for split, is_taken in taken.items():
        if not is_taken:
            assert in_memory.InMemory(cut, SPEC).list_rows(split).size > 50


@pytest.mark.parametrize("name", CUTS)
def test_rows_beyond_memory_are_read_in_blocks(tmp_path, name):
    cut = CUTS[name](write_parquet(tmp_path, window=120))
    blocks = cut.list_blocks("train", SPEC)
    read = [blocks.read(number, SPEC.fields) for number in range(len(blocks.sizes))]
    sizes = [packed.count_rows(one["x"], SPEC.fields["x"]) for one in read]
    assert sizes == list(blocks.sizes) and 0 not in sizes and blocks.window == 120
    rows = read_rows(read)
    assert rows == decode_rows(CUTS[name](write_parquet(tmp_path)), "train")
    data = pipeline.Pipeline(source=cut, spec=SPEC, batch_size=1)
    made = data.dataset("train", training=True, seed=1).take(len(rows["x"]))
    assert data.starts_anywhere and sorted(int(f["x"][0]) for f, _ in made) == rows["x"]


@pytest.mark.parametrize("name", ["shares", "keys", "stratify"])
def test_rows_in_memory_stay_numbered(tmp_path, name):
    cut = CUTS[name](write_parquet(tmp_path))
    assert cut.list_blocks("train", SPEC) is None
    assert cut.list_rows("train").tolist() == decode_rows(cut, "train")["x"]
    data = pipeline.Pipeline(source=cut, spec=SPEC, batch_size=5)
    made = data.dataset("train", training=True, seed=1)
    first = [f["x"].numpy().tolist() for f, _ in made.take(8)]
    made = data.dataset("train", training=True, seed=1, start_step=3)
    assert [f["x"].numpy().tolist() for f, _ in made.take(5)] == first[3:]


def test_values_are_chosen_without_texts_of_other_rows():
    field = dataclasses.replace(SPEC.fields["two"], dtype="string")
    texts = packed.pack(np.array([["a", "b"], ["c", "d"], ["a", "e"]], object))
    chosen = packed.choose(texts, np.array([0, 2]), field)
    assert packed.count_rows(chosen, field) == 2
    assert packed.unpack_texts(chosen).tolist() == [b"a", b"b", b"a", b"e"]
    assert sorted(chosen.distinct.to_pylist()) == [b"a", b"b", b"e"]


@pytest.mark.parametrize("window", [None, 120])
def test_whole_numbers_of_a_table_are_the_keys_that_their_texts_are(tmp_path, window):
    numbers = [i // 4 if i % 9 else None for i in range(NUM)]
    columns = {**COLUMNS, "number": numbers, "text": ["" if n is None else str(n) for n in numbers]}
    parquet.write_table(pa.table(columns), str(tmp_path / "a.parquet"), row_group_size=30)
    source = arrow.Arrow(files={"train": "a.parquet"}, data_dir=str(tmp_path), window=window)
    cuts = [
        splits.Splits(source=source, shares=SHARES, keys=[key, "user"])
        for key in ("number", "text")
    ]
    one, other = (decode_rows(cut, "train")["x"] for cut in cuts)
    assert one == other == [row["x"] for _, row in cuts[0].scan("train", SPEC)]
    if window:
        blocks = cuts[0].list_blocks("train", SPEC)
        read = [blocks.read(number, SPEC.fields) for number in range(len(blocks.sizes))]
        assert read_rows(read)["x"] == one


def test_a_cut_split_that_hides_one_of_the_files_is_told(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("x,y\n1,0\n2,1\n")
    files = {name: f"{name}.csv" for name in ("train", "test")}
    source = csv.Csv(files=files, data_dir=str(tmp_path))
    hidden = subset.Subset(source=source, share=0.5, held_out={"test": 0.5})
    assert chosen_rows.describe_left_out(hidden) == [
        "Split 'test' of the source is not read: Subset cuts a split of this name from 'train'."
    ]
    shown = subset.Subset(source=source, share=0.5, held_out={"validation": 0.5})
    assert chosen_rows.describe_left_out(shown) == []


@pytest.mark.parametrize("field", ["user", "usr"])
def test_a_key_that_no_record_has_is_refused(field, tmp_path):
    """A tf.Example may lack any field, and rows without a key are drawn one by one."""
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(20):
            values = {"x": tf.train.Feature(int64_list={"value": [row]})}
            if row > 2:
                values["user"] = tf.train.Feature(bytes_list={"value": [b"u%d" % (row // 2)]})
            example = tf.train.Example(features=tf.train.Features(feature=values))
            writer.write(example.SerializeToString())
    source = tfrecord.TfRecord(files={"train": path})
    cuts = [
        field_splits.ByKey(source=source, field=field, held_out={"test": 0.5}),
        splits.Splits(source=source, shares={"train": 0.5, "test": 0.5}, keys=[field]),
    ]
    for cut in cuts:
        if field == "user":
            assert chosen_rows.describe_left_out(cut) == []
        else:
            says = f"{type(cut).__name__}: field 'usr' must be in a row of split 'train'"
            with pytest.raises(checks.UserError, match=says):
                chosen_rows.describe_left_out(cut)


@pytest.mark.parametrize(
    "change",
    [lambda users: users, lambda users: users.cast(pa.float64()), pa.Array.dictionary_encode],
    ids=["integers", "floats", "a dictionary"],
)
def test_numbers_of_parquet_are_keys_in_any_type(change, tmp_path):
    users = pa.array([row // 3 if row % 7 else None for row in range(60)], pa.int32())
    texts = [str(user) if user.is_valid else "" for user in users]
    columns = {"x": list(range(60)), "user": change(users), "text": texts}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    source = arrow.Arrow(files={"train": str(tmp_path / "a.parquet")})
    fields = spec.Spec(features={"x": "int64"}, labels={})
    for split in ("train", "test"):
        rows = [
            [
                values["x"]
                for _, values in field_splits.ByKey(
                    source=source, field=field, held_out={"test": 0.4}
                ).scan(split, fields)
            ]
            for field in ("user", "text")
        ]
        assert rows[0] == rows[1] and 0 < len(rows[0]) < 60


@pytest.mark.parametrize(
    ("cut", "names"),
    [
        (
            lambda source: subset.Subset(source=source, share=0.9, held_out={"test": 0.1}),
            "test, train",
        ),
        (lambda source: splits.Splits(source=source, folds=3), "train, test"),
        (
            lambda source: field_splits.ByTime(
                source=source, field="day", starts={"late": "2024-01-01"}
            ),
            "late, train",
        ),
    ],
)
def test_an_unknown_split_is_refused_with_the_names_of_all_splits(cut, names):
    source = cut(csv.Csv(files={"train": "a.csv"}))
    data = pipeline.Pipeline(source=source, spec=SPEC)
    for read in (data.one_pass, lambda split: next(eager_pass.read(data, split)), source.blocks):
        with pytest.raises(checks.UserError, match=f"The split must be one of {names}, got 'tets'"):
            read("tets")
