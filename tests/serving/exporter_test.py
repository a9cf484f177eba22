"""The content of an export, which is published only if it predicts as the Estimator."""

import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, experiment, heads, networks, serving, verbs
from mtl.heads import together
from mtl.optimization import optimizers, update
from mtl.serving import (
    dead_units,
    loaded,
    metadata,
    reference,
    rows,
    signatures,
    verification,
    versions,
)
from mtl.tf_internals import saved_model
from mtl.variables import averaging, stacks
from tests import tiny
from tests.serving import conftest

TASKS = {"rich": {"classify", "regress"}, "kind": {"classify"}, "price": {"regress"}}
JOINT = {
    *("rich/probability", "rich/class_id", "rich/class"),
    *("kind/probabilities", "kind/class_id", "kind/class", "price/value", "id"),
}


@pytest.fixture(scope="module")
def held_out(made):
    return rows.read_rows(made.dataset, made.spec, 100)


@pytest.fixture(scope="module")
def predicted(made, held_out):
    return {**made.predictions(), "id": held_out.dense("id")}


def test_rows_are_read_as_they_are(made, held_out):
    assert len(held_out) == 40
    for name, wanted in made.values.items():
        if name == "tags":
            assert [list(row) for row in held_out.values[name]] == wanted
        else:
            np.testing.assert_array_equal(held_out.dense(name), wanted)


@pytest.mark.medium
def test_the_signatures(export):
    found = saved_model.read(export).signature_def
    per_task = {f"{task}/{kind}" for task, kinds in TASKS.items() for kind in kinds}
    raw = {f"raw/{name}" for name in (*TASKS, "lean")} | {"raw"}
    assert set(found) == {"serving_default", "lean", *TASKS, *per_task, *raw}
    assert set(found["serving_default"].outputs) == JOINT
    assert set(found["lean"].outputs) == {"rich/probability", "price/value", "id"}
    assert set(found["kind"].outputs) == {"probabilities", "class_id", "class", "id"}
    assert {found[name].method_name.rpartition("/")[2] for name in per_task} == {
        "classify",
        "regress",
    }
    given = {
        name: (info.dtype, [dim.size for dim in info.tensor_shape.dim])
        for name, info in found["raw"].inputs.items()
    }
    assert given == {
        "id": (tf.int64, [-1]),
        "x": (tf.float32, [-1, 3]),
        "word": (tf.string, [-1]),
        "flag": (tf.bool, [-1]),
        "pixels": (tf.uint8, [-1, 4, 4, 1]),
        "tags": (tf.string, [-1, -1]),
        "tags/length": (tf.int64, [-1]),
    }
    assert set(found["raw/kind"].defaults) == {"word", "flag", "tags", "tags/length"}
    assert not found["kind"].defaults


@pytest.mark.medium
@pytest.mark.parametrize("raw", [False, True])
def test_it_serves_what_the_estimator_predicts(export, held_out, predicted, raw):
    with loaded.load_export(export) as model:
        names = [name for name in model.signatures if name.startswith("raw") == raw]
        found = model(names, held_out.raw() if raw else held_out.examples)
    assert len(found) > 15
    for (name, key), value in found.items():
        wanted = predicted.get(key, predicted.get(f"{name.removeprefix('raw/')}/{key}"))
        if wanted is None:
            assert name.rpartition("/")[2] in ("classify", "regress")
        elif wanted.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6, err_msg=key)
        else:
            np.testing.assert_array_equal(value, wanted, err_msg=key)


@pytest.mark.medium
def test_nothing_is_published_where_what_comes_before_it_fails(made, tmp_path):
    seen = []

    def refuse(written, held_out):
        seen.append(os.path.exists(os.path.join(written, "saved_model.pb")))
        raise checks.UserError("no ONNX")

    with pytest.raises(checks.UserError, match="no ONNX"):
        made.export(tmp_path / "export", refuse)
    assert seen == [True]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.medium
def test_raw_inputs_that_are_left_out_have_the_defaults_of_examples(export, held_out):
    optional = ("word", "flag", "tags", "tags/length")
    raw = {name: value for name, value in held_out.raw().items() if name not in optional}
    values = {name: value for name, value in held_out.values.items() if name not in optional}
    with loaded.load_export(export) as model:
        found = model(["raw/price"], raw)["raw/price", "value"]
        wanted = model(["price"], rows.Rows(spec=held_out.spec, values=values).examples)
        given = model(["price"], held_out.examples)["price", "value"]
    np.testing.assert_allclose(found, wanted["price", "value"], rtol=1e-6)
    assert np.abs(found - given).max() > 1e-3


