"""An absent list of labels is missing in every source; an empty list means no class."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import heads, spec, types
from mtl.data import arrow, csv, frames, joined, json_lines, packed, pipeline, tfrecord

KINDS = {"string": ["a", "b"], "int64": [0, 1]}


def make_spec(dtype):
    kind = (dtype, (None,))
    return spec.Spec(features={"x": "float32", "tags": kind}, labels={"y": kind})


def make_rows(dtype):
    """A list, null, an empty list and an absent key, for a feature and a label alike."""
    values = [KINDS[dtype], None, []]
    rows = [{"x": float(n), "tags": value, "y": value} for n, value in enumerate(values)]
    return [*rows, {"x": 3.0}]


def write_json(rows, folder, **settings):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return json_lines.JsonLines(files={"train": str(path)}, **settings)


def write_parquet(table, folder):
    parquet.write_table(table, folder / "a.parquet")
    return arrow.Arrow(files={"train": str(folder / "a.parquet")}, cells=CELLS)


def write_csv(rows, folder):
    lines = [f"{n},{text},{text}\n" for n, text in enumerate(list_texts(rows))]
    (folder / "a.csv").write_text("".join(["x,tags,y\n", *lines]).replace("None", "?"))
    return dataclasses.replace(CELLS, files={"train": str(folder / "a.csv")})


def list_texts(rows):
    return ["|".join(map(str, rows[0]["y"])), None, "", "?"]


def make_texts(rows):
    return pa.table({"x": [0.0, 1.0, 2.0, 3.0], "tags": list_texts(rows), "y": list_texts(rows)})


def make_frames(data):
    return frames.Frames(splits={"train": data}, cells=CELLS)


CELLS = csv.Csv(files={"train": ""}, missing=["", "?"])
MARKED = {"x": 3.0, "tags": "?", "y": "?"}
SOURCES = {
    "JSON lines": lambda rows, folder: write_json(rows, folder),
    "JSON marks": lambda rows, folder: write_json([*rows[:3], MARKED], folder, cells=CELLS),
    "Parquet": lambda rows, folder: write_parquet(pa.Table.from_pylist(rows), folder),
    "Parquet of texts": lambda rows, folder: write_parquet(make_texts(rows), folder),
    "list of dicts": lambda rows, folder: make_frames(rows),
    "DataFrame": lambda rows, folder: make_frames(pd.DataFrame(rows)),
    "Arrow": lambda rows, folder: make_frames(pa.Table.from_pylist(rows)),
    "texts": lambda rows, folder: make_frames(make_texts(rows)),
    "CSV": lambda rows, folder: write_csv(rows, folder),
}


def unpack_lists(values):
    flat = values.values
    flat = packed.unpack_texts(flat) if isinstance(flat, packed.Texts) else flat
    return [part.tolist() for part in np.split(flat, values.splits[1:-1])]


def read_all(source, its_spec):
    """The feature and the label by each way to read the source: in a graph, by Arrow, by scan."""
    data = pipeline.Pipeline(source=source, spec=its_spec, batch_size=4, cache=False)
    features, labels = next(iter(data.one_pass("train")))
    yield features["tags"].to_list(), labels["y"]
    is_decoded = isinstance(source, json_lines.JsonLines) and source.cells
    read = types.read_shortcut(source, "read_values")
    blocks = None if is_decoded else read("train", its_spec)
    if blocks is not None:
        values = packed.join_fields([*blocks], its_spec.fields)
        yield unpack_lists(values["tags"]), unpack_lists(values["y"])
    examples = [values for _, values in source.scan("train", its_spec)]
    yield [row["tags"] for row in examples], [row["y"] for row in examples]


@pytest.mark.medium
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_list_is_a_missing_label(name, dtype, tmp_path):
    its_spec = make_spec(dtype)
    source = SOURCES[name](make_rows(dtype), tmp_path)
    head = heads.MultiLabel(name="y", classes=KINDS[dtype] if dtype == "string" else 2)
    # `mtl.train` stores the rows of frames in files; it returns other sources unchanged.
    stored = frames.store(source, its_spec, str(tmp_path))
    for kept in [source] if stored is source else [source, stored]:
        for features, label in read_all(kept, its_spec):
            if isinstance(label, list):
                label = tf.ragged.constant(label, dtype, 1, row_splits_dtype=tf.int64)
            targets, present = head.targets(label)
            assert [len(row) for row in features] == [2, 0, 0, 0]
            assert targets.numpy().tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
            assert present.numpy()[:, 0].tolist() == [True, False, True, False]


def test_a_joined_table_may_hold_missing_lists(tmp_path):
    table = write_json([{"x": n, "y": y} for n, y in enumerate([["a"], None, []])], tmp_path)
    rows = frames.Frames(splits={"train": {"x": [0, 1, 2, 3]}})
    source = joined.Joined(source=rows, tables={"x": table}, fields={"x": ["y"]})
    its_spec = spec.Spec(features={"x": "int64"}, labels={"y": ("string", (None,))})
    examples = [values["y"] for _, values in source.scan("train", its_spec)]
    assert examples == [["a"], [""], [], [""]]


def test_a_tf_example_does_not_tell_an_absent_list_from_an_empty_list():
    its_spec = spec.Spec(features={"x": "float32"}, labels={"y": ("string", (None,))})
    record = its_spec.serialize({"x": 1.0})
    assert tfrecord.scan_record(record, its_spec) == {"x": 1.0, "y": []}
    assert its_spec.parse([record], with_labels=True)["y"].to_list() == [[]]
