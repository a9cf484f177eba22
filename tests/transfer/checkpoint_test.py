import copy
import dataclasses
import pathlib
import pickle

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, transfer, verbs
from mtl.checkpoints import run_directory
from mtl.variables import averaging, freezing, row_names
from tests import tiny


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    tiny.train(tiny.make(train_steps=10), directory)
    return str(directory)


@pytest.mark.medium
def test_what_was_edited_is_where_a_run_goes_on(run, tmp_path):
    values = transfer.read_checkpoint(run)
    saved = tiny.variables(run)
    assert values.keys() == saved.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(value, saved[name])
    bias = "head/size/logits/bias"
    values[bias] = values[bias] + 3
    values["global_step"] = np.int64(5)
    path = str(tmp_path / "edited" / "model.ckpt-5")
    assert transfer.write_checkpoint(values, path) == tf.train.latest_checkpoint(
        str(tmp_path / "edited")
    )
    again = transfer.read_checkpoint(path)
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)
        assert again[name].dtype == value.dtype
    before = list(verbs.predict(tiny.make(), run))
    made = tiny.make()
    for name in tf.io.gfile.listdir(f"{run}/statistics"):
        tf.io.gfile.makedirs(str(tmp_path / "edited" / "statistics"))
        target = str(tmp_path / "edited" / "statistics" / name)
        tf.io.gfile.copy(f"{run}/statistics/{name}", target)
    after = list(verbs.predict(made, str(tmp_path / "edited")))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new["size/value"], old["size/value"] + 3, rtol=1e-5)
    _, steps = verbs.train(tiny.make(train_steps=7, checkpoint_steps=10), str(tmp_path / "edited"))
    assert steps == 2


def test_a_checkpoint_of_any_name_has_a_step(tmp_path):
    path = transfer.write_checkpoint({"global_step": np.int64(5)}, str(tmp_path / "model.ckpt"))
    assert run_directory.step_in_name(path) == 5 == run_directory.step_of(str(tmp_path))


@pytest.mark.medium
def test_what_was_edited_stays_as_it_is_where_it_is_frozen(run, tmp_path):
    values = transfer.read_checkpoint(run)
    name = "head/size/logits/kernel"
    values[name] = np.linspace(-1, 1, values[name].size, dtype=np.float32).reshape(-1, 1)
    del values["global_step"]  # Arrays of another program have none.
    transfer.write_checkpoint(values, str(tmp_path / "edited" / "model.ckpt"))
    made = tiny.make(train_steps=5)
    model = dataclasses.replace(made.model, freezing=freezing.Freezing(frozen=[f"^{name}$"]))
    start = transfer.WarmStart(source=str(tmp_path / "edited"))
    made = dataclasses.replace(made, model=model, warm_start=start)
    after = tiny.train(made, tmp_path / "run")
    np.testing.assert_array_equal(after[name], values[name])
    other = "head/kind/logits/kernel"
    assert f"{name}/Adam" not in after and (after[other] != values[other]).any()


def test_no_checkpoint(tmp_path):
    with pytest.raises(checks.UserError, match="source must be a checkpoint, a model_dir or a Sav"):
        transfer.read_checkpoint(str(tmp_path / "nothing"))


@pytest.mark.medium
def test_a_file_of_a_checkpoint_names_it(run):
    path = tf.train.latest_checkpoint(run)
    found, wanted = transfer.read_checkpoint(f"{path}.index"), transfer.read_checkpoint(path)
    assert found.keys() == wanted.keys() and len(found) > 5
    assert run_directory.checkpoint_path(run, f"{path}.index") == path


@pytest.mark.medium
def test_a_checkpoint_of_a_run_is_not_replaced(run, tmp_path):
    path = tf.train.latest_checkpoint(run)
    with pytest.raises(checks.UserError, match="path must name a new checkpoint, not one that a"):
        transfer.write_checkpoint({"w": np.zeros(2)}, path)
    best = f"{run}/best/model.ckpt-10"
    transfer.checkpoint.replace_checkpoint(transfer.read_checkpoint(run), best)
    with pytest.raises(checks.UserError, match="path must name a new checkpoint, not one that a"):
        transfer.write_checkpoint({"w": np.zeros(2)}, pathlib.Path(best))
    with pytest.raises(checks.UserError, match="path must end in -10, as values.'global_step'. is"):
        transfer.write_checkpoint(transfer.read_checkpoint(run), f"{run}/model.ckpt-99")
    with pytest.raises(checks.UserError, match="values must hold every variable of the run"):
        transfer.write_checkpoint({"w": np.zeros(2), "global_step": 99}, f"{run}/model.ckpt-99")
    assert tf.train.latest_checkpoint(run) == path
    assert len(transfer.read_checkpoint(run)) > 5 and len(transfer.read_checkpoint(best)) > 5
    for value in (1.0, 2.0):  # A script may run twice.
        transfer.write_checkpoint({"w": np.full(2, value)}, str(tmp_path / "model.ckpt"))
    assert transfer.read_checkpoint(str(tmp_path))["w"].tolist() == [2, 2]


