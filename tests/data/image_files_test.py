import os

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, spec
from mtl.data import csv, field_splits, image_files, pipeline, subset, tfrecord
from mtl.tools.scoring import batches, readers

SPEC = spec.Spec(features={"photo": "string", "x": "float32"}, labels={"y": "int64"})
PIXELS = np.random.default_rng(0).integers(0, 256, [4, 6, 5, 3]).astype(np.uint8)
RULE = "field 'photo' must be an image file, such as PNG or JPEG"
ENCODED = [tf.io.encode_png(image).numpy() for image in PIXELS]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder with four images in `photos/`, and a file beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "a b").mkdir(parents=True)
    for number, encoded in enumerate(ENCODED):
        (tmp_path / "photos" / "a b" / f"{number}.png").write_bytes(encoded)
    (tmp_path / "beside.png").write_bytes(ENCODED[0])
    return tmp_path


def _write(paths):
    with open("rows.csv", "w") as file:
        file.write("photo,x,y\n" + "".join(f"{path},0.5,{n % 2}\n" for n, path in enumerate(paths)))


def _feed(folder="photos", fields=("photo",), spec=SPEC):
    source = image_files.ImageFiles(
        source=csv.Csv(files={"train": "rows.csv"}), fields=fields, folder=folder
    )
    return pipeline.Pipeline(source=source, spec=spec, batch_size=3)


def _read(data):
    found = data.dataset("train", training=False, seed=0).as_numpy_iterator()
    return np.concatenate([fields["photo"] for fields, _ in found])


def _fail(data, columns=()):
    """The line that is told of a split that cannot be read."""
    with pytest.raises(tf.errors.OpError) as caught:
        _read(data)
    return data.diagnose(caught.value, "train", columns=columns)


@pytest.mark.medium
def test_paths_become_the_bytes_of_their_files(photos):
    _write([f"a b/{n}.png" for n in range(4)])
    for folder in ("photos", "photos/", f"{photos}/photos"):
        assert _read(_feed(folder)).tolist() == ENCODED
    _write([f"photos/a b/{n}.png" for n in range(4)])
    assert _read(_feed("")).tolist() == ENCODED
    _write([f"{photos}/photos/a b/{n}.png" for n in range(4)])  # Absolute, within the folder.
    for folder in (f"{photos}/photos", "/"):
        assert _read(_feed(folder)).tolist() == ENCODED
    data = _feed(f"{photos}/photos")
    found = [values["photo"] for _, values in data.source.scan("train", SPEC)]
    assert found == ENCODED


@pytest.mark.medium
@pytest.mark.parametrize(
    "path, reason",
    [
        ("a b/9.png", "There is no such file."),
        ("", "It must be a path within the folder 'photos' and without '..'."),
        ("../beside.png", "It must be a path within the folder 'photos' and without '..'."),
        ("a b/../../beside.png", "It must be a path within"),
        ("a b/..", "It must be a path within"),
        ("/dev/null", "It must be a path within the folder 'photos'"),
        ("gs://bucket/x.png", "It must be a path within the folder 'photos'"),
        ("a b", "Is a directory."),
    ],
)
def test_a_path_that_names_no_file_of_the_folder_is_told_with_its_row(photos, path, reason):
    _write(["a b/0.png", "a b/1.png", path])
    line = _fail(_feed())
    start = (
        f"rows.csv line 4: field 'photo' must be an image file, such as PNG or JPEG, got {path!r}"
    )
    assert line.startswith(f"{start} in 'photos'. "), line
    assert reason in line


