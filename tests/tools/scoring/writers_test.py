"""Values that are written to Parquet in blocks keep their types; other types are refused."""

import os

import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import checks
from mtl.tools.scoring import blocks, writers


def write(path, *columns):
    with writers.open_writer(str(path), "parquet") as add:
        for values in columns:
            add(blocks.MAKERS["parquet"]({"id": values}))


@pytest.mark.parametrize(
    "first, later, kind, got",
    [
        ([1, 2], ["007", "12"], "int64", "string"),
        ([1, 2], [True, False], "int64", "bool"),
        ([1, 2], [3.0], "int64", "double"),
        ([1, 2], [[3]], "int64", "list<item: int64>"),
        ([True, False], [2, 0], "bool", "int64"),
        ([True, False], ["yes"], "bool", "string"),
        ([1.5, 2], ["1e3", "nan"], "double", "string"),
        ([1.5, 2], [2**53 + 1], "double", "int64"),
        ([[1, 2]], [["03"]], "list<item: int64>", "list<item: string>"),
        (["a"], [[1]], "string", "list<item: int64>"),
    ],
)
def test_values_of_another_type_are_refused(first, later, kind, got, tmp_path):
    with pytest.raises(checks.UserError) as caught:
        write(tmp_path / "o.parquet", first, later)
    rule = f"column 'id' must hold {kind} in every row for Parquet, as in the first rows"
    assert str(caught.value) == f"{rule}, got {got!r}. Write .jsonl, which needs no types."
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "first, later, written",
    [
        ([1, 2], [3, None], None),
        ([1, 2], [None], None),
        ([[1]], [[], [None]], None),
        ([1.5], [2, 2**53], None),
        ([[0.5]], [[2], []], None),
        (["a"], ["007"], None),
        # Values without a common type become JSON text, as within a single block.
        (["a"], [5, None], ["a", "5", None]),
        (["a"], [True], ["a", "true"]),
    ],
)
def test_values_that_fit_are_kept(first, later, written, tmp_path):
    write(tmp_path / "o.parquet", first, later)
    found = parquet.read_table(tmp_path / "o.parquet")["id"].to_pylist()
    assert found == (written or [*first, *later])


@pytest.mark.parametrize(
    "name, format_name, renamed",
    [
        ("in-0.csv", "csv", "in-0.jsonl"),
        ("in-0.csvs.gz", "csv", "in-0.jsonl"),
        ("in.csv.parquet", "parquet", "in.csv.jsonl"),
        ("of.csv-files.tfrecord-00001-of-00002", "tfrecord", "of.csv-files.jsonl-00001-of-00002"),
        ("in.txt", None, "in.txt.jsonl"),
    ],
)
def test_the_last_format_in_a_name_counts(name, format_name, renamed):
    assert writers.format_in(f"data.csv/{name}") == format_name
    assert writers.rename_output(name, "jsonl") == renamed


def test_a_row_group_leaves_memory_once_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "_BYTES_IN_GROUP", 1 << 20)
    texts = [f"{number:08}" * 256 for number in range(1 << 13)]  # 16 MiB
    with writers.open_writer(str(tmp_path / "o.parquet"), "parquet") as add:
        before = pa.total_allocated_bytes()
        add(blocks.MAKERS["parquet"]({"id": texts}))
        assert pa.total_allocated_bytes() - before < 8 << 20