@pytest.mark.medium
def test_what_was_edited_keeps_the_names_of_rows(run, tmp_path):
    transfer.write_checkpoint(transfer.read_checkpoint(run), str(tmp_path / "model.ckpt"))
    saved, edited = row_names.load(run), row_names.load(str(tmp_path))
    assert saved.keys() == edited.keys() and len(saved) > 1
    for scope, names in saved.items():
        assert row_names.read_names(edited[scope]) == row_names.read_names(names)
        assert edited[scope].axis == names.axis


@pytest.mark.medium
def test_values_can_be_copied(run, tmp_path):
    values = transfer.read_checkpoint(run)
    for copied in (copy.deepcopy(values), pickle.loads(pickle.dumps(values))):
        assert copied.keys() == values.keys() and copied.source == values.source
        transfer.write_checkpoint(copied, str(tmp_path / "model.ckpt"))
        copy.deepcopy(copied)


@pytest.mark.medium
def test_an_edit_that_the_average_would_hide_is_refused(tmp_path):
    made = tiny.make(train_steps=3)
    update = dataclasses.replace(made.model.update, average=averaging.ExponentialAverage())
    model = dataclasses.replace(made.model, update=update)
    tiny.train(dataclasses.replace(made, model=model), tmp_path / "run")
    values = transfer.read_checkpoint(str(tmp_path / "run"))
    bias, path = "head/size/logits/bias", str(tmp_path / "edited" / "model.ckpt")
    values[bias] = values[bias] + 3
    with pytest.raises(checks.UserError, match=f"'{bias}'. has changed, but not its average, "):
        transfer.write_checkpoint(values, path)
    values[f"{bias}/average"] = values[bias]
    transfer.write_checkpoint(values, path)


@pytest.mark.parametrize(
    ("values", "name", "message"),
    [
        ([np.zeros(2)], "model.ckpt", "values must be {variable: array}"),
        ({"": np.zeros(2)}, "model.ckpt", "the name of a variable must not be empty"),
        ({3: np.zeros(2)}, "model.ckpt", "the name of a variable must be a text, got 3"),
        ({"w": None}, "model.ckpt", r"values\['w'\] must be an array of numbers"),
        ({"w": [[1], [1, 2]]}, "model.ckpt", r"values\['w'\] must be an array of numbers"),
        ({"w": [object()]}, "model.ckpt", r"values\['w'\] must be an array of numbers"),
        ({"w": np.zeros(2)}, "", "path must end in the name of a checkpoint"),
    ],
)
def test_what_cannot_be_saved_is_one_line(values, name, message, tmp_path):
    folder = tmp_path / "new"
    with pytest.raises(checks.UserError, match=message) as error:
        transfer.write_checkpoint(values, f"{folder}/{name}")
    assert "\n" not in str(error.value) and not folder.exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kernel: kernel * np.nan, "'.*kernel' must hold no NaN, got"),
        (lambda kernel: kernel.astype(np.int64), "'.*kernel' must hold float32, got 'int64'"),
    ],
    ids=["NaN", "whole numbers"],
)
def test_values_that_would_spoil_a_run_are_refused(run, tmp_path, change, message):
    """A ReLU hides a NaN on a CPU, and a cast would round the weights to 0."""
    values = transfer.read_checkpoint(run)
    name = "head/size/logits/kernel"
    transfer.write_checkpoint({**values, name: change(values[name])}, str(tmp_path / "a" / "ckpt"))
    made = tiny.make(train_steps=5)
    made = dataclasses.replace(made, warm_start=transfer.WarmStart(source=str(tmp_path / "a")))
    with pytest.raises(checks.UserError, match=message):
        tiny.train(made, tmp_path / "run")
