"""Folders of tables as Spark writes them: the rows and columns that pyarrow.dataset finds there."""

import pathlib

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import dataset, orc, parquet

from mtl import checks, spec
from mtl.data import arrow, files, partitions
from mtl.files import remote
from mtl.tools import scoring
from mtl.tools.drafting import lines, tables
from tests.files import object_servers

SPEC = spec.Spec(
    features={"x": "float32", "year": "int64", "country": "string"},
    labels={"y": "int64"},
    defaults={"country": "none"},
)
# As Hive escapes them.
_FOLDERS = {
    "year=2023/country=de": [1, 2],
    "year=2023/country=__HIVE_DEFAULT_PARTITION__": [3],
    "year=2024/country=a%2Fb %3D c": [4, 5],
    "year=2024/country=é%20ß%25": [6],
}
_DECODED = ["none", "de", "de", "a/b = c", "a/b = c", "é ß%"]


def _write(folder, write=parquet.write_table, ending=".parquet"):
    for place, values in _FOLDERS.items():
        (folder / place).mkdir(parents=True)
        table = pa.table(
            {"x": pa.array(values, pa.float32()), "y": values, "unused": ["u"] * len(values)}
        )
        write(table, folder / place / f"part-00000-c000.snappy{ending}")
        (folder / place / f".part-00000-c000.snappy{ending}.crc").write_bytes(b"crc")
    for name in ("_SUCCESS", "_metadata", ".hidden.parquet"):
        (folder / name).write_bytes(b"")
    (folder / "_temporary" / "0").mkdir(parents=True)
    (folder / "_temporary" / "0" / "part.parquet").write_bytes(b"half")
    return str(folder)


def _read(source, split="train"):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(
            source.records(split).batch(100)
        ).get_next()
        return session.run(source.decode(batch, SPEC, True))


def _rows(values):
    names = [text.decode() for text in values["country"]]
    return sorted(zip(values["x"], values["year"], names, values["y"], strict=True))


@pytest.mark.parametrize("ending", [".parquet", ".orc"])
def test_rows_are_those_of_pyarrow(tmp_path, ending):
    write = parquet.write_table if ending == ".parquet" else orc.write_table
    folder = _write(tmp_path / "sales", write, ending)
    theirs = dataset.dataset(folder, format=ending[1:], partitioning="hive").to_table().to_pylist()
    expected = sorted((row["x"], row["year"], row["country"] or "none", row["y"]) for row in theirs)
    assert len(expected) == 6 and {row[2] for row in expected} == {*_DECODED}
    for paths in (folder, f"{folder}/", f"{folder}/year=*", f"{folder}/year=*/*/*{ending}"):
        source = arrow.Arrow(files={"train": paths})
        assert source.list_rows("train").tolist() == list(range(6))
        assert _rows(_read(source)) == expected
    scanned = [row for _, row in arrow.Arrow(files={"a": folder}).scan("a", SPEC)]
    assert sorted(row["country"] for row in scanned) == sorted(_DECODED)


def test_only_columns_that_are_needed_are_read(tmp_path, monkeypatch):
    folder, asked = _write(tmp_path / "sales"), []
    read = parquet.ParquetFile.read_row_group

    def note(self, group, columns):
        asked.append(columns)
        return read(self, group, columns=columns)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", note)
    _read(arrow.Arrow(files={"train": folder}))
    assert asked == [["x", "y"]] * 4
    schema, parts = arrow.open_file(f"{folder}/year=2023/country=de/part-00000-c000.snappy.parquet")
    assert schema.names == ["x", "y", "unused", "year", "country"]
    table = parts[0].read(["country", "year"])
    assert len(asked) == 4 and table.column_names == ["country", "year"]
    assert table.to_pylist() == [{"country": "de", "year": "2023"}] * 2


def test_a_column_of_the_file_is_not_replaced_by_a_folder(tmp_path):
    folder = tmp_path / "year=1999" / "lr=0.1"
    folder.mkdir(parents=True)
    parquet.write_table(pa.table({"x": [1.0], "year": [2024], "y": [1]}), folder / "a.parquet")
    schema, parts = arrow.open_file(str(folder / "a.parquet"))
    assert parts[0].read(["year", "lr"]).to_pylist() == [{"year": 2024, "lr": "0.1"}]
    assert schema.names == ["x", "year", "y", "lr"]


