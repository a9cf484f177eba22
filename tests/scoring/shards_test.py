"""Files to files: the same rows in every format, each file once, and none half-written."""

import csv
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, scoring
from mtl.scoring import batches
from tests import tiny


class Sums:
    """A model that is told from another by its name, and counts what it does."""

    def __init__(self, identity="sums", refuses=()):
        self.identity, self.refuses, self.rows = identity, refuses, 0

    def __call__(self, examples):
        self.rows += len(examples)
        x = tiny.SPEC.parse(tf.constant(examples), with_labels=False)["x"].numpy()
        if set(examples) & set(self.refuses):
            raise batches.RefusedError("no")
        classes = np.array([b"\xc3\xbc", b'a"%s'], object)[(x[:, 0] > 0).astype(int)]
        values = np.where(x[:, 0] > 1.5, np.nan, x.sum(1))
        return {"x": x, "of/class": classes, "of/sum": values, "n": np.arange(len(x))}


def run(inputs, output, model=None, keep=("id",), format_name="auto", batch_size=7):
    reader = scoring.Reader(spec=tiny.SPEC, keep=keep, batch_size=batch_size)
    plan = scoring.plan(reader.find(inputs), output and str(output), format_name)
    return scoring.run(plan, reader, model or Sums(), concurrency=3)


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "tfrecord"])
def test_every_format_of_input_gives_the_same(suffix, trained, tmp_path):
    path = trained.write(tmp_path / f"in.{suffix}")
    assert run([path], tmp_path / "out.jsonl") == (48, 0)
    rows, x = lines(tmp_path / "out.jsonl"), tiny.SPLITS["test"]["x"]
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(48)]
    assert list(rows[0]) == ["id", "x", "of/class", "of/sum", "n"]
    np.testing.assert_array_equal(np.float32([row["x"] for row in rows]), x)
    for row, values in zip(rows, x, strict=True):
        assert row["of/class"] == ('a"%s' if values[0] > 0 else "ü")
        expected = np.nan if values[0] > 1.5 else values.sum()
        np.testing.assert_equal(np.float32(row["of/sum"]), np.float32(expected))


def test_every_format_of_output_holds_the_same(trained, tmp_path):
    path = trained.write(tmp_path / "in.jsonl")
    for suffix in ("jsonl", "csv", "tfrecord"):
        run([path], tmp_path / f"out.{suffix}")
    rows = lines(tmp_path / "out.jsonl")
    with open(tmp_path / "out.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    records = tf.data.TFRecordDataset(str(tmp_path / "out.tfrecord")).as_numpy_iterator()
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    assert len(rows) == len(cells) == len(features) == 48
    for row, cell, feature in zip(rows, cells, features, strict=True):
        assert cell["id"] == row["id"] == feature["id"].bytes_list.value[0].decode()
        assert [float(v) for v in cell["x"].split("|")] == row["x"]
        assert list(feature["x"].float_list.value) == np.float32(row["x"]).tolist()
        assert cell["of/class"] == row["of/class"]
        np.testing.assert_equal(float(cell["of/sum"]), row["of/sum"])
        assert int(cell["n"]) == row["n"] == feature["n"].int64_list.value[0]


def test_several_files_into_one_and_to_standard_output(trained, tmp_path, capsys):
    paths = [trained.write(tmp_path / "a.csv", 3), trained.write(tmp_path / "b.tfrecord", 2)]
    assert run(paths, tmp_path / "all.jsonl") == (5, 0)
    assert run(paths, None) == (5, 0)
    out = capsys.readouterr().out
    assert out == (tmp_path / "all.jsonl").read_text()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["r0", "r1", "r2", "r0", "r1"]


def test_a_restart_repeats_no_finished_file(trained, tmp_path):
    inputs = [trained.write(tmp_path / f"in-{i}.csv", 10 + i) for i in range(4)]
    bad = pathlib.Path(inputs[2])
    good, out = bad.read_text(), tmp_path / "out"
    bad.write_text(good.replace("\nr9,", "\nr9,x", 1))
    with pytest.raises(checks.UserError, match="in-2.csv line 11: field 'x'"):
        run([str(tmp_path / "in-*.csv")], f"{out}/", format_name="jsonl")
    assert sorted(os.listdir(out)) == ["in-0.jsonl", "in-1.jsonl", "scoring.json"]
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}

    bad.write_text(good)
    model = Sums()
    assert run([str(tmp_path / "in-*.csv")], out, model, format_name="jsonl") == (25, 2)
    assert model.rows == 25
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for i in range(4):
        assert [row["id"] for row in lines(out / f"in-{i}.jsonl")] == [
            f"r{j}" for j in range(10 + i)
        ]

    newer = (out / "in-1.jsonl").stat().st_mtime_ns + 10**9
    os.utime(inputs[1], ns=(newer, newer))
    assert run(inputs, out, format_name="jsonl") == (11, 3)


def test_a_folder_holds_predictions_of_one_model(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 3), f"{tmp_path}/out/"
    run([path], out)
    assert sorted(os.listdir(out)) == ["in.csv", "scoring.json"]
    for other in ({"model": Sums("others")}, {"keep": ()}):
        with pytest.raises(checks.UserError, match="--output must hold predictions with .*sums"):
            run([path], out, **other)


def test_what_cannot_be_planned(trained, tmp_path):
    (tmp_path / "x").mkdir()
    paths = [trained.write(tmp_path / "a.csv", 1), trained.write(tmp_path / "x" / "a.csv", 1)]
    with pytest.raises(checks.UserError, match="--input must lead to different names"):
        run(paths, f"{tmp_path}/out/")
    with pytest.raises(checks.UserError, match="--output must be a folder that can be written"):
        run(paths[:1], paths[0] + "/")
    with pytest.raises(checks.UserError, match="--output must be a file that can be written"):
        run(paths[:1], paths[0] + "/out.csv")
    with pytest.raises(checks.UserError, match="--output must be a file where --output_format"):
        run(paths[:1], None, format_name="tfrecord")


def test_a_record_that_the_model_refuses_is_named(trained, tmp_path):
    path = trained.write(tmp_path / "in.tfrecord", 20)
    with pytest.raises(checks.UserError, match="in.tfrecord records 14 to 19: the model refused"):
        run([path], tmp_path / "out.csv", Sums(refuses=trained.examples[16:17]))
    without_x = tf.train.Example.FromString(trained.examples[3])
    del without_x.features.feature["x"]
    with tf.io.TFRecordWriter(path) as writer:
        for example in (*trained.examples[:3], without_x.SerializeToString()):
            writer.write(example)
    reader = scoring.Reader(spec=tiny.SPEC)
    plan = scoring.plan([path], str(tmp_path / "out.csv"))
    with pytest.raises(checks.UserError, match="in.tfrecord record 3: field 'x' must be present"):
        scoring.run(plan, reader, scoring.SavedModel(trained.base))
    assert not list(tmp_path.glob("out*"))


def test_an_empty_file(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    assert run([str(tmp_path / "in.jsonl")], tmp_path / "out.jsonl") == (0, 0)
    assert (tmp_path / "out.jsonl").read_text() == ""