def test_the_metadata(export):
    with open(os.path.join(export, "assets.extra", "model.json")) as file:
        found = json.load(file)
    assert found["model"] == "shop"
    assert found["version"] == int(os.path.basename(export))
    assert (found["step"], found["checked_rows"]) == (0, 40)
    assert 0 <= found["difference"] <= 1e-5
    assert found["inputs"]["pixels"] == {"dtype": "uint8", "shape": [4, 4, 1], "required": True}
    assert found["inputs"]["word"]["default"] == "none"
    assert set(found["files"]) == {"saved_model.pb", "assets/words.txt"}
    metadata.require_intact(export)
    assert serving.spec_of(export).fields == conftest.SPEC.fields
    assert found["tasks"] == {
        "rich": {"head": "Binary", "classes": ["no", "yes"]},
        "kind": {"head": "MultiClass", "classes": ["cat", "dog", "bird"]},
        "price": {"head": "Regression", "unit": "EUR"},
    }


@pytest.mark.medium
def test_no_path_of_this_machine_is_left_and_the_export_can_move(
    export, vocabulary, made, held_out, predicted, tmp_path
):
    moved = shutil.copytree(export, tmp_path / "moved")
    graph = (moved / "saved_model.pb").read_bytes()
    for path in (os.path.dirname(vocabulary), made.directory, os.path.dirname(export), os.getcwd()):
        assert path.encode() not in graph
    assert not re.findall(rb"/(?:tmp|home|root|usr|work|Users|var)/[\w./-]+", graph)
    hidden = vocabulary + ".hidden"
    os.rename(vocabulary, hidden)
    try:
        with loaded.load_export(str(moved)) as model:
            found = model(["price"], held_out.examples)["price", "value"]
    finally:
        os.rename(hidden, vocabulary)
    np.testing.assert_allclose(found, predicted["price/value"], rtol=1e-6)


@pytest.mark.medium
def test_only_chosen_signatures_are_written(make, tmp_path):
    path = make(signatures=["^rich", "^raw/lean$"], passthrough=[]).export(tmp_path)
    found = saved_model.read(path).signature_def
    assert set(found) == {*("serving_default", "rich", "rich/classify", "rich/regress", "raw/lean")}
    assert set(found["serving_default"].outputs) == {"rich/probability", "price/value"}


# What is refused.


@pytest.mark.medium
@pytest.mark.parametrize(
    ("output", "change", "message"),
    [
        (
            "price/value",
            lambda v: v * np.float32(1 + 5e-5),
            r"'price/value' of .* is off by 5e-05, but at most 1e-05 is",
        ),
        ("rich/probability", lambda v: v + np.float32(2e-5), r"is off by 2e-05, but at most 1e-05"),
        ("kind/class_id", lambda v: v + 1, r"class_id' .* is off by 1, but"),
        (
            "kind/class",
            lambda v: np.char.add(v.astype(bytes), b"s").astype(object),
            r"predicts b'(cats|dogs|birds)'",
        ),
        ("kind/probabilities", lambda v: v[:, :2], r"shape \(40, 3\) in place of \(40, 2\)"),
        ("price/value", lambda v: v * np.nan, "is off by inf"),
    ],
)
def test_another_output_than_predicted(export, held_out, predicted, output, change, message):
    assert (
        verification.verify_export(export, held_out, verification.Expected(predicted, False))
        <= 1e-6
    )
    wrong = verification.Expected({**predicted, output: change(predicted[output])}, False)
    with pytest.raises(verification.RefusedError, match=message) as caught:
        verification.verify_export(export, held_out, wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("output", "change", "message"),
    [
        ("kind/classify/scores", lambda v: v[:, ::-1], "'scores' of signature 'kind/classify'"),
        ("kind/classify/classes", lambda v: v[:, ::-1], "'classes' of signature 'kind/classify'"),
        ("rich/regress/outputs", lambda v: 1 - v, "'outputs' of signature 'rich/regress'"),
    ],
)
def test_another_answer_of_a_call_than_the_estimator_gives(
    made, export, held_out, output, change, message
):
    answers, _ = reference.Reference(made.estimator, made.spec)(made.checkpoint, held_out)
    assert (
        verification.verify_export(export, held_out, verification.Expected(answers, True)) <= 1e-6
    )
    wrong = verification.Expected({**answers, output: change(answers[output])}, True)
    with pytest.raises(verification.RefusedError, match=message):
        verification.verify_export(export, held_out, wrong)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noisy(heads.Regression):
    """Predicts something else each time, as a head that forgets to turn dropout off does."""

    def value(self, logits):
        return super().value(logits) + tf.random.uniform(tf.shape(logits))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InPython(heads.Regression):
    def value(self, logits):
        (doubled,) = tf.compat.v1.py_func(lambda x: [2 * x], [super().value(logits)], [tf.float32])
        return tf.ensure_shape(doubled, [None, 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTheBatch(heads.Regression):
    """Depends on the other rows, as batch norm does that forgets to use its averages."""

    def value(self, logits):
        return super().value(logits) - tf.reduce_mean(super().value(logits))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotAlone(heads.Regression):
    def value(self, logits):
        checked = tf.compat.v1.assert_none_equal(tf.shape(logits)[0], 1, message="only one row")
        with tf.control_dependencies([checked]):
            return tf.identity(super().value(logits))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotEmpty(heads.Regression):
    def value(self, logits):
        checked = tf.compat.v1.assert_greater(tf.shape(logits)[0], 0, message="no row")
        with tf.control_dependencies([checked]):
            return tf.identity(super().value(logits))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Noisy, "the served graph holds an op of training: RandomUniform '.*'"),
        (InPython, "the served graph holds an op of training: PyFunc '.*'"),
        (OfTheBatch, "output 'price/value' of .* is off by"),
        (NotAlone, "the signatures .* fail on 1 rows: .*only one row"),
    ],
)
def test_a_head_that_does_not_serve_as_it_predicts_keeps_the_version_before(
    made, export, tmp_path, head, message
):
    shutil.copytree(export, tmp_path / "1")
    bad = dataclasses.replace(
        made, directory=made.directory + head.__name__, heads=[*made.heads[:2], head(name="price")]
    )
    with pytest.raises(verification.RefusedError, match=message):
        bad.export(tmp_path)
    assert os.listdir(tmp_path) == ["1"]


