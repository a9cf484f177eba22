import types

import pytest
import tensorflow as tf

from mtl.data import csv, files, subset
from mtl.files import remote

# Each with lines that are cut by the ends of chunks.
TEXTS = [
    b"name\none\ntwo\nthree\n",
    b"name\none\ntwo\nthree",
    b"name\r\none\r\n\r\ntwo\r\nthree\r\n",
    b"name\n" + b"a long line that several chunks hold" + b"\n\n\n" + b"x\ny",
    b"name\n",
    b"name",
    b"",
    b"name\nabcdefgh\nabcdefgh\n",
    "näme\nzwölf\nzäh\n".encode(),
]


def as_tensorflow_reads(paths, skip):
    lines = [line for path in paths for line in tf.data.TextLineDataset(path).skip(skip)]
    return [line.numpy() for line in lines]


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("chunk", [1, 8, 9, 1 << 18])
def test_lines_are_those_that_tensorflow_reads(tmp_path, monkeypatch, chunk, skip):
    monkeypatch.setattr(files, "_CHUNK", chunk)
    paths = [tmp_path / f"{number}.csv" for number in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_bytes(text)
    paths = list(map(str, paths))
    found = [line for block in files.read_lines(paths, skip, "") for line in block.numpy().tolist()]
    expected = as_tensorflow_reads(paths, skip)
    assert found == [line for line in expected if line]
    assert expected


def test_a_file_that_grows_while_it_is_read_is_told(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"name\none\n")
    blocks = iter(files.read_lines([str(path)], 1, "").repeat())
    next(blocks)
    with path.open("ab") as file:
        file.write(b"two\n")
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(blocks)
    assert files.find_change(error.value.message) == str(path)
    assert files.find_change("field 'age' must be float32") is None


def test_the_files_of_a_split_are_those_that_it_is_read_from(tmp_path):
    for name in ("a.csv", "b.csv", "test.csv"):
        (tmp_path / name).write_text("x\n1\n")
    given = {"all": ["a.csv", "b.csv"], "test": "test.csv"}
    source = csv.Csv(files=given, data_dir=str(tmp_path), columns=("x",))
    cut = subset.Subset(source=source, share=0.5, split="all", held_out={"held_out": 0.2})
    of_all, of_test = [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"], [f"{tmp_path}/test.csv"]
    for where, split, expected in (
        (source, "all", of_all),
        (source, "test", of_test),
        (cut, "all", of_all),
        (cut, "held_out", of_all),
        (cut, "test", of_test),
        (cut, None, of_all + of_test),
    ):
        assert files.named_by(where, split) == expected


def test_shards_are_measured_by_the_files_of_the_inner_source(tmp_path):
    for name, size in (("a", 7), ("b", 5), ("c", 2)):
        (tmp_path / f"{name}.csv").write_text("x" * size)
    (tmp_path / "d.csv.gz").write_bytes(b"x" * 3)
    source = csv.Csv(files={"train": ["?.csv", "d.csv.gz"]}, data_dir=str(tmp_path))
    outer = types.SimpleNamespace(source=source)
    assert files.measure_shards(outer, "train", 2) == [9, 35]
    assert not files.measure_shards(outer, "test", 2)
    for own in ({}, {"files": "train.csv"}, {"files": 5}):  # Own sources may name anything so.
        assert not files.measure_shards(types.SimpleNamespace(**own), "train", 2)


def test_sizes_of_remote_files_are_asked_only_once(monkeypatch):
    for name, size in (("a.csv", 9), ("b.csv.gz", 2)):
        monkeypatch.setitem(remote._versions, f"s3://b/{name}", remote.Version(size, 0))
    assert files.estimate_bytes(["s3://b/a.csv", "s3://b/b.csv.gz"]) == 29
