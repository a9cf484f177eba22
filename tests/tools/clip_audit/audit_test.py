"""The audit records examples in training and from checkpoints of the tiny experiment."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, experiment, layers, networks, types, verbs
from mtl.optimization import clipping
from mtl.tools import clip_audit
from mtl.tools.clip_audit import recording, statistics, twins, visits
from tests import tiny

pytestmark = pytest.mark.medium

ROWS = 96


def make(dropout=0.2, **run):
    """Return an experiment without batch norm, so that a checkpoint determines a step's norms.

    Without dropout, it has two auxiliary losses, and the audit measures only one.
    """
    network = networks.SharedBottom(trunk=networks.MLP(layers=[8], dropout=dropout))
    made = tiny.make(network=network, **run)
    if not dropout:
        losses = [
            auxiliary.EntropyMinimization(heads=["kind"]),
            auxiliary.Contrastive(noise=0.1, layers=[4]),
        ]
        made = dataclasses.replace(
            made, model=dataclasses.replace(made.model, auxiliary_losses=losses)
        )
    return dataclasses.replace(made, clip_audit=clip_audit.ClipAudit(window=4))


@pytest.fixture(scope="module", params=[0.2, 0.0], ids=["dropout", "one pass for both"])
def trained(request, tmp_path_factory):
    """A run of 12 steps and then 24, with its model_dir."""
    model_dir = str(tmp_path_factory.mktemp("run"))
    for steps in (12, 24):
        made = make(request.param, train_steps=steps, checkpoint_steps=12, steps_per_call=5)
        tiny.train(made, model_dir)
    return made, model_dir


def test_training_records_every_example_of_every_step(trained):
    rows, batches = visits.read(f"{trained[1]}/clip_audit/training")
    assert batches["step"].tolist() == list(range(24)) == batches["batch"].tolist()
    assert np.bincount(rows["id"]).tolist() == [24 * 16 // ROWS] * ROWS
    blame = np.bincount(rows["batch"], rows["blame"])
    np.testing.assert_allclose(blame, 1, rtol=1e-5)
    labels = tiny.SPLITS["train"]["kind"][rows["id"]].astype(float)
    np.testing.assert_array_equal(rows["label/kind"], np.where(labels < 0, np.nan, labels))
    missing = labels < 0
    assert not rows["norm/task/kind"][missing].any() and rows["norm/task/kind"][~missing].all()
    scopes = [rows[name] ** 2 for name in rows if name.startswith("norm/scope/")]
    np.testing.assert_allclose(np.sum(scopes, axis=0), rows["norm"] ** 2, rtol=1e-4)


def test_the_report_is_written_by_the_start_after_one_that_was_killed(trained, tmp_path):
    made, model_dir = trained
    summary = pathlib.Path(model_dir) / "clip_audit" / "training" / "summary.md"
    before = summary.read_text()
    summary.unlink()
    recording.Recording(made.clip_audit, model_dir).write_results()
    assert summary.read_text() == before
    # A run that is done, and gets its settings later, has nothing to report.
    recording.Recording(made.clip_audit, str(tmp_path)).write_results()
    assert not list(tmp_path.iterdir())


def test_the_norms_are_those_of_the_weights_before_the_step(trained):
    made, model_dir = trained
    output = f"{model_dir}/of_one"
    path = f"{model_dir}/model.ckpt-12"
    summary = verbs.audit_clipping(made, model_dir, path, output)
    rows, _ = visits.read(output)
    in_training, _ = visits.read(f"{model_dir}/clip_audit/training")
    step = in_training["batch"] == 12
    places = np.argsort(rows["id"])[in_training["id"][step]]
    # A third of the rows lack a label of `kind`, so its norms depend on the other rows of a batch.
    names = ["norm/task/size", "loss/sign", "loss/kind", "el2n/kind", "margin/kind", "margin/sign"]
    if made.model.auxiliary_losses:
        names += ["loss/entropy", "norm/task/entropy"]
        assert (rows["norm/task/entropy"] > 0).all()
    assert not [name for name in rows if "contrastive" in name]
    for name in names:
        np.testing.assert_allclose(
            in_training[name][step], rows[name][places], rtol=2e-4, atol=1e-6, err_msg=name
        )
    assert pathlib.Path(summary).read_text().startswith("# Clip audit")


def test_the_norm_of_a_batch_is_the_norm_that_training_clips(tmp_path):
    made = make(dropout=0.0, train_steps=6, checkpoint_steps=6, summary_steps=1)
    losses = [auxiliary.EntropyMinimization(heads=["kind"])]
    clipped = dataclasses.replace(made.model.update, clipping=clipping.GlobalNorm(max_norm=4.0))
    changed = dataclasses.replace(made.model, auxiliary_losses=losses, update=clipped)
    tiny.train(dataclasses.replace(made, model=changed), tmp_path)
    _, batches = visits.read(str(tmp_path / "clip_audit/training"))
    scalars = tiny.scalars(tmp_path)
    trained = [scalars[step, "gradient_norm"] for step in range(1, 7)]
    np.testing.assert_allclose(batches["norm"], trained, rtol=1e-4)


@pytest.mark.parametrize(("dropout", "is_shared"), [(0.0, True), (0.2, False)])
def test_the_forward_pass_of_the_step_is_taken_where_it_is_the_one_of_evaluation(
    dropout, is_shared, monkeypatch, tmp_path
):
    before, shared = twins.reuse_earlier, []

    def watched(first, outputs):
        known = {op.name for op in tf.compat.v1.get_default_graph().get_operations()[:first]}
        found = before(first, outputs)
        if isinstance(found, dict):  # The logits; auxiliary losses ask for inputs and towers too.
            shared.extend(tensor.op.name in known for tensor in found.values())
        return found

    monkeypatch.setattr(twins, "reuse_earlier", watched)
    tiny.train(make(dropout, train_steps=2, checkpoint_steps=2), tmp_path)
    # The passes over the whole batch come first. The entropy takes one more pass for each example.
    assert shared[:3] == [is_shared] * 3


def test_a_visit_for_each_checkpoint_and_a_report(trained):
    made, model_dir = trained
    summary = verbs.audit_clipping(made, model_dir, others=[f"{model_dir}/clip_audit/training"])
    directory = summary.removesuffix("/summary.md")
    rows, batches = visits.read(directory)
    assert sorted(set(batches["step"])) == tiny.checkpoint_steps(model_dir) == [0, 12, 24]
    assert np.bincount(rows["id"]).tolist() == [3] * ROWS
    samples = statistics.of_samples(rows, batches, 3)
    text = pathlib.Path(summary).read_text()
    assert "frozen statistics" in text and f"| samples | {ROWS} |" in text
    assert f"| {samples['id'][0]} | 3 |" in text and "## Agreement" in text
    lines = pathlib.Path(directory, "samples.csv").read_text().splitlines()
    assert len(lines) == ROWS + 1 and lines[1].startswith(f"{samples['id'][0]},3,0,")
    assert pathlib.Path(directory, "plots.svg").read_text().count("<polyline") > 5


class Steps:
    """A dense layer on [B, T, D] that computes its sizes in the graph, like the layer of Keras."""

    def __call__(self, inputs, tasks, training):
        hidden = layers.dense(tf.concat(list(inputs.values()), 1), 6, "in", tf.tanh)
        steps = tf.reshape(hidden, [-1, 3, 2])
        kernel = tf.compat.v1.get_variable("kernel", [2, 4])
        made = tf.nn.relu(tf.tensordot(steps, kernel, [[2], [0]]))
        return types.Towers(dict.fromkeys(tasks, tf.reduce_sum(made, 1)))


def test_a_trained_dense_layer_on_steps(tmp_path, caplog):
    made = tiny.make(network=Steps(), train_steps=2, checkpoint_steps=2)
    tiny.train(made, tmp_path)
    verbs.audit_clipping(made, str(tmp_path), f"{tmp_path}/model.ckpt-2")
    _, batches = visits.read(f"{tmp_path}/clip_audit/checkpoints")
    assert (batches["layer/network"] > 0).all() and "a pass for each" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key": "wrod"}, "Did you mean 'word'"),
        ({"key": "x"}, "be one int64 or string, got 'float32 of shape (3,)'"),
        ({"percentile": 101.0}, "ClipAudit.percentile must be in [0, 100]"),
        ({"window": 0}, "ClipAudit.window must be at least 1"),
        ({"max_norm": 0.0}, "ClipAudit.max_norm must be above 0"),
    ],
)
def test_mistakes(settings, says):
    with pytest.raises(checks.UserError, match="ClipAudit") as caught:
        dataclasses.replace(tiny.make(), clip_audit=clip_audit.ClipAudit(**settings))
    assert says in str(caught.value)


def test_a_part_that_is_not_built_is_refused():
    with pytest.raises(checks.UserError, match="@clip_audit.ClipAudit"):
        experiment.Experiment(**{**vars(tiny.make()), "clip_audit": clip_audit.ClipAudit})
