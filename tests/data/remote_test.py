"""The same rows from this machine and from object stores: equal batches, and runs that go on."""

import dataclasses
import gzip
import json
import os
import pathlib

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import feather, orc, parquet

from mtl import checks, spec, verbs
from mtl.data import arrow, csv, files, json_lines, pipeline, source, tfrecord
from mtl.data import source as source_lib
from mtl.files import remote
from tests import tiny
from tests.files import object_servers

SPEC = spec.Spec(
    features={"age": "float32", "job": "string", "tags": ("string", (None,))},
    labels={"rich": "int64"},
)
_ROWS = [
    {"age": age / 3, "job": f"jöb {age % 7}", "tags": ["a"] * (age % 4), "rich": age % 2}
    for age in range(300)
]


@pytest.fixture(name="stored", scope="module", params=["s3", "gs"])
def _stored(request):
    """The beginning of paths in a bucket."""
    with pytest.MonkeyPatch.context() as patch, object_servers.serve(request.param, patch):
        yield f"{request.param}://bucket"


def _csv(rows):
    lines = [f"{r['age']!r},{r['job']},{'|'.join(r['tags'])},{r['rich']}" for r in rows]
    return "\n".join(["age,job,tags,rich", *lines, ""]).encode()


def _json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _records(rows):
    path = os.path.join(remote._open_folder(), "made.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in rows:
            feature = {
                "age": tf.train.Feature(float_list=tf.train.FloatList(value=[row["age"]])),
                "job": tf.train.Feature(bytes_list=tf.train.BytesList(value=[row["job"].encode()])),
                "tags": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tag.encode() for tag in row["tags"]])
                ),
                "rich": tf.train.Feature(int64_list=tf.train.Int64List(value=[row["rich"]])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return pathlib.Path(path).read_bytes()


def _table(write):
    def make(rows):
        out = pa.BufferOutputStream()
        write(pa.Table.from_pylist(rows), out)
        return out.getvalue().to_pybytes()

    return make


def _packed(make):
    return lambda rows: gzip.compress(make(rows))


FORMATS = {
    ".csv": (csv.Csv, _csv),
    ".csv.gz": (csv.Csv, _packed(_csv)),
    ".jsonl": (json_lines.JsonLines, _json),
    ".jsonl.gz": (json_lines.JsonLines, _packed(_json)),
    ".parquet": (arrow.Arrow, _table(parquet.write_table)),
    ".orc": (arrow.Arrow, _table(orc.write_table)),
    ".feather": (arrow.Arrow, _table(feather.write_feather)),
    ".tfrecord": (tfrecord.TfRecord, _records),
}


def _to_bytes(values):
    if hasattr(values, "row_splits"):
        return [_to_bytes(values.values), _to_bytes(values.row_splits)]
    array = np.asarray(values)
    return array.tolist() if array.dtype == object else array.tobytes()


def _batches(kind, paths, shuffle_buffer=50):
    """Two epochs of batches, as bytes."""
    data = pipeline.Pipeline(
        source=kind(files={"train": paths}), spec=SPEC, batch_size=64, shuffle_buffer=shuffle_buffer
    )
    made = lambda: data.dataset("train", training=True, seed=3).take(9)  # noqa: E731
    return [[_to_bytes(part) for part in tf.nest.flatten(batch)] for batch in source.iterate(made)]


@pytest.mark.medium
@pytest.mark.parametrize("ending", FORMATS)
def test_rows_are_the_same_from_any_place(stored, ending, tmp_path):
    kind, make = FORMATS[ending]
    if ending == ".tfrecord" and stored.startswith("gs"):
        pytest.skip("TensorFlow streams these files, from Google's servers alone.")
    here, there = [], []
    for number in range(2):
        name, data = f"pärt %2{number}:a b{ending}", make(_ROWS[number::2])
        (tmp_path / name).write_bytes(data)
        remote.write(f"{stored}/rows{ending}/{name}", data)
        here.append(f"{tmp_path}/{name}")
        there.append(f"{stored}/rows{ending}/{name}")
    expected = _batches(kind, here)
    assert len(expected) == 9 and all(not isinstance(batch, Exception) for batch in expected)
    assert _batches(kind, there) == expected
    assert _batches(kind, f"{stored}/rows{ending}/p*{ending}") == expected
    assert _batches(kind, [f"file://{path}" for path in here]) == expected
    scanned = [list(kind(files={"a": paths}).scan("a", SPEC)) for paths in (here, there)]
    assert repr([row for _, row in scanned[0]]) == repr([row for _, row in scanned[1]])
    assert scanned[1][0][0].startswith(there[0])


@pytest.mark.medium
def test_a_bad_row_is_named_by_its_place(stored):
    path = f"{stored}/bad.csv"
    remote.write(path, b"age,job,tags,rich\n1,a,,1\nx,a,,1\n")
    found = [(w, r) for w, r in csv.Csv(files={"a": path}).scan("a", SPEC) if isinstance(r, str)]
    assert found == [(f"{path} line 3", "field 'age' must be float32, got 'x'.")]
    remote.write(f"{stored}/cut.csv.gz", gzip.compress(_csv(_ROWS))[:-9])
    with pytest.raises(checks.UserError, match=r"cut.csv.gz must be a whole gzip file"):
        csv.Csv(files={"a": f"{stored}/cut.csv.gz"}).blocks("a")
    remote.write(f"{stored}/no.parquet", b"PAR1 no")
    with pytest.raises(checks.UserError, match=f"{stored}/no.parquet cannot be read"):
        arrow.Arrow(files={"a": f"{stored}/no.parquet"}).list_rows("a")


@pytest.mark.medium
def test_an_epoch_goes_on_when_the_server_dies(monkeypatch):
    with object_servers.serve("s3", monkeypatch) as server:
        paths = [f"s3://bucket/{number}.csv" for number in range(3)]
        for number, path in enumerate(paths):
            remote.write(path, _csv(_ROWS[number::3]))
        lines = files.read_lines(paths, 1, "").unbatch().batch(7).as_numpy_iterator()
        rows = list(next(lines))
        server.kill()
        server.wait(30)
        rows += [line for batch in lines for line in batch]
        assert len(rows) == len(_ROWS)
        with pytest.raises(checks.UserError, match="s3://bucket/0.csv cannot be reached"):
            remote.find("W", paths[0])


@pytest.mark.medium
def test_the_files_of_a_run_are_named_without_a_connection():
    made = csv.Csv(files={"train": "s3://b/*.csv", "test": ["a.csv"]}, data_dir="s3://b/d")
    assert files.named_by(made) == ["s3://b/*.csv", "s3://b/d/a.csv"]


def _state_of(paths, steps, restore=None, copies=None):
    """The lines of some steps, and the saved state of their iterator."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        lines = files.read_line_by_line(paths, 1, "").unbatch().shuffle(20, seed=1).batch(5)
        # Without tuning, no thread reads ahead: the state then names the same file in each run.
        lines = lines.with_options(source_lib.options())
        iterator = tf.compat.v1.data.make_one_shot_iterator(lines)
        saver = tf.compat.v1.train.Saver(
            [tf.data.experimental.make_saveable_from_iterator(iterator)]
        )
        following = iterator.get_next()
        if restore:
            saver.restore(session, restore)
        found = [session.run(following).tolist() for _ in range(steps)]
        if copies:
            saver.save(session, copies)
        return found


@pytest.mark.medium
def test_the_state_of_an_iterator_fits_another_process_with_other_copies(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "_LINES", 8)
    with object_servers.serve("s3", monkeypatch):
        paths = [f"s3://bucket/state{number}.csv" for number in range(2)]
        for number, path in enumerate(paths):
            remote.write(path, _csv(_ROWS[number::2]))
        whole = _state_of(paths, 50)
        half = _state_of(paths, 20, copies=str(tmp_path / "state"))
        # As in another process: no copies, and another folder for them.
        for _, copy in remote._copies.values():
            os.remove(copy)
        monkeypatch.setattr(remote, "_copies", {})
        monkeypatch.setattr(remote, "_folders", {})
        rest = _state_of(paths, 30, restore=str(tmp_path / "state"))
        assert half + rest == whole
        with pytest.raises(tf.errors.OpError, match="not among the files of the split"):
            _state_of(paths[1:] * 2, 30, restore=str(tmp_path / "state"))


def _experiment(paths, steps):
    made = tiny.make(train_steps=steps, checkpoint_steps=10)
    data = dataclasses.replace(
        made.data, source=csv.Csv(files={"train": paths, "test": paths}), shuffle_buffer=30
    )
    return dataclasses.replace(made, data=data)


def _tiny_csv(split):
    rows = tiny.SPLITS[split]
    lines = ["x,word,sign,kind,size"]
    for x, word, sign, kind, size in zip(
        *(rows[name] for name in lines[0].split(",")), strict=True
    ):
        kind = "" if kind < 0 else kind
        lines.append(f"{'|'.join(map(repr, x.tolist()))},{word.decode()},{sign},{kind},{size!r}")
    return "\n".join([*lines, ""]).replace("np.float32(", "").replace(")", "").encode()


@pytest.mark.slow
def test_a_run_that_reads_from_a_store_goes_on_to_the_bit(monkeypatch, tmp_path):
    with object_servers.serve("s3", monkeypatch):
        (tmp_path / "a.csv").write_bytes(_tiny_csv("train"))
        remote.write("s3://bucket/a.csv", _tiny_csv("train"))
        verbs.train(_experiment(str(tmp_path / "a.csv"), 40), str(tmp_path / "here"))
        verbs.train(_experiment("s3://bucket/a.csv", 20), str(tmp_path / "there"))
        monkeypatch.setattr(remote, "_copies", {})
        verbs.train(_experiment("s3://bucket/a.csv", 40), str(tmp_path / "there"))
        here, there = (tiny.variables(str(tmp_path / name)) for name in ("here", "there"))
        assert {*here} == {*there} and here
        for name, values in here.items():
            np.testing.assert_array_equal(values, there[name], name)
