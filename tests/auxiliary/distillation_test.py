"""A student learns from an export: what the teacher says, and who cannot be one."""

import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from mtl import auxiliary, checks, compat, heads, mixing, verbs
from mtl.auxiliary import activations as activations_lib
from mtl.auxiliary import distillation
from mtl.checkpoints import given_files
from mtl.model import graph_options
from mtl.runs import fitting
from mtl.sparsity import pruning, pruning_schedules
from tests import tiny
from tests.auxiliary import probe

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Train a run; return its folder, its exports, and its predictions for the training rows."""
    model_dir = tmp_path_factory.mktemp("teacher") / "run"
    made = tiny.make(train_steps=3, checkpoint_steps=3)
    verbs.train(made, str(model_dir))
    rows = list(verbs.predict(made, str(model_dir), "train"))
    predicted = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return model_dir, str(model_dir / "export" / "latest"), predicted


def _open_step(model_dir, part):
    """The losses of the training rows by a part, and logits and towers of the student."""
    made, seen = tiny.make(), probe.Probe()
    model = dataclasses.replace(made.model, auxiliary_losses=[seen, part])
    statistics = fitting.load_statistics(str(model_dir))
    rows = tiny.SPLITS["train"]
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        features = {n: tf.constant(rows[n]) for n in ("x", "word")}
        labels = {n: tf.constant(rows[n]) for n in tiny.LABELS}
        mode = compat.estimator.ModeKeys.TRAIN
        model.model_fn(
            features, labels, mode, options=graph_options.GraphOptions(statistics=statistics)
        )
        (activations,) = seen.seen
        with tf1.variable_scope("auxiliary/again"):
            losses = part(activations)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        return session.run([losses, activations.logits, dict(activations.towers)])


@pytest.mark.medium
def test_the_loss_is_the_divergence_from_what_the_teacher_serves(teacher):
    model_dir, folder, predicted = teacher
    part = auxiliary.Distillation(teacher=folder, temperature={"sign": 2.0, "kind": 3.0})
    losses, logits, _ = _open_step(model_dir, part)
    p = scipy.special.softmax(np.log(predicted["kind/probabilities"]) / 3, -1)
    q = scipy.special.softmax(logits["kind"] / 3, -1)
    expected = 9 * scipy.special.rel_entr(p, q).sum(-1)
    p = scipy.special.expit(scipy.special.logit(predicted["sign/probability"]) / 2)
    q = scipy.special.expit(logits["sign"][:, 0] / 2)
    of_signs = scipy.special.rel_entr(p, q) + scipy.special.rel_entr(1 - p, 1 - q)
    expected += 4 * of_signs + 0.5 * (predicted["size/value"] - logits["size"][:, 0]) ** 2
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert part.reads_features  # With mixup, the teacher gets the rows before they are mixed.


@pytest.mark.slow
def test_student_and_teacher_see_the_same_rows_where_rows_are_mixed(teacher, tmp_path):
    """The run goes on from the teacher's weights; its first loss is that before the step."""
    model_dir, folder, _ = teacher
    made = tiny.make(train_steps=4, checkpoint_steps=4, summary_steps=4)
    losses = [auxiliary.Distillation(teacher=folder, temperature=1.0)]
    found = {}
    for name, mixes in (("plain", None), ("mixed", mixing.Mixup(alpha=1.0))):
        shutil.copytree(model_dir, tmp_path / name)
        model = dataclasses.replace(made.model, auxiliary_losses=losses, mixing=mixes)
        tiny.train(dataclasses.replace(made, model=model), tmp_path / name)
        found[name] = tiny.scalars(tmp_path / name)
    of_plain = found["plain"][4, "distillation/loss"]
    assert found["mixed"][4, "distillation/loss"] == pytest.approx(of_plain, rel=1e-5)
    assert abs(found["mixed"][4, "size/loss"] / found["plain"][4, "size/loss"] - 1) > 1e-3