def test_bytes_that_are_no_text_do_not_lead_out_of_the_folder(photos):
    """Expressions of TensorFlow match text in UTF-8 unless they are told not to."""
    source = _feed().source
    for path in (b"\xff/../../beside.png", b"\n/../../beside.png", b"a b/0.png\0"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be a path within"):
            source._read(tf.constant([path]), "photo")
        assert "must be a path within" in source.read_file("photo", path)


@pytest.mark.medium
def test_a_damaged_image_is_told_with_its_row_and_path(photos):
    (photos / "photos" / "bad.png").write_bytes(ENCODED[0][:30])
    (photos / "photos" / "empty.png").write_bytes(b"")
    column = features.Image(names=["photo"], shape=(6, 5, 3))
    for name, reason in (("bad.png", "Invalid PNG"), ("empty.png", "It is empty.")):
        _write(["a b/0.png", name])
        data = _feed()
        error = tf.errors.InvalidArgumentError(None, None, "of the network")
        line = data.diagnose(error, "train", columns=[column])
        assert line.startswith("rows.csv line 3: field 'photo' must be an image file") and (
            f"got {name!r} in 'photos'. {reason}" in line
        )


@pytest.mark.medium
def test_sources_around_and_within_work_and_shards_keep_the_files(photos):
    _write([f"a b/{n}.png" for n in range(4)])
    inner = subset.Subset(source=csv.Csv(files={"train": "rows.csv"}), share=1.0)
    within = image_files.ImageFiles(source=inner, fields=["photo"], folder="photos")
    around = subset.Subset(source=_feed().source, share=1.0)
    for source in (within, around):
        data = pipeline.Pipeline(source=source, spec=SPEC)
        assert _read(data).tolist() == ENCODED
    for name in ("first.csv", "second.csv"):
        os.link("rows.csv", name)
    two = csv.Csv(files={"train": ["first.csv", "second.csv"]})
    source = image_files.ImageFiles(source=two, fields=["photo"], folder="photos")
    part = source.shard("train", 2, 1)
    assert part.fields == ["photo"] and part.source.files == {"train": ["second.csv"]}
    assert source.shard("train", 3, 1) is None


@pytest.mark.medium
def test_a_pass_over_labels_or_keys_reads_no_image(photos):
    _write([f"a b/{n}.png" for n in range(4)])
    other_first = spec.Spec(features={"x": "float32", "photo": "string"}, labels={"y": "int64"})
    light = _feed(spec=other_first).keep_labels()
    assert list(light.spec.features) == ["x"]
    ((_, labels),) = light.in_large_batches("train").one_pass("train")
    assert labels["y"].numpy().tolist() == [0, 1, 0, 1]
    cut = field_splits.ByKey(source=_feed().source, field="y", held_out={"test": 0.5})
    rows = [[*cut.scan(split, SPEC)] for split in ("train", "test")]
    assert sorted(len(part) for part in rows) in ([0, 4], [2, 2])
    assert all(values["photo"] in ENCODED for part in rows for _, values in part)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: _feed(fields=["phot"]), "Did you mean 'photo'?"),
        (lambda: _feed(fields=["x"]), "ImageFiles.fields must name features of type 'string'"),
        (lambda: _feed("photo"), "ImageFiles.folder must be a folder that exists, got 'photo'."),
        (lambda: _feed(fields="photo"), "ImageFiles.fields must be a list of texts"),
        (lambda: _feed(fields=[]), "ImageFiles.fields must name a field"),
        (
            lambda: image_files.ImageFiles(source=csv.Csv, fields=["photo"]),
            "ImageFiles.source must be a source",
        ),
    ],
)
def test_settings_that_are_wrong_are_refused(photos, make, message):
    _write(["a b/0.png"])
    with pytest.raises(checks.UserError) as error:
        make().dataset("train", training=False, seed=0)
    assert message in str(error.value)


# Rows to score.


def _score(path, keep=()):
    reader = readers.Reader(spec=SPEC, settings=_feed().source, keep=keep)
    (chunk,) = reader.chunks(reader.find([path]))
    parsed = reader.parse(chunk)
    return reader, chunk, parsed


def _photos(examples):
    found = [tf.train.Example.FromString(bytes(example)) for example in examples]
    return [example.features.feature["photo"].bytes_list.value[0] for example in found]


@pytest.mark.medium
def test_rows_to_score_name_files_as_those_of_training_do(photos):
    _write([f"a b/{n}.png" for n in range(4)])
    _, _, parsed = _score("rows.csv", keep=["photo"])
    assert _photos(parsed.examples) == ENCODED
    assert list(parsed.kept["photo"]) == [f"a b/{n}.png".encode() for n in range(4)]
    with open("rows.jsonl", "w") as file:
        file.writelines(f'{{"photo": "a b/{n}.png", "x": 1}}\n' for n in range(4))
    _, _, parsed = _score("rows.jsonl", keep=["photo"])
    assert _photos(parsed.examples) == ENCODED
    assert parsed.kept["photo"] == [f"a b/{n}.png" for n in range(4)]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_row_to_score_that_names_no_image_is_told(photos, name):
    (photos / "photos" / "bad.png").write_bytes(b"hello")
    for path, reason in (("none.png", "There is no such file."), ("bad.png", "Unknown image")):
        _write(["a b/0.png", path])
        with open("rows.jsonl", "w") as file:
            file.writelines(f'{{"photo": "{path}", "x": 1}}\n' for path in ("a b/0.png", path))
        line = 3 if name == "rows.csv" else 2
        if path == "none.png":
            with pytest.raises(checks.UserError) as error:
                _score(name)
            told = str(error.value)
        else:
            reader, chunk, _ = _score(name)
            told = reader.explain(chunk, batches.RefusedError("x"))
        assert told.startswith(f"{name} line {line}: {RULE}, got {path!r} in 'photos'. {reason}")


def test_tfrecords_to_score_hold_paths_where_those_of_training_do(photos):
    def write(path):
        feature = {"photo": tf.train.Feature(bytes_list={"value": [path.encode()]})}
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        with tf.io.TFRecordWriter("rows.tfrecord") as writer:
            writer.write(example.SerializeToString())

    inner = tfrecord.TfRecord(files={"train": "rows.tfrecord"})
    source = image_files.ImageFiles(source=inner, fields=["photo"], folder="photos")
    for settings, expected in ((source, ENCODED[1]), (_feed().source, b"a b/1.png")):
        write("a b/1.png")
        reader = readers.Reader(spec=SPEC, settings=settings)
        (chunk,) = reader.chunks(["rows.tfrecord"])
        assert _photos(reader.parse(chunk).examples) == [expected]
    write("none.png")
    reader = readers.Reader(spec=SPEC, settings=source)
    (chunk,) = reader.chunks(["rows.tfrecord"])
    with pytest.raises(checks.UserError, match="rows.tfrecord record 0: .*no such file"):
        reader.parse(chunk)