@pytest.mark.medium
def test_no_rows_are_only_asked_for_where_the_estimator_takes_them(made, tmp_path):
    made = dataclasses.replace(
        made, directory=made.directory + "e", heads=[*made.heads[:2], NotEmpty(name="price")]
    )
    assert os.path.isdir(made.export(tmp_path))


@pytest.mark.medium
def test_training_goes_on_without_the_export(tmp_path, caplog):
    made = tiny.make(check_rows=256, train_steps=1, checkpoint_steps=1)
    noisy = dataclasses.replace(
        made.model, heads=[*made.model.heads, Noisy(name="size2", label="size")]
    )
    with caplog.at_level(logging.ERROR, "mtl"):
        _, steps = verbs.train(dataclasses.replace(made, model=noisy), str(tmp_path))
    assert steps == 1
    assert "Not exported: the served graph holds an op of training: RandomUniform" in caplog.text
    assert versions.list_versions(str(tmp_path / "export" / "best")) == []
    assert (tmp_path / "best" / "best.json").exists()


@pytest.mark.medium
def test_a_checkpoint_is_exported_once_and_copied(tmp_path, monkeypatch):
    exported = []
    write = serving.Exporter._write_rewritten
    monkeypatch.setattr(
        serving.Exporter, "_write_rewritten", lambda *args: exported.append(args) or write(*args)
    )
    verbs.train(tiny.make(check_rows=256, train_steps=1, checkpoint_steps=1), str(tmp_path))
    (latest,), (best,) = (
        versions.list_versions(str(tmp_path / "export" / kind)) for kind in ("latest", "best")
    )
    assert len(exported) == 1
    graphs = [
        (tmp_path / "export" / kind / str(number) / "saved_model.pb").read_bytes()
        for kind, number in (("latest", latest), ("best", best))
    ]
    assert graphs[0] == graphs[1]