@pytest.mark.medium
def test_a_run_learns_from_its_teacher_with_few_labels(teacher, tmp_path):
    """Also in slices; the checkpoint holds nothing of the teacher."""
    _, folder, _ = teacher
    unlabelled = {
        split: {**rows, "kind": np.where(np.arange(len(rows["kind"])) % 32, -1, rows["kind"])}
        for split, rows in tiny.SPLITS.items()
    }
    made = tiny.make(unlabelled, train_steps=4, checkpoint_steps=4, summary_steps=2)
    part = auxiliary.Distillation(teacher=folder, heads=["kind"])
    model = dataclasses.replace(made.model, auxiliary_losses=[part])
    run = dataclasses.replace(made.run, micro_batches=2)
    found = tiny.train(dataclasses.replace(made, model=model, run=run), tmp_path)
    assert not [name for name in found if "distillation" in name]
    assert np.abs(found["head/kind/logits/bias"]).max() > 0
    assert tiny.scalars(tmp_path)[4, "distillation/loss"] > 0


@pytest.mark.medium
def test_a_student_is_taught_while_it_is_pruned(teacher, tmp_path):
    """And its head is taught as much by the balancing as by any task: weights are shown."""
    _, folder, _ = teacher
    made = tiny.make(train_steps=6, checkpoint_steps=6, summary_steps=2)
    part = pruning.Pruning(
        patterns=["network/trunk"], schedule=pruning_schedules.OneShot(step=2), sparsity=0.5
    )
    losses = [auxiliary.Distillation(teacher=folder, weight=0.5)]
    model = dataclasses.replace(made.model, auxiliary_losses=losses, pruning=[part])
    variables = tiny.train(dataclasses.replace(made, model=model), tmp_path)
    kernel = variables["network/trunk/hidden_0/kernel"]
    assert np.mean(kernel == 0) == 0.5
    scalars = tiny.scalars(tmp_path)
    assert scalars[6, "weight/distillation"] == 0.5
    assert scalars[6, "distillation/loss"] > 0


@pytest.mark.medium
def test_a_representation_is_mapped_onto_a_tensor_of_the_teacher(teacher):
    model_dir, folder, _ = teacher
    part = auxiliary.FeatureDistillation(
        teacher=folder, tensor="network/tower_kind/Relu", task="kind"
    )
    losses, _, towers = _open_step(model_dir, part)
    assert losses.shape == (96,)
    assert towers["kind"].shape == (96, 4)
    assert (losses > 0).any()


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda folder: auxiliary.Distillation(teacher=folder + "x"),
            "Distillation.teacher must name a SavedModel, a folder of numbered SavedModels",
        ),
        (
            lambda folder: auxiliary.Distillation(teacher=folder, signature="row"),
            "Distillation.teacher: its signature must be one of",
        ),
        (
            lambda folder: auxiliary.FeatureDistillation(
                teacher=folder, tensor="network/tower_kind/Rely"
            ),
            "Did you mean 'network/tower_kind/Relu'?",
        ),
    ],
)
@pytest.mark.medium
def test_what_cannot_teach_is_refused(teacher, make, message):
    with pytest.raises(checks.UserError) as error:
        _open_step(teacher[0], make(teacher[1]))
    assert message in str(error.value)


@pytest.mark.medium
def test_a_teacher_of_other_classes_or_columns_is_refused(teacher):
    _, folder, _ = teacher
    part = auxiliary.Distillation(teacher=folder, heads=["kind"])
    with pytest.raises(checks.UserError, match="of its inputs must be one of x, got 'wor"):
        _open_step_of(part, ["x"], heads.MultiClass(name="kind", classes=3))
    with pytest.raises(checks.UserError, match="have the classes of task 'kind'"):
        _open_step_of(part, ["x", "word"], heads.MultiClass(name="kind", classes=["a", "b", "c"]))
    with pytest.raises(
        checks.UserError, match="predict 'probability' for 'size', from which Binar"
    ):
        other = auxiliary.Distillation(teacher=folder, heads=["size"])
        _open_step_of(other, ["x", "word"], heads.Binary(name="size"))
    with pytest.raises(checks.UserError, match="a task of its outputs must be one of kind"):
        other = auxiliary.Distillation(teacher=folder, heads=["kinds"])
        _open_step_of(other, ["x", "word"], heads.MultiClass(name="kinds", classes=3))


