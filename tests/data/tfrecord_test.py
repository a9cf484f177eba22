import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import pipeline, source, tfrecord

SPEC = spec.Spec(
    features={"x": "float32", "image": ("uint8", (2, 2)), "tags": ("string", (None,))},
    labels={"y": "int64"},
    defaults={"x": 0.5},
)


def feature(values):
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**fields):
    features = {name: feature(values) for name, values in fields.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def good(index):
    return example(x=[float(index)], image=[index % 256] * 4, tags=[b"t"] * (index % 3 or 1), y=[1])


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def feed(path, **settings):
    return pipeline.Pipeline(
        source=tfrecord.TfRecord(files={"train": path}, **settings), spec=SPEC, batch_size=8
    )


def failure(feed):
    refusals = (*source.list_refusals(), tf.errors.DataLossError)
    with pytest.raises(refusals) as caught:
        list(feed.dataset("train", training=False, seed=0))
    return feed.diagnose(caught.value, "train")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "written", "setting"),
    [
        ("a.tfrecord", "", "auto"),
        ("a.tfrecord.gz", "GZIP", "auto"),
        ("a.tfrecord", "GZIP", "gzip"),
        ("a.tfrecord", "ZLIB", "zlib"),
        ("a.tfrecord.gz", "", "none"),
    ],
)
def test_reads_what_was_written(tmp_path, name, written, setting):
    path = write(tmp_path / name, [good(i) for i in range(20)], written)
    data = feed(path, compression=setting)
    batches = list(data.dataset("train", training=False, seed=0))
    assert [labels["y"].shape[0] for _, labels in batches] == [8, 8, 4]
    np.testing.assert_allclose(np.concatenate([f["x"] for f, _ in batches]), np.arange(20))
    assert batches[0][0]["tags"].to_list()[:3] == [[b"t"], [b"t"], [b"t", b"t"]]
    scanned = [row for _, row in data.source.scan("train", SPEC)]
    assert [row["x"] for row in scanned] == list(range(20))
    assert scanned[2] == {"x": 2.0, "image": [2] * 4, "tags": ["t", "t"], "y": 1}
    assert data.diagnose(tf.errors.DataLossError(None, None, ""), "train") is None


def test_defaults_and_missing_labels(tmp_path):
    path = write(tmp_path / "a", [example(image=[1, 2, 3, 4])])
    data = feed(path)
    ((features, labels),) = data.dataset("train", training=False, seed=0)
    missing = spec.MISSING["int64"]
    assert (features["x"].numpy().item(), labels["y"].numpy().item()) == (0.5, missing)
    assert features["tags"].to_list() == [[]]
    ((_, row),) = data.source.scan("train", SPEC)
    assert row == {"x": 0.5, "image": [1, 2, 3, 4], "tags": [], "y": missing}


BAD_RECORDS = {
    "field 'image' must be present, as it has no default.": example(x=[1.0]),
    "field 'image' must hold 4 values, got 3.": example(image=[1, 2, 3]),
    "field 'image' must be uint8, got 256.": example(image=[1, 2, 3, 256]),
    "field 'x' must hold 1 value, got 2.": example(x=[1.0, 2.0], image=[1] * 4),
    "field 'x' must be a float_list, as it is float32 in the Spec, got a int64_list.": example(
        x=[1], image=[1] * 4
    ),
    "field 'y' must be a int64_list, as it is int64 in the Spec, got a bytes_list.": example(
        image=[1] * 4, y=[b"1"]
    ),
    "must be a serialized tf.Example.": b"\x0fnot a proto",
}


@pytest.mark.parametrize(("message", "record"), BAD_RECORDS.items(), ids=BAD_RECORDS)
def test_a_bad_record_fails_and_is_found(tmp_path, message, record):
    path = write(tmp_path / "a", [*map(good, range(10)), record, record, good(0)])
    fix = "Set Spec.defaults, or Spec.type_defaults for all of a type; 'nan' is a missing number."
    told = f"{message} {fix}" if "must be present" in message else message
    assert failure(feed(path)) == f"{path} record 10: {told}"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\x0a\xff\xff", "must be a serialized tf.Example."),
        # An entry without a key, which protobuf takes and TensorFlow does not.
        (good(0) + b"\x0a\x06\x0a\x04\x12\x02\x0a\x00", "TensorFlow cannot read it: "),
    ],
)
def test_a_damaged_record_is_found_whoever_refuses_it(tmp_path, record, says):
    path = write(tmp_path / "a", [good(0), record])
    assert failure(feed(path)).startswith(f"{path} record 1: {says}")


@pytest.mark.medium
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_cut_and_damaged_files_are_found(tmp_path, compression):
    noise = np.random.default_rng(0)
    records = [example(image=[1] * 4, tags=[noise.bytes(100)]) for _ in range(1000)]
    path = tmp_path / "a"
    write(path, records, {"none": "", "gzip": "GZIP"}[compression])
    whole = path.read_bytes()
    middle = len(whole) // 2
    for broken in (whole[:-80], whole[:middle] + b"\xff\x00\xff" + whole[middle + 3 :]):
        path.write_bytes(broken)
        line = failure(feed(str(path), compression=compression))
        where, problem = line.removeprefix(f"{path} record ").split(": ", 1)
        if compression == "none":
            assert 400 < int(where) < 1000
        else:
            assert where.endswith(" or a later one")
        assert problem.startswith("cannot be read: ")
        assert problem.endswith(
            " Is it cut off, damaged, or compressed otherwise than the setting says?"
        )


@pytest.mark.parametrize(("written", "setting"), [("", "gzip"), ("GZIP", "none")])
def test_the_wrong_compression_is_found(tmp_path, written, setting):
    path = write(tmp_path / "a", [good(0)], written)
    data = feed(path, compression=setting)
    line = next(
        f"{where}: {what}"
        for where, what in data.source.scan("train", SPEC)
        if isinstance(what, str)
    )
    assert line.startswith(f"{path} record 0")
    assert "cannot be read: " in line


def test_empty_file_and_settings(tmp_path):
    path = write(tmp_path / "a", [])
    with pytest.raises(checks.UserError, match="split 'train' must hold a record, got 0"):
        feed(path).dataset("train", training=True, seed=0)
    with pytest.raises(checks.UserError, match=r"compression must be one of .* 'gzip'\?"):
        feed(path, compression="gz")
