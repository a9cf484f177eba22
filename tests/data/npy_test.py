"""Folders of NumPy's files, in the layout of LibMTL."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import npy, pipeline

SPEC = spec.Spec(
    features={"image": ("float32", (2, 3, 3))},
    labels={"kind": ("int64", (2, 3)), "depth": ("float32", (2, 3))},
)
ROWS = 11


def write(folder, name, array):
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", array)


@pytest.fixture
def rows(tmp_path):
    """NYUv2 as LibMTL has it, {field: [N, ...]}; labels come from files of Matlab."""
    random = np.random.default_rng(0)
    values = {
        "image": random.random((ROWS, 2, 3, 3)).astype("f"),
        "label": random.integers(-1, 13, (ROWS, 3, 2)).astype("d").transpose(0, 2, 1),
        "depth": random.random((ROWS, 2, 3, 1)).astype("f"),
    }
    for field, arrays in values.items():
        for row, array in enumerate(arrays):
            write(tmp_path / "val" / field, row, array)
    return values


def source(tmp_path, **settings):
    return npy.Npy(
        **{
            "folders": {"test": "val"},
            "data_dir": str(tmp_path),
            "rename": {"kind": "label"},
            **settings,
        }
    )


def read(made, fields=SPEC):
    data = pipeline.Pipeline(source=made, spec=fields, batch_size=4)
    batches = list(data.dataset("test", training=False, seed=0).as_numpy_iterator())
    joined = [{**features, **labels} for features, labels in batches]
    return {name: np.concatenate([batch[name] for batch in joined]) for name in joined[0]}


@pytest.mark.medium
def test_rows_come_by_their_numbers_and_scan_reads_the_same(rows, tmp_path):
    found = read(source(tmp_path))
    np.testing.assert_array_equal(found["image"], rows["image"])
    np.testing.assert_array_equal(found["depth"], rows["depth"][..., 0])
    np.testing.assert_array_equal(found["kind"], rows["label"].astype(int))
    assert found["kind"].dtype == np.int64
    scanned = list(source(tmp_path).scan("test", SPEC))
    assert [location for location, _ in scanned] == [
        f"Npy.folders['test'] row {row}" for row in range(ROWS)
    ]
    for name, values in found.items():
        own = [np.reshape(row[name], values.shape[1:]) for _, row in scanned]
        np.testing.assert_array_equal(own, values)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "?", "u1", "u2", "i1", "i2"])
def test_types_of_numpy(tmp_path, dtype):
    values = np.arange(4).astype(dtype)
    for row, value in enumerate(values):
        write(tmp_path / "val" / "x", row, value)
    fields = spec.Spec(features={"x": "float32"}, labels={})
    found = read(source(tmp_path, rename={}), fields)["x"]
    np.testing.assert_array_equal(found, values.astype("f"))


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_whole_numbers_that_float32_may_not_hold_are_refused(tmp_path, dtype):
    write(tmp_path / "val" / "x", 0, np.array(2**24 + 1, dtype))
    fields = spec.Spec(features={"x": "float32"}, labels={})
    with pytest.raises(checks.UserError, match="Npy field 'x' must hold float32, got 'int"):
        read(source(tmp_path, rename={}), fields)


def _remove(folder):
    (folder / "depth" / "7.npy").unlink()


def _cut(folder):
    path = folder / "depth" / "7.npy"
    path.write_bytes(path.read_bytes()[:-4])


def _append(folder):
    with open(folder / "depth" / "7.npy", "ab") as file:
        file.write(b"more")


DAMAGES = {
    "a missing file": (_remove, "field 'depth': {path} is not there."),
    "a cut file": (_cut, "field 'depth': {path} must hold 24 bytes of float32 of .*, got 20."),
    "a long file": (_append, "field 'depth': {path} must hold 24 bytes of .*, got 28."),
    "another size": (
        lambda folder: write(folder / "depth", 7, np.zeros([2, 4, 1], "f")),
        r"field 'depth': {path} must hold float32 of shape \(2, 3, 1\), got float32 of shape "
        r"\(2, 4, 1\).",
    ),
    "another type": (
        lambda folder: write(folder / "depth", 7, np.zeros([2, 3, 1])),
        r"field 'depth': {path} must hold float32 of shape \(2, 3, 1\), got float64 of shape "
        r"\(2, 3, 1\).",
    ),
    "another order": (
        lambda folder: write(folder / "depth", 7, np.asfortranarray(np.ones([2, 3, 2], "f"))),
        "field 'depth': {path} must hold float32 of .*, got float32 of .* in the order of Fortran.",
    ),
    "another end": (
        lambda folder: write(folder / "depth", 7, np.ones([2, 3, 1], ">f4")),
        "field 'depth': {path} must be a file of numpy.save of little-endian numbers, got >f4 of",
    ),
    "no file of NumPy": (
        lambda folder: (folder / "depth" / "7.npy").write_bytes(b"depth"),
        "field 'depth': {path} must be a file of numpy.save of .*: ",
    ),
    "half a class": (
        lambda folder: write(folder / "label", 7, np.full([3, 2], 1.5).T),
        "field 'kind' must be int64, got 1.5.",
    ),
    "infinity as a class": (
        lambda folder: write(folder / "label", 7, np.full([3, 2], -np.inf).T),
        "field 'kind' must be int64, got -inf.",
    ),
    "a class beyond int64": (
        lambda folder: write(folder / "label", 7, np.full([3, 2], 1e30).T),
        "field 'kind' must be int64, got 1e\\+30.",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_row_is_one_line(rows, tmp_path, damage, says):
    del rows
    damage(tmp_path / "val")
    data = pipeline.Pipeline(source=source(tmp_path), spec=SPEC, batch_size=4)
    with pytest.raises(tf.errors.OpError) as caught:
        read(source(tmp_path))
    says = says.format(path=f"{tmp_path}/val/depth/7.npy")
    told = data.diagnose(caught.value, "test")
    assert re.match(f"Npy.folders\\['test'\\] row 7: {says}", told)


SETTINGS = {
    "no folder": (
        {"folders": {"test": "vall"}},
        SPEC,
        r"Npy.folders\['test'\] must name a folder that exists, got '.*/vall'",
    ),
    "no split": ({"folders": {"train": "val"}}, SPEC, "Npy.folders split must be one of train"),
    "no field": (
        {"rename": {"kind": "labels"}},
        SPEC,
        "must be one of .*, got 'labels'. Did you mean 'label'",
    ),
    "a field of no name": (
        {"rename": {"kin": "label"}},
        SPEC,
        "Npy folder in .*/val must be one of .*, got 'kind'.",
    ),
    "another shape": (
        {},
        spec.Spec(features={"image": ("float32", (3, 2, 3))}, labels={}),
        r"Npy field 'image' must have shape \(3, 2, 3\), got \(2, 3, 3\). Make it",
    ),
    "another type": (
        {},
        spec.Spec(features={"image": ("uint8", (2, 3, 3))}, labels={}),
        "Npy field 'image' must hold uint8, got 'float32'. Change it in the Spec.",
    ),
}


@pytest.mark.parametrize(("more", "fields", "says"), SETTINGS.values(), ids=list(SETTINGS))
def test_a_wrong_setting_is_one_line(rows, tmp_path, more, fields, says):
    del rows
    made = source(tmp_path, **{"rename": {"kind": "label"} if fields is SPEC else {}, **more})
    with pytest.raises(checks.UserError, match=says) as caught:
        read(made, fields)
    assert "\n" not in str(caught.value)


def test_decoding_takes_no_python(rows, tmp_path):
    """So that the state of the input is saved with the model, and files may lie anywhere."""
    del rows
    data = pipeline.Pipeline(source=source(tmp_path), spec=SPEC, batch_size=4)
    with tf.Graph().as_default() as graph:
        data.dataset("test", training=True, seed=0)
        functions = graph.as_graph_def().library.function
    ops = {node.op for function in functions for node in function.node_def}
    assert "ReadFile" in ops and not {op for op in ops if "PyFunc" in op}