def _open_step_of(part, names, head):
    rows = tiny.SPLITS["train"]
    with tf.Graph().as_default():
        part(
            activations_lib.Activations(
                features={n: tf.constant(rows[n]) for n in names},
                labels={},
                inputs={},
                towers={},
                logits={head.name: tf.zeros([96, 3])},
                heads={head.name: head},
                forward=None,
                scope=None,
                emitted={},
            )
        )


def test_a_run_stands_for_its_best_export(tmp_path):
    folder = tmp_path / "run"
    for name in ("latest/5", "latest/7", "best/4"):
        (folder / "export" / name).mkdir(parents=True)
    assert distillation.find_model(str(folder)) == str(folder / "export" / "best" / "4")
    latest = folder / "export" / "latest"
    assert distillation.find_model(str(latest)) == str(latest / "7")
    shutil.rmtree(folder / "export" / "best")
    assert distillation.find_model(str(folder)) == str(latest / "7")
    assert distillation.find_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.medium
def test_a_checkpoint_stands_for_its_export(teacher, tmp_path):
    model_dir, folder, _ = teacher
    path = str(model_dir / "model.ckpt-3")
    version = pathlib.Path(distillation.find_model(path))
    # Both exports are of this step, and may be of the same second.
    exports = list((model_dir / "export").glob("*/*"))
    assert version in exports and version.name == max(each.name for each in exports)
    assert distillation.find_model(str(model_dir / "best" / "model.ckpt-3")) == str(version)
    part = auxiliary.Distillation(teacher=path)
    np.testing.assert_array_equal(
        _open_step(model_dir, part)[0],
        _open_step(model_dir, auxiliary.Distillation(teacher=folder))[0],
    )
    index = version / "variables" / "variables.index"
    files = {"teacher": str(version / "saved_model.pb"), "teacher_weights": str(index)}
    assert part.files == files
    named_best = tmp_path / "best"
    shutil.copytree(model_dir, named_best)
    found = distillation.find_model(str(named_best / "model.ckpt-3"))
    assert found == str(named_best / version.relative_to(model_dir))
    # Object storage does not keep the times of files that are copied.
    later = int(version.name) + 60
    os.utime(named_best / "best" / "model.ckpt-3.index", (later, later))
    assert distillation.find_model(str(named_best / "best" / "model.ckpt-3")) == found
    # Step 0 has no export, and a checkpoint newer than the export was not exported.
    copy = tmp_path / "run"
    shutil.copytree(model_dir, copy)
    os.utime(copy / "model.ckpt-3.index", (later, later))
    for wrong in (str(model_dir / "model.ckpt-0"), str(copy / "model.ckpt-3")):
        with pytest.raises(checks.UserError) as error:
            _open_step(model_dir, auxiliary.Distillation(teacher=wrong))
        assert f"was exported, got '{wrong}'. Run launch.export --model_dir" in str(error.value)


@pytest.mark.medium
def test_a_damaged_teacher_is_refused(teacher, tmp_path):
    model_dir, folder, _ = teacher
    copy = shutil.copytree(folder, tmp_path / "copy")
    (version,) = copy.iterdir()
    graph = version / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(checks.UserError, match="saved_model.pb"):
        _open_step(model_dir, auxiliary.Distillation(teacher=str(copy)))


@pytest.mark.medium
def test_a_student_does_not_go_on_with_another_teacher(teacher, tmp_path):
    """A teacher that has trained on has the same graph, and other weights."""
    versions = tmp_path / "versions"
    shutil.copytree(distillation.find_model(teacher[1]), versions / "1")
    part = auxiliary.Distillation(teacher=str(versions))
    run = tmp_path / "student"
    run.mkdir()
    given_files.keep_checksums(part.files, str(run), is_new=True)
    shutil.copytree(versions / "1", versions / "2")
    given_files.check_unchanged(part.files, str(run))
    index = versions / "2" / "variables" / "variables.index"
    index.write_bytes(index.read_bytes() + b"other")
    with pytest.raises(
        checks.UserError, match="the file of teacher_weights must be as when the run"
    ):
        given_files.check_unchanged(part.files, str(run))