def _read_files(directory):
    """Return {file: its bytes} of an export, without its number and the checksum over that."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    files = {path.relative_to(directory): path.read_bytes() for path in paths}
    described = json.loads(files.pop(pathlib.Path("assets.extra/model.json")))
    return files | {"described": described | dict.fromkeys(("version", "checksum"))}


@pytest.mark.medium
def test_later_exports_are_those_of_a_graph_of_their_own(tmp_path, monkeypatch):
    made, written = tiny.make(check_rows=64, train_steps=8, checkpoint_steps=4), []
    write = compat.estimator.Estimator.export_saved_model
    monkeypatch.setattr(
        compat.estimator.Estimator,
        "export_saved_model",
        lambda *args, **settings: written.append(args) or write(*args, **settings),
    )
    # Averages are restored in another way, and the checkpoint of step 0 has no averages.
    averaged = update.Update(
        optimizer=optimizers.LazyAdam(learning_rate=0.01),
        average=averaging.ExponentialAverage(decay=0.9),
    )
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, update=averaged))
    verbs.train(made, str(tmp_path))
    assert len(written) == 1
    exported = sorted((tmp_path / "export" / "latest").iterdir())
    steps = [metadata.read_metadata(str(path))["step"] for path in exported]
    assert steps == [4, 8]  # The export of step 0 was not kept.
    for path in exported:
        checkpoint = tmp_path / f"model.ckpt-{metadata.read_metadata(str(path))['step']}"
        alone = verbs.export(made, str(tmp_path), str(tmp_path / "alone"), str(checkpoint))
        files = _read_files(path)
        assert len(files) >= 5 and files == _read_files(pathlib.Path(alone))


def _describe(export):
    """Return {signature: (its method, its inputs, its outputs)}."""
    return {
        name: (
            one.method_name,
            {key: (info.dtype, str(info.tensor_shape)) for key, info in one.inputs.items()},
            {key: (info.dtype, str(info.tensor_shape)) for key, info in one.outputs.items()},
        )
        for name, one in saved_model.read(export).signature_def.items()
    }


def _read_variables(export):
    reader = tf.train.load_checkpoint(os.path.join(export, "variables", "variables"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _count_variables(export):
    nodes = saved_model.read(export).graph_def.node
    return sum(node.op == "VarHandleOp" for node in nodes)


@pytest.mark.slow
def test_equal_tasks_that_share_variables_are_exported_as_they_are_one_by_one(
    make, tmp_path, monkeypatch
):
    """A first export is written by Estimator, and a later one from the graph that is kept."""
    monkeypatch.setattr(stacks, "FROM", 2)
    monkeypatch.setattr(together, "FROM", 2)
    equal = [heads.Binary(name=f"t{number}") for number in range(3)]
    one = dataclasses.replace(
        make(outputs=["t1/probability"]),
        network=networks.SharedBottom(
            trunk=networks.MLP(layers=[6]), tower=networks.MLP(layers=[5])
        ),
        heads=[*equal, heads.Regression(name="price")],
    )
    shared = dataclasses.replace(one, may_stack=True)
    for file in pathlib.Path(one.directory).glob(f"{os.path.basename(one.checkpoint)}.*"):
        shutil.copy(file, tmp_path / f"later{file.suffix}")
    settings = shared.settings, shared.spec, shared.heads, shared.read_rows, shared.directory
    exporter = serving.Exporter(*settings)
    alone = one.export(tmp_path / "alone")
    held_out = rows.read_rows(one.dataset, one.spec, 100)
    with loaded.load_export(alone) as model:
        names = [name for name in model.signatures if not signatures.is_raw(name)]
        wanted = model(names, held_out.examples)
    for checkpoint in (one.checkpoint, str(tmp_path / "later")):
        path = exporter(shared.estimator, str(tmp_path / "shared"), checkpoint)
        assert _describe(path) == _describe(alone)
        # Four towers become one, and three heads become one, each with a kernel and a bias.
        assert _count_variables(alone) - _count_variables(path) == 2 * (3 + 2)
        found, own = _read_variables(path), _read_variables(alone)
        assert found.keys() == own.keys() and "head/t2/logits/kernel" in found
        for name, value in own.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        with loaded.load_export(path) as model:
            answers = model(names, held_out.examples)
        assert answers.keys() == wanted.keys()
        for output, value in wanted.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(
                    answers[output], value, rtol=1e-5, atol=1e-6, err_msg=str(output)
                )
            else:
                np.testing.assert_array_equal(answers[output], value, err_msg=str(output))


@pytest.mark.medium
def test_exports_can_go_unchecked(make, tmp_path):
    path = make(check_rows=0).export(tmp_path)
    assert sorted(os.listdir(os.path.join(path, "assets.extra"))) == ["model.json"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 0}, r"^Serving\.keep must be at least 1, got 0"),
        ({"check_rows": 1.5}, r"^Serving\.check_rows must be a whole number"),
        ({"outputs": "sign/value"}, r"^Serving\.outputs must be a list of texts"),
        ({"signatures": ["("]}, r"^Serving\.signatures must hold regular expressions"),
        ({"model_name": "a model"}, r"^Serving\.model_name must consist of letters"),
    ],
)
def test_settings_that_are_wrong(settings, message):
    with pytest.raises(checks.UserError, match=message):
        serving.Serving(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": {"sise": "m"}}, r"^Serving\.units must be one of .* Did you mean 'size'\?$"),
        ({"outputs": ["sgin/class"]}, r"^Serving\.outputs: the task must .* mean 'sign'\?$"),
        ({"passthrough": ["wort"]}, r"^Serving\.passthrough must .* mean 'word'\?$"),
        ({"passthrough": ["kind"]}, r"^Serving\.passthrough must be one of x, word"),
    ],
)
def test_settings_that_do_not_fit_the_run(settings, message):
    with pytest.raises(checks.UserError, match=message):
        dataclasses.replace(tiny.make(), serving=serving.Serving(**settings))


@pytest.mark.medium
def test_an_output_that_no_head_gives_is_named(make, tmp_path):
    with pytest.raises(checks.UserError, match=r"^Serving\.outputs must .*'rich/probability'\?$"):
        make(outputs=["rich/probabilities"]).export(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "message"),
    [
        # It would come back in the place of a prediction, whose check it passes.
        ("value", "another name than the outputs of the signature 'price', got 'value'"),
        # Classify answers with scores, too.
        ("scores", None),
    ],
)
def test_a_feature_that_is_passed_through_may_take_no_place(make, tmp_path, name, message):
    made = make(passthrough=[name])
    more = dataclasses.replace(made.spec, features={**made.spec.features, name: "float32"})
    values = {**made.values, name: np.arange(conftest.NUM_ROWS, dtype=np.float32)}
    made = dataclasses.replace(made, spec=more, values=values)
    if message:
        with pytest.raises(checks.UserError, match=message):
            made.export(tmp_path)
        return
    with loaded.load_export(made.export(tmp_path)) as model:
        found = model(["price"], rows.Rows(spec=more, values=values).first(2).examples)
    assert found["price", name].tolist() == [0.0, 1.0]


def test_a_task_cannot_be_called_as_a_signature_is():
    made = tiny.make()
    named = [heads.Regression(name="raw", label="size")]
    with pytest.raises(checks.UserError, match="not be called 'raw'"):
        experiment.Experiment(
            data=made.data, model=dataclasses.replace(made.model, heads=named), run=made.run
        )


@pytest.mark.medium
def test_an_export_of_a_pruned_run_that_cannot_be_rewritten_is_published_whole(
    made, tmp_path, monkeypatch, caplog
):
    def refuse(self, directory):
        raise checks.UserError("it is too large.")

    exporter = serving.Exporter(
        made.settings, made.spec, made.heads, made.read_rows, made.directory, is_pruned=True
    )
    small = exporter(made.estimator, str(tmp_path / "small"), made.checkpoint)
    assert not os.path.exists(os.path.join(small, "variables"))
    monkeypatch.setattr(serving.Optimized, "__call__", refuse)
    exporter = serving.Exporter(
        made.settings, made.spec, made.heads, made.read_rows, made.directory, is_pruned=True
    )
    with caplog.at_level(logging.WARNING):
        whole = exporter(made.estimator, str(tmp_path / "whole"), made.checkpoint)
    assert os.path.isdir(os.path.join(whole, "variables"))
    assert "Units that add nothing stay in the export: it is too large." in caplog.text


@pytest.mark.medium
def test_a_rewriting_that_fails_the_check_is_told_as_our_mistake(
    made, tmp_path, monkeypatch, caplog
):
    """Users get an export all the same; tests/conftest.py fails where no test expects it."""
    remove = dead_units.remove_units

    def remove_too_much(graph, names):
        smaller = remove(graph, names)
        for name in list(smaller.nodes):
            value = smaller.value(name)
            if value is not None and value.dtype == np.float32 and value.ndim == 2:
                smaller.set_constant(name, 0 * value)
        return smaller

    monkeypatch.setattr(dead_units, "remove_units", remove_too_much)
    exporter = serving.Exporter(
        made.settings, made.spec, made.heads, made.read_rows, made.directory, is_pruned=True
    )
    whole = exporter(made.estimator, str(tmp_path / "whole"), made.checkpoint)
    assert os.path.isdir(os.path.join(whole, "variables"))
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert re.match(
        r"Units that add nothing stay in the export, because of a defect in mtl: without them, "
        r"the check failed. Please report it: output '.*' of signature '.*' is off by",
        record.getMessage(),
    )
    caplog.clear()
