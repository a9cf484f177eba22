"""Exports as ONNX, run by onnxruntime; skipped, saying so, without the extra `onnx`."""

import importlib
import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, networks, serving, spec
from mtl.serving import graphs, rows
from mtl.tools.runtimes import onnx, spelled_out
from tests.serving import exports

tf1 = tf.compat.v1


def untrained(directory):
    random = np.random.default_rng(0)
    return exports.Untrained(
        directory=str(directory),
        columns=[
            features.Numeric(names=["x", "age"], normalization="none"),
            features.Image(names=["pixels"]),
        ],
        network=networks.SharedBottom(
            trunk=networks.Convnet(filters=[3], size=3, layers=[6]),
            tower=networks.MLP(layers=[5], batch_norm=True),
        ),
        heads=[
            heads.Binary(name="rich", knots=4, calibration_slices={"age": [(None, 2.5)]}),
            heads.MultiClass(name="kind", classes=3, calibration_slices={"age": [(None, 2.5)]}),
            heads.Regression(name="price"),
        ],
        spec=spec.Spec(
            features={"x": ("float32", (3,)), "pixels": ("uint8", (8, 8, 1)), "age": "float32"},
            labels={},
            defaults={"age": 2.0},
        ),
        values={
            "x": random.normal(size=(20, 3)).astype(np.float32),
            "pixels": random.integers(0, 256, (20, 8, 8, 1)).astype(np.uint8),
            "age": random.normal(size=20).astype(np.float32),
        },
        settings=serving.Serving(
            outputs=["rich/probability", "kind/probabilities", "kind/class_id", "price/value"]
        ),
    )


def test_onnxruntime_predicts_what_the_estimator_does(tmp_path):
    pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX exports are not tried")
    runtime = pytest.importorskip("onnxruntime")
    made = untrained(tmp_path / "run")
    path = tmp_path / "model.onnx"
    assert onnx.write_onnx(made.export(tmp_path / "export"), str(path)) <= 1e-5
    session = runtime.InferenceSession(str(path))
    assert {given.name for given in session.get_inputs()} == {"x", "pixels", "age"}
    names = [output.name for output in session.get_outputs()]
    held_out = rows.read_rows(made.dataset, made.spec, 20)
    found = dict(zip(names, session.run(names, held_out.raw()), strict=True))
    predicted = made.predictions()
    assert set(found) == set(made.settings.outputs)
    for name, value in found.items():
        np.testing.assert_allclose(value, predicted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def bucketized(directory, field="age", boundaries=(-1.0, 0.25, 0.5)):
    """A model of numbers that lie on boundaries, between them and beyond, or that are missing."""
    random = np.random.default_rng(0)
    age = random.choice([-np.inf, -2.0, -1.0, 0.25, 0.3, 0.5, 7.0, np.inf, np.nan], (40, 3))
    columns = [features.Bucketized(names=[field], boundaries=list(boundaries))]
    if field == "crossed":
        columns = [features.Crossed(crosses=[["age", "other"]], num_buckets=9)]
    return exports.Untrained(
        directory=str(directory),
        columns=columns,
        network=networks.SharedBottom(trunk=networks.MLP(layers=[5])),
        heads=[heads.Binary(name="rich"), heads.Ordinal(name="stars", classes=3)],
        spec=spec.Spec(
            features={"age": "float32", "ages": ("float32", (3,)), "count": "int64"}, labels={}
        )
        if field != "crossed"
        else spec.Spec(features={"age": "int64", "other": "int64"}, labels={}),
        values={
            "age": age[:, 0].astype("f"),
            "ages": age.astype("f"),
            "count": random.choice([-(2**60), -2, -1, 0, 1, 2**53, 2**53 + 1, 2**60], 40),
        }
        if field != "crossed"
        else {"age": np.arange(40) % 5, "other": np.arange(40) % 3},
    )


@pytest.mark.parametrize(
    "field, boundaries",
    [
        ("age", [-1.0, 0.25, 0.5]),
        ("ages", [-1.0, 0.25, 0.5]),
        ("count", [-1, 0.5, 2**53 + 1]),
    ],
)
def test_buckets_are_those_of_tensorflow(field, boundaries, tmp_path):
    pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX exports are not tried")
    pytest.importorskip("onnxruntime")
    export = bucketized(tmp_path / "run", field, boundaries).export(tmp_path / "export")
    assert onnx.write_onnx(export, str(tmp_path / "model.onnx")) <= 1e-5


def test_an_operation_that_onnx_lacks_is_named(tmp_path):
    pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX exports are not tried")
    pytest.importorskip("onnxruntime")
    export = bucketized(tmp_path / "run", "crossed").export(tmp_path / "export")
    with pytest.raises(
        checks.UserError,
        match=r"no operation RaggedCross \(column 'crossed_age_x_other' of 'age', 'other'\)",
    ):
        onnx.write_onnx(export, str(tmp_path / "model.onnx"))
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    "dtype, boundaries", [(np.float32, [-1.0, 0.5, 2.0]), (np.int64, [-1, 0.5, 2**53 + 1])]
)
def test_spelled_out_buckets_need_no_operation_that_onnx_lacks(dtype, boundaries):
    values = np.array([[-5, -1, 0], [1, 2, 9], [2**53, 2**53 + 1, 2**60]], dtype)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        given = tf1.placeholder(dtype, [None, 3], name="given")
        column = features.Bucketized(names=["x"], boundaries=boundaries, dimension=None)
        encoded = column({"x": given}, features.Statistics(directory="", entries={}))
        tf.identity(encoded["bucketized_x"], name="found")
        wanted = session.run("found:0", {"given:0": values})
    before, rewritten = graph.as_graph_def(), graphs.Graph(graph.as_graph_def())
    spelled_out.write_buckets(rewritten)
    spelled_out.write_bounds(rewritten)
    lacking = {"Bucketize", "UpperBound"}
    assert lacking & {node.op for node in before.node}
    assert not lacking & {node.op for node in rewritten.nodes.values()}
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(rewritten.pruned(["found"]), name="")
        found = session.run("found:0", {"given:0": values})
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted, axis=0)) > 1


