"""Exports for other runtimes: plain inputs, ids from the encoders, and conversions of them."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, histories, networks, serving, spec
from mtl.serving import loaded, rows
from mtl.tf_internals import saved_model
from mtl.tools.runtimes import onnx, portable, tflite
from mtl.tools.runtimes.encoders import encoder
from tests.serving import exports

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "id": "int64",
        "x": "float32",
        "word": "string",
        "flag": "bool",
        "tags": ("string", (None,)),
        "ids": ("int64", (None,)),
    },
    labels={},
    defaults={"word": "none", "flag": True, "x": "nan"},
)
COUNT = 24
LONG = "a long text, which no vocabulary holds: more than sixty-four bytes are hashed in blocks"
WORDS = ["red", "green", "été", "?", "", LONG]
LIMITS = [2**63 - 1, -(2**63), 0, -1, 5]


def _lists(random, choices):
    found = [list(random.choice(choices, random.integers(0, 4))) for _ in range(COUNT)]
    return [[], *found[1:]]


def untrained(directory, columns, settings=None, values=None):
    """A model of these columns, for rows with odd values."""
    random = np.random.default_rng(0)
    drawn = {
        "id": np.array([*LIMITS, *random.integers(-3, 9, COUNT - len(LIMITS))]),
        "x": np.where(random.random(COUNT) < 0.3, np.nan, random.normal(size=COUNT)).astype("f"),
        "word": np.array([word.encode() for word in random.choice(WORDS, COUNT)], object),
        "flag": random.random(COUNT) < 0.5,
        "tags": _lists(random, [word.encode() for word in WORDS if word]),
        "ids": _lists(random, np.array([*LIMITS, 3])),
    }
    drawn |= values or {}
    read = {field for column in columns for own in column.columns.values() for field in own}
    chosen = {name: kind for name, kind in SPEC.features.items() if name in read}
    return exports.Untrained(
        directory=str(directory),
        columns=columns,
        network=networks.SharedBottom(trunk=networks.MLP(layers=[5])),
        heads=[
            heads.Binary(name="rich", positive=["yes"], negative=["no"]),
            heads.MultiClass(name="kind", classes=["cat", "dog", "bird"]),
            heads.Regression(name="price"),
        ],
        spec=spec.Spec(
            features=chosen,
            labels={},
            defaults={name: own for name, own in SPEC.defaults.items() if name in chosen},
        ),
        values={name: drawn[name] for name in chosen},
        settings=settings or serving.Serving(portable=True),
    )


def list_columns():
    """Columns of all kinds of ids."""
    return [
        features.Numeric(names=["x"], normalization="none", missing_flags=True),
        features.Bucketized(names=["id"], boundaries=[-1, 0.5, 2**53 + 1]),
        features.Categorical(names=["word", "tags"], vocabulary=["red", "été"], dimension=3),
        features.Categorical(names=["id"], vocabulary=[5, 7, -1], num_unknown=4, dimension=None),
        features.Hashed(names=["word", "tags", "ids"], num_buckets=50, pooling="sqrtn"),
        features.Hashed(names=["flag"], num_buckets=5),
        features.Identity(names=["ids", "id"], size=6),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of all kinds of ids, and the folder of its export."""
    folder = tmp_path_factory.mktemp("portable")
    model = untrained(folder / "run", list_columns())
    return model, pathlib.Path(model.export(folder / "export"))


def _held_out(model):
    return rows.read_rows(model.dataset, model.spec, COUNT)


def _ops(folder):
    return {node.op for node in saved_model.read(str(folder)).graph_def.node}


def test_raw_features_are_plain_placeholders_of_one_signature(made):
    model, export = made
    graph = saved_model.read(str(export / "portable/raw"))
    assert [name for name in graph.signature_def if not name.startswith("__")] == [
        "serving_default"
    ]
    inputs = graph.signature_def["serving_default"].inputs
    assert set(inputs) == {*model.spec.features, "tags/length", "ids/length"}
    nodes = {node.name: node.op for node in graph.graph_def.node}
    assert {nodes[info.name.partition(":")[0]] for info in inputs.values()} == {"Placeholder"}
    assert not [op for op in nodes.values() if op.startswith(("Parse", "PlaceholderWith", "Var"))]


def test_both_give_what_the_estimator_predicts_and_drop_empty_texts(made):
    model, export = made
    held_out, predicted = _held_out(model), model.predictions()
    lists = [[b"", *own, b""] for own in held_out.values["tags"]]
    some = rows.Rows(spec=held_out.spec, values={**held_out.values, "tags": lists})
    encode = encoder.Encoder(str(export / "portable/ids"))
    for name, given in {"raw": some.raw(), "ids": encode(some.values)}.items():
        with loaded.load_export(str(export / "portable" / name)) as own:
            found = own(["serving_default"], given)
        assert {key for _, key in found} == set(predicted)
        for (_, key), value in found.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, predicted[key], rtol=1e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(value, predicted[key])


def test_ids_need_no_texts_and_no_tables(made):
    _, export = made
    ops = _ops(export / "portable/ids")
    assert not [op for op in ops if op.startswith(("Lookup", "HashTable", "String", "AsString"))]
    inputs = saved_model.read(str(export / "portable/ids")).signature_def["serving_default"].inputs
    assert not [name for name, info in inputs.items() if info.dtype == tf.string]
    assert set(encoder.Encoder(str(export / "portable/ids")).inputs) == set(inputs)
    assert "id/categorical_id" in inputs and "tags/hashed_tags" in inputs


