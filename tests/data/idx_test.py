import gzip
import struct

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import idx, pipeline

SPEC = spec.Spec(features={"image": ("uint8", (3, 2, 1))}, labels={"digit": "int64"})
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def write(path, array, rows=None):
    """An IDX file of `array`; its header tells of `rows`."""
    shape = [len(array) if rows is None else rows, *array.shape[1:]]
    header = struct.pack(f">HBB{len(shape)}i", 0, CODES[array.dtype.str[1:]], len(shape), *shape)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wb") as file:
        file.write(header + array.astype(array.dtype.newbyteorder(">")).tobytes())


def images(num=5):
    return np.arange(num * 6, dtype=np.uint8).reshape(num, 3, 2)


def source(tmp_path, image=None, digit=None, end=""):
    write(tmp_path / f"images{end}", images() if image is None else image)
    write(tmp_path / f"labels{end}", np.arange(5, dtype="u1") if digit is None else digit)
    paths = {"image": f"images{end}", "digit": f"labels{end}"}
    return idx.Idx(files={"train": paths}, data_dir=str(tmp_path))


def read(source, fields=SPEC):
    dataset = pipeline.Pipeline(source=source, spec=fields, batch_size=2).dataset(
        "train", training=False, seed=0
    )
    batches = list(dataset.as_numpy_iterator())
    return [np.concatenate([b[i][n] for b in batches]) for i, n in ((0, "image"), (1, "digit"))]


@pytest.mark.parametrize("end", ["", ".gz"])
def test_rows_are_the_arrays(tmp_path, end):
    image, digit = read(source(tmp_path, end=end))
    np.testing.assert_array_equal(image, images()[..., np.newaxis])
    assert digit.tolist() == [0, 1, 2, 3, 4] and digit.dtype == np.int64


def test_the_size_of_a_training_batch_is_static(tmp_path):
    made = pipeline.Pipeline(source=source(tmp_path), spec=SPEC, batch_size=2)
    features, labels = made.dataset("train", training=True, seed=0).element_spec
    assert features["image"].shape == (2, 3, 2, 1) and labels["digit"].shape == (2,)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "f4", "f8"])
def test_every_type_is_big_endian(tmp_path, dtype):
    values = np.array([1, -2, 100, 0, 7], dtype)
    fields = spec.Spec(features={"image": ("uint8", (3, 2))}, labels={"digit": "float32"})
    assert read(source(tmp_path, digit=values), fields)[1].tolist() == values.tolist()


def test_scan_reads_what_decode_reads(tmp_path):
    made = source(tmp_path, end=".gz")
    rows = list(made.scan("train", SPEC))
    assert rows[3] == (
        "Idx.files['train'] row 3",
        {"image": list(range(18, 24)), "digit": 3},
    )
    assert len(rows) == 5


def test_a_value_that_does_not_fit_is_named(tmp_path):
    fields = spec.Spec(features={"image": ("uint8", (3, 2))}, labels={"digit": "int64"})
    bad = source(tmp_path, image=np.where(images() == 20, np.int32(300), images()))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(bad, fields)
    data = pipeline.Pipeline(source=bad, spec=fields)
    expected = "Idx.files['train'] row 3: field 'image' must be uint8, got 300."
    assert data.diagnose(caught.value, "train") == expected


def _cut(tmp_path, end):
    path = tmp_path / f"images{end}"
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("end", "damage", "message"),
    [
        ("", _cut, "images must hold 46 bytes, because its header says 5 rows, got 41"),
        (".gz", _cut, "images.gz must be a whole gzip file"),
        (
            ".gz",
            lambda path, end: write(path / "images.gz", images(), rows=9),
            "images.gz must hold 70 bytes, because its header says 9 rows, got 46",
        ),
        (
            "",
            lambda path, end: write(path / "images", images(4)),
            r"Idx.files\['train'\] must hold files with the same number of rows, got .*4.*5",
        ),
        (
            "",
            lambda path, end: (path / "labels").write_text("0,1,2"),
            "labels must be an IDX file, got b'0,1,'",
        ),
        (
            "",
            lambda path, end: (path / "labels").write_bytes(b"\0\0\x08\x01\0"),
            "labels must be a whole IDX file",
        ),
        (
            "",
            lambda path, end: (path / "labels").write_bytes(b"\0\0\x08\x01" + b"\xff" * 4),
            r"labels must have sizes above 0, got \(-1,\)",
        ),
        ("", lambda path, end: (path / "labels").unlink(), "must name existing files"),
    ],
)
def test_damaged_files_are_named(tmp_path, end, damage, message):
    made = source(tmp_path, end=end)
    damage(tmp_path, end)
    with pytest.raises(checks.UserError, match=message):
        read(made)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"image": ("uint8", (2, 2))}, r"Idx field 'image' must have shape \(2, 2\), got \(3, 2\)"),
        ({"image": "string"}, "Idx field 'image' must hold string, got 'uint8'"),
        ({"imagf": "uint8"}, "Idx field 'imagf' must be one of .*Did you mean 'image'"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(tmp_path, features, message):
    fields = spec.Spec(features=features, labels={"digit": "int64"})
    with pytest.raises(checks.UserError, match=message):
        read(source(tmp_path), fields)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("train", "Idx.files must map splits"),
        ({"train": "images"}, r"Idx.files\['train'\] must be a map from texts"),
        ({"train": {}}, r"Idx.files\['train'\] must name a file for each field"),
    ],
)
def test_settings_are_checked(files, message):
    with pytest.raises(checks.UserError, match=message):
        idx.Idx(files=files)


@pytest.mark.medium
def test_mnist(real_data):
    paths = {"image": "t10k-images-idx3-ubyte.gz", "digit": "t10k-labels-idx1-ubyte.gz"}
    made = idx.Idx(files={"train": paths}, data_dir=str(real_data / "mnist"))
    fields = spec.Spec(features={"image": ("uint8", (28, 28, 1))}, labels={"digit": "int64"})
    image, digit = read(made, fields)
    assert np.bincount(digit).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert image.shape == (10_000, 28, 28, 1) and digit[:4].tolist() == [7, 2, 1, 0]


def test_a_glob_of_several_files_is_refused(tmp_path):
    one = source(tmp_path)
    write(tmp_path / "images-2", images())
    several = idx.Idx(
        files={"train": {"image": "images*", "digit": "labels"}}, data_dir=str(tmp_path)
    )
    with pytest.raises(checks.UserError, match=r"Idx.files\['train'\] must name one file for each"):
        read(several)
    single = idx.Idx(files={"train": {"image": "images", "digit": "lab*"}}, data_dir=str(tmp_path))
    np.testing.assert_array_equal(read(single)[0], read(one)[0])