def test_values_of_folders_are_texts_as_they_stand():
    read = partitions.read_keys
    assert read("a/id=007/b=1=2/p.parquet") == {"id": "007", "b": "1=2"}
    assert read("s3://bucket/n%61me=x/p.parquet") == {"name": "x"}
    assert read("a=b.parquet") == {} and read("/=x/==/p.parquet") == {}
    assert read("a/k=/p.parquet") == {"k": ""}


def test_a_file_without_a_key_is_named(tmp_path):
    folder = pathlib.Path(_write(tmp_path / "sales"))
    parquet.write_table(pa.table({"x": [1.0], "y": [1]}), folder / "stray.parquet")
    line = "stray.parquet: the column of field '(year|country)' must be one of x, y"
    with pytest.raises(checks.UserError, match=line):
        _read_all(arrow.Arrow(files={"train": str(folder)}))


def test_types_that_differ_name_both_files(tmp_path):
    folder = pathlib.Path(_write(tmp_path / "sales"))
    odd = folder / "year=2024" / "z.parquet"
    parquet.write_table(pa.table({"x": [1.0], "country": ["x"], "y": [1]}), odd)
    with pytest.raises(
        checks.UserError, match="z.parquet: column '.*' must be .*, as in .*year=2023"
    ):
        _read_all(arrow.Arrow(files={"train": str(folder)}))


def _read_all(source):
    return list(source._read("train", SPEC.fields))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_delta_log/0.json", "Delta"),
        (".hoodie/x", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_a_table_with_a_log_is_refused(tmp_path, name, kind):
    folder = pathlib.Path(_write(tmp_path / "sales"))
    (folder / name).parent.mkdir()
    (folder / name).write_text("{}")
    with pytest.raises(checks.UserError, match=f"plain files, got 'a {kind} table'. Some files"):
        partitions.list_files("Arrow.files", str(folder))


def test_a_folder_of_other_files_is_one_line(tmp_path):
    for files_in, line in (
        (
            ["a.csv"],
            "must name files, got .* It is a folder, in which no file ends in one of .parq",
        ),
        ([], "must name files, got .* It is a folder"),
        (["a.parquet", "README.txt"], "must hold only files that end in one of .*README.txt"),
    ):
        folder = tmp_path / str(len(files_in))
        folder.mkdir()
        for name in files_in:
            (folder / name).write_text("x")
        with pytest.raises(checks.UserError, match=line):
            files.find("Arrow.files", {"a": str(folder)}, "a", folders=True)
        with pytest.raises(checks.UserError, match=line):
            lines.find_files("--data", str(folder))


def test_a_draft_sees_the_columns_of_folders(tmp_path):
    dialect = tables.read_dialect(lines.find_files("--data", _write(tmp_path / "sales")))
    assert dialect.columns == ("x", "y", "unused", "year", "country")
    read = pa.concat_tables(table for _, table in tables.read_blocks(dialect))
    assert sorted(read["country"].to_pylist()) == sorted(
        "" if text == "none" else text for text in _DECODED
    )
    assert read["year"].to_pylist() == ["2023"] * 3 + ["2024"] * 3


def test_the_files_of_a_folder_are_those_of_a_run(tmp_path):
    folder = _write(tmp_path / "sales")
    found = files.named_by(arrow.Arrow(files={"train": folder}), "train")
    assert len(found) == 4 and found == sorted(found)
    assert all(path.endswith("snappy.parquet") for path in found)


@pytest.mark.medium
def test_predictions_know_the_columns_of_folders(tmp_path):
    folder = _write(tmp_path / "sales")
    reader = scoring.Reader(spec=SPEC, keep=["country", "unused"])
    paths = reader.find([folder])
    batches = [reader.parse(chunk) for chunk in reader.chunks(paths)]
    parsed = SPEC.parse(tf.constant(np.concatenate([b.examples for b in batches])), False)
    assert sorted(text.decode() for text in parsed["country"].numpy()) == sorted(_DECODED)
    kept = [value for batch in batches for value in batch.kept["country"]]
    assert sorted(map(str, kept)) == sorted(map(str, [None, *_DECODED[1:]]))


@pytest.mark.medium
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_folder_in_a_bucket_holds_the_same(scheme, tmp_path, monkeypatch):
    folder = pathlib.Path(_write(tmp_path / "sales"))
    with object_servers.serve(scheme, monkeypatch):
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_size:
                remote.write(f"{scheme}://bucket/t/{path.relative_to(folder)}", path.read_bytes())
        there = arrow.Arrow(files={"train": f"{scheme}://bucket/t"})
        here = arrow.Arrow(files={"train": str(folder)})
        assert _rows(_read(there)) == _rows(_read(here))
        assert len(files.named_by(there, "train", connects=True)) == 4
