"""The first pass over a split: the batches of `one_pass`, also if Arrow can read only a part."""

import dataclasses

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import spec, types
from mtl.data import arrow, csv, csv_columns, eager_pass, frames, pipeline, subset
from tests.data import arrow_test

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "x": "int64",
        "word": "string",
        "tags": ("string", (None,)),
        "pair": ("float32", (2,)),
    },
    labels={"y": "float32"},
    defaults={"x": -1},
)
ROWS = [(row, f"w{row % 3}", "a|b|" * (row % 3), f"{row}|.5", row / 2) for row in range(10)]


class Torn(csv.Csv):
    """A source that can read only its first rows without `decode`."""

    def read_values(self, split, spec):
        yield next(iter(super().read_values(split, spec)))
        raise types.DecodeOnlyError


def _write(folder, kind):
    """A source of `ROWS`; a CSV file is read in several blocks, a Parquet file in three parts."""
    lines = ["x,word,tags,pair,y", *(",".join(map(str, row)) for row in ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    if kind == "parquet":
        columns = [list(column) for column in zip(*ROWS, strict=True)]
        columns[2] = [["a", "b"] * (row[0] % 3) for row in ROWS]
        columns[3] = [[float(row[0]), 0.5] for row in ROWS]
        table = pa.table(dict(zip(lines[0].split(","), columns, strict=True)))
        parquet.write_table(table, folder / "a.parquet", row_group_size=4)
        return arrow.Arrow(files={"train": "a.parquet"}, data_dir=str(folder))
    made = (Torn if kind == "torn" else csv.Csv)(files={"train": "a.csv"}, data_dir=str(folder))
    return subset.Subset(source=made, share=0.7) if kind == "subset" else made


def _list(batches):
    tensors = [tf.nest.flatten(batch, expand_composites=True) for batch in batches]
    return [[(t.dtype, t.shape.as_list(), t.numpy().tolist()) for t in batch] for batch in tensors]


@pytest.mark.parametrize("kind", ["csv", "torn", "parquet", "subset"])
@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_batches_are_those_of_one_pass(tmp_path, monkeypatch, kind, size):
    monkeypatch.setattr(csv_columns, "_CHUNK", 60)
    data = pipeline.Pipeline(source=_write(tmp_path, kind), spec=SPEC, batch_size=size)
    expected = _list(data.one_pass("train"))
    assert len(expected) > 1 or size > 5
    assert _list(eager_pass.read(data, "train")) == expected


@pytest.mark.parametrize("kind", ["csv", "torn", "parquet", "subset"])
def test_rows_may_lack_labels(tmp_path, kind):
    unlabelled = dataclasses.replace(SPEC, labels={"z": "float32"}, defaults={"x": -1, "z": 0.0})
    data = pipeline.Pipeline(source=_write(tmp_path, kind), spec=unlabelled, batch_size=4)
    batches = list(eager_pass.read(data, "train", with_labels=False))
    assert all(labels == {} for _, labels in batches)
    features_only = dataclasses.replace(data, spec=unlabelled.without_labels())
    expected = _list(features for features, _ in features_only.one_pass("train"))
    assert _list(features for features, _ in batches) == expected


def test_a_source_without_blocks_is_decoded():
    source = frames.Frames(splits={"train": arrow_test.VALUES})
    data = pipeline.Pipeline(source=source, spec=arrow_test.SPEC, batch_size=3)
    # By their texts: NaN is not equal to itself.
    expected = repr(_list(data.one_pass("train")))
    assert repr(_list(eager_pass.read(data, "train"))) == expected


def test_a_bad_row_fails_as_in_one_pass(tmp_path):
    source = _write(tmp_path, "csv")
    (tmp_path / "a.csv").write_text("x,word,tags,pair,y\n1,a,,1|2,0\n1,a,,1|2|3,0\n")
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=1)
    batches = eager_pass.read(data, "train")
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(batches)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataclasses.replace(data, batch_size=2).one_pass("train"))
