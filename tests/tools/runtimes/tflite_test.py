"""Exports as TensorFlow Lite: their outputs, their size, and unsupported operations."""

import pathlib
import shutil

import numpy as np
import pytest

from mtl import checks, features, heads, networks, serving, spec
from mtl.serving import rows
from mtl.tools.runtimes import tflite
from tests.serving import exports
from tests.tools.runtimes import onnx_test

OUTPUTS = ["rich/probability", "kind/probabilities", "kind/class_id", "price/value"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of numbers and images, and the folder of its export."""
    folder = tmp_path_factory.mktemp("tflite")
    model = onnx_test.untrained(folder / "run")
    return model, model.export(folder / "export")


@pytest.mark.parametrize("weights", tflite.KINDS)
def test_predicts_what_the_estimator_does(made, tmp_path, weights):
    model, export = made
    path = tmp_path / "model.tflite"
    allowed = 0.1 if weights == "int8" else 1e-5
    assert tflite.write_tflite(export, str(path), weights) <= allowed
    run = tflite.make_runner(path.read_bytes())
    held_out, predicted = rows.read_rows(model.dataset, model.spec, 20), model.predictions()
    found = run(held_out.raw())
    assert set(found) == set(OUTPUTS)
    for name, value in found.items():
        if value.dtype.kind == "f" or weights != "int8":
            np.testing.assert_allclose(value, predicted[name], rtol=allowed, atol=allowed)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("saved_model.pb", "saved_model.pb is damaged: its checksum differs"),
        ("assets.extra/model.json", "model.json is damaged"),
        ("assets.extra/tf_serving_warmup_requests", "cannot be read: corrupted record at 0"),
        ("variables/variables.index", "cannot be read: "),
        ("variables/variables.data-00000-of-00001", "cannot be read: .*Checksum does not match"),
    ],
)
def test_a_damaged_export_is_one_line(made, tmp_path, file, told):
    export = pathlib.Path(shutil.copytree(made[1], tmp_path / "export"))
    (export / file).write_bytes(b"\0" * (export / file).stat().st_size)
    with pytest.raises(checks.UserError, match=f"{told}.*Export it again") as error:
        tflite.write_tflite(str(export), str(tmp_path / "model.tflite"))
    assert "\n" not in str(error.value) and "Graph execution" not in str(error.value)
    assert not (tmp_path / "model.tflite").exists()


def wide(directory, zeros):
    """Two dense layers of 256 units whose kernels are 0 for this share."""
    random = np.random.default_rng(0)
    made = exports.Untrained(
        directory=str(directory),
        columns=[features.Numeric(names=["x"], normalization="none")],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[256, 256])),
        heads=[heads.Regression(name="price")],
        spec=spec.Spec(features={"x": ("float32", (64,))}, labels={}),
        values={"x": random.normal(size=(20, 64)).astype(np.float32)},
        settings=serving.Serving(optimized=serving.Optimized()),
        zeros=zeros,
    )
    return made.export(directory / "export")


def test_sparse_weights_are_smaller_without_packing(tmp_path):
    export = wide(tmp_path, zeros=0.9)
    sizes = {}
    for weights in tflite.KINDS:
        path = tmp_path / f"{weights}.tflite"
        tflite.write_tflite(export, str(path), weights)
        sizes[weights] = path.stat().st_size
    assert sizes["sparse"] < sizes["float32"] / 4 and sizes["int8"] < sizes["float32"] / 3


def test_an_operation_that_it_lacks_is_named_and_nothing_is_written(tmp_path, capfd):
    export = onnx_test.bucketized(tmp_path / "run", "crossed").export(tmp_path / "export")
    capfd.readouterr()
    path = tmp_path / "model.tflite"
    with pytest.raises(
        checks.UserError, match=r"cannot hold this model: it has no operation .*\.$"
    ):
        tflite.write_tflite(export, str(path))
    assert not path.exists()
    assert "error" not in capfd.readouterr().err


def test_an_export_that_gives_something_else_is_refused(made, tmp_path, monkeypatch):
    _, export = made
    plain = tflite.make_runner

    def wrong(model):
        run = plain(model)
        return lambda given: {**run(given), "price/value": run(given)["price/value"] + 1}

    monkeypatch.setattr(tflite, "make_runner", wrong)
    with pytest.raises(checks.UserError, match="'price/value' of the TensorFlow Lite export is"):
        tflite.write_tflite(export, str(tmp_path / "model.tflite"))
    assert not (tmp_path / "model.tflite").exists()


def test_maps_can_be_held(tmp_path):
    made = exports.Untrained(
        directory=str(tmp_path),
        columns=[features.Image(names=["image"], greatest=1.0)],
        network=networks.SharedBottom(trunk=networks.UNet(filters=[2], batch_norm=False)),
        heads=[heads.Depth(name="depth"), heads.Segmentation(name="kind", classes=2)],
        spec=spec.Spec(features={"image": ("float32", (4, 6, 1))}, labels={}),
        values={"image": np.random.default_rng(0).random((20, 4, 6, 1)).astype(np.float32)},
    )
    path = tmp_path / "model.tflite"
    assert tflite.write_tflite(made.export(tmp_path / "export"), str(path)) < 1e-5