class _Runtime:
    """Stands in for onnxruntime, and changes the outputs of its sessions."""

    def __init__(self, change):
        self._change = change

    def InferenceSession(self, path, providers):  # noqa: N802, as onnxruntime's
        real = importlib.import_module("onnxruntime").InferenceSession(path, providers=providers)

        def run(keys, given):
            found = real.run(keys, given)
            return [self._change(key, value) for key, value in zip(keys, found, strict=True)]

        return types.SimpleNamespace(run=run, get_outputs=real.get_outputs)


def _fail(key, value):
    raise LookupError("no kernel\nand a second line")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, v: v * np.nan if k == "price/value" else v, "'price/value' .* is off by inf"),
        (lambda k, v: 1 - v if k == "rich/probability" else v, "'rich/probability' .* is off by"),
        (lambda k, v: (v + 1) % 3 if k == "kind/class_id" else v, "'kind/class_id' .* off by 1 "),
        (_fail, "^onnxruntime cannot run this model: no kernel$"),
    ],
)
def test_a_file_that_predicts_something_else_is_refused(tmp_path, monkeypatch, change, message):
    converter = pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX is not tried")
    pytest.importorskip("onnxruntime")
    export = untrained(tmp_path / "run").export(tmp_path / "export")
    monkeypatch.setattr(onnx, "require", lambda: (converter, _Runtime(change)))
    with pytest.raises(checks.UserError, match=message) as caught:
        onnx.write_onnx(export, str(tmp_path / "model.onnx"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.medium
def test_an_export_without_ids_is_refused_by_its_operation_in_one_line(export, tmp_path, caplog):
    pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX exports are not tried")
    pytest.importorskip("onnxruntime")
    told = "^tf2onnx cannot convert this model: ONNX has no operation .*ParseExampleV2"
    with pytest.raises(checks.UserError, match=told) as caught:
        onnx.write_onnx(export, str(tmp_path / "model.onnx"))
    assert "\n" not in str(caught.value)
    assert not [record for record in caplog.records if record.name.startswith("tf2onnx")]
    assert not (tmp_path / "model.onnx").exists()


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "converted").write_text("model")
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "model.onnx")
    with pytest.raises(checks.UserError, match="^--onnx must be a file that can be written, got"):
        onnx._place(str(tmp_path / "converted"), path)


def test_what_to_install_is_said(export, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    says = r"needs tf2onnx, .* pip install 'multitask-estimator\[onnx\]'"
    with pytest.raises(checks.UserError, match=says):
        onnx.write_onnx(export, str(tmp_path / "model.onnx"))