def test_the_files_are_checked_before_publication_and_by_their_checksums(made, tmp_path):
    _, export = made
    facts = json.loads((export / "assets.extra/model.json").read_text())
    assert facts["portable_difference"] <= 1e-5
    assert "portable/ids/vocabulary_0.txt" in facts["files"]
    copied = pathlib.Path(shutil.copytree(export, tmp_path / "export"))
    (copied / "portable/ids/vocabulary_0.txt").write_text("red\ngreen\n")
    told = "vocabulary_0.txt is damaged: its checksum differs"
    with pytest.raises(checks.UserError, match=told):
        tflite.write_tflite(str(copied), str(tmp_path / "model.tflite"))


def test_servers_see_one_version(made):
    _, export = made
    assert [path.name for path in export.parent.iterdir() if path.name.isdigit()] == [export.name]
    assert not [path for path in export.rglob("*") if path.is_dir() and path.name.isdigit()]


def test_an_encoder_that_differs_is_refused(made, tmp_path):
    model, export = made
    copied = pathlib.Path(shutil.copytree(export, tmp_path / "export"))
    vocabulary = copied / "portable/ids/vocabulary_0.txt"
    vocabulary.write_text("".join(reversed(vocabulary.read_text().splitlines(keepends=True))))
    with pytest.raises(serving.verification.RefusedError, match="of portable/ids is off by"):
        portable.verify_portable(str(copied), _held_out(model), model.predictions())


def test_nothing_is_added_unless_asked(tmp_path):
    model = untrained(
        tmp_path / "run", [features.Identity(names=["id"], size=6)], serving.Serving()
    )
    assert not (pathlib.Path(model.export(tmp_path / "export")) / "portable").exists()


@pytest.mark.parametrize(
    "column",
    [
        features.Crossed(crosses=[["word", "id"]], num_buckets=9),
        features.Growing(names=["word"], capacity=16),
        features.Unified(names=["word"], num_buckets=50),
    ],
)
def test_a_column_that_needs_texts_keeps_them_and_no_other(column, tmp_path):
    columns = [column, features.Categorical(names=["tags"], vocabulary=["red"])]
    model = untrained(tmp_path / "run", columns)
    export = pathlib.Path(model.export(tmp_path / "export"))
    found = encoder.Encoder(str(export / "portable/ids")).inputs
    read = {field for fields in column.columns.values() for field in fields}
    assert set(found) == {*read, "tags/length", "tags/categorical_tags"}
    name = next(iter(column.columns)) if column.prefix != "unified" else "unified"
    told = rf"cannot hold this model: it has no operation .*\(column '{name}' of .*'word'\)"
    with pytest.raises(checks.UserError, match=told) as error:
        tflite.write_tflite(str(export), str(tmp_path / "model.tflite"))
    assert "\n" not in str(error.value)


def _write(kind, export, path, held_out=None):
    if kind == "onnx":
        pytest.importorskip("tf2onnx", reason="no tf2onnx, so ONNX exports are not tried")
        pytest.importorskip("onnxruntime")
        return onnx.write_onnx(str(export), str(path), held_out)
    return tflite.write_tflite(str(export), str(path), held_out=held_out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_conversions_take_ids_and_equal_the_checkpoint_row_by_row(made, tmp_path, kind):
    model, export = made
    predicted, held_out = model.predictions(), _held_out(model)
    path = tmp_path / f"model.{kind}"
    assert _write(kind, export, path, rows.HeldOut(held_out, predicted)) <= 1e-5
    assert path.stat().st_size
    wrong = {**predicted, "price/value": predicted["price/value"] + np.eye(COUNT)[7]}
    told = "'price/value' of the .* is off by .* in held-out row 7 .* the checkpoint predicts"
    with pytest.raises(checks.UserError, match=told):
        _write(kind, export, tmp_path / f"wrong.{kind}", rows.HeldOut(held_out, wrong))
    assert not (tmp_path / f"wrong.{kind}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_lists_that_are_all_empty_and_missing_numbers_convert(tmp_path, kind):
    columns = [
        features.Numeric(names=["x"], normalization="none", log=True, missing_flags=True),
        features.Categorical(names=["tags"], vocabulary=["red"]),
        features.History(
            name="clicks",
            events=[features.Hashed(names=["ids"], num_buckets=10)],
            encoder=histories.Pooling(),
            last=2,
        ),
    ]
    empty = [[] for _ in range(COUNT)]
    model = untrained(tmp_path / "run", columns, serving.Serving(), {"tags": empty, "ids": empty})
    held_out = rows.HeldOut(_held_out(model), model.predictions())
    export = model.export(tmp_path / "export", is_converted=True)
    assert _write(kind, export, tmp_path / f"model.{kind}", held_out) <= 1e-5


def test_a_model_of_plain_numbers_needs_no_ids_for_its_conversion(tmp_path):
    model = untrained(
        tmp_path / "run", [features.Identity(names=["id"], size=6)], serving.Serving()
    )
    export = pathlib.Path(model.export(tmp_path / "export", is_converted=True))
    assert not (export / "portable").exists()
    assert _write("tflite", export, tmp_path / "model.tflite") <= 1e-5


def test_a_conversion_without_rows_to_check_it_is_refused(tmp_path):
    columns = [features.Categorical(names=["word"], vocabulary=["red"])]
    model = untrained(tmp_path / "run", columns, serving.Serving(portable=True, check_rows=0))
    export = model.export(tmp_path / "export")
    with pytest.raises(checks.UserError, match="^Serving.check_rows must be above 0"):
        tflite.write_tflite(export, str(tmp_path / "model.tflite"))
