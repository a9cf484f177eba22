import dataclasses
import gc
import json
import logging
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from mtl import checkpoints, checks, experiment, features, heads, networks, verbs
from mtl.checkpoints import run_directory
from mtl.configs import config
from mtl.data import pipeline
from mtl.distribution import interruption
from mtl.files import checksums
from mtl.optimization import optimizers
from mtl.runs import evaluation, exporters
from mtl.step import training_loop
from tests import graph_optimizer, tiny

pytestmark = pytest.mark.medium

# A run that was stopped at the first of these steps and continued to the second.
STOPS = (13, 45)
LOSSES = {"loss", "sign/loss", "kind/loss", "size/loss"}

# Runs every signature of SavedModels with both loaders; knows nothing of this project.
SERVE = """
import sys
import numpy as np
import tensorflow as tf
tf1 = tf.compat.v1
inputs, *places = sys.argv[1:]
examples = np.load(inputs, allow_pickle=True)["examples"]
for model_dir in places:
    found = {}
    loaded = tf.saved_model.load(model_dir)
    examples_only = [name for name in loaded.signatures if not name.startswith("raw")]
    for name in examples_only:
        signature = loaded.signatures[name]
        (argument,) = signature.structured_input_signature[1]
        for key, value in signature(**{argument: tf.constant(examples)}).items():
            found[f"v2:{name}:{key}"] = value.numpy()
    with tf.Graph().as_default(), tf1.Session() as session:
        meta = tf1.saved_model.load(session, ["serve"], model_dir)
        for name in examples_only:
            signature = meta.signature_def[name]
            (placeholder,) = [tensor.name for tensor in signature.inputs.values()]
            fetches = {key: tensor.name for key, tensor in signature.outputs.items()}
            for key, value in session.run(fetches, {placeholder: examples}).items():
                found[f"v1:{name}:{key}"] = value
    np.savez(f"{model_dir}.npz", **found)
"""


def _train(directory, steps_per_call, check_rows=0):
    """Train, stop and continue; return the results of all calls of train."""
    settings = {"check_rows": check_rows, "steps_per_call": steps_per_call}
    settings |= {"checkpoint_steps": 20, "keep_checkpoints": 10}
    return [verbs.train(tiny.make(**settings, train_steps=last), str(directory)) for last in STOPS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train in single steps; return the model_dir and the results of all calls of train."""
    graph_optimizer.turn_on(True)
    directory = tmp_path_factory.mktemp("single")
    return directory, _train(directory, steps_per_call=1, check_rows=256)


@pytest.fixture
def model_dir(trained, tmp_path):
    """A copy of the trained model_dir."""
    return pathlib.Path(shutil.copytree(trained[0], tmp_path / "model"))


def _content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _predict(model_dir, split="test", checkpoint="latest", **settings):
    """{name: [B, ...]}."""
    found = list(verbs.predict(tiny.make(**settings), str(model_dir), split, checkpoint))
    return {name: np.stack([row[name] for row in found]) for name in found[0]}


@pytest.mark.optimizes_graphs
@pytest.mark.parametrize(
    "steps_per_call", [pytest.param(7, id="7"), pytest.param(100, id="100", marks=pytest.mark.slow)]
)
def test_what_a_run_leaves_does_not_depend_on_steps_per_call(
    trained, tmp_path, steps_per_call, monkeypatch
):
    single, returned = trained
    build_loop, loops = training_loop.run_repeatedly, []

    def watch(*args, **settings):
        loops.append(settings["steps_per_call"])
        return build_loop(*args, **settings)

    monkeypatch.setattr(training_loop, "run_repeatedly", watch)
    again = _train(tmp_path, steps_per_call)
    assert loops == [steps_per_call] * len(STOPS)
    assert [steps for _, steps in again] == [steps for _, steps in returned]
    for (metrics, _), (expected, _) in zip(again, returned, strict=True):
        assert metrics == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert tiny.checkpoint_steps(tmp_path) == tiny.checkpoint_steps(single)
    expected, actual = tiny.variables(single), tiny.variables(tmp_path)
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
    for folder in ("", "eval"):
        expected, actual = (
            {key: x for key, x in tiny.scalars(run / folder).items() if key[1] not in tiny.SPEEDS}
            for run in (single, tmp_path)
        )
        assert actual == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_run_that_was_stopped_goes_on_from_its_last_checkpoint(trained):
    directory, returned = trained
    assert [steps for _, steps in returned] == [13, 32]
    assert [metrics["global_step"] for metrics, _ in returned] == [13, 45]
    assert tiny.checkpoint_steps(directory) == [0, 13, 20, 40, 45]
    assert max(tiny.checkpoint_steps(directory)) == 45


def test_event_files_hold_every_loss_rate_norm_and_speed(trained):
    directory, _ = trained
    found = tiny.scalars(directory)
    weights = {f"weight/{task}" for task in tiny.LABELS}
    # With one step per call the waiting time of steps is not measured.
    tags = LOSSES | weights | {"learning_rate", "gradient_norm", *tiny.SPEEDS[:2]}
    assert set(found) == {(step, tag) for step in (10, 20, 30, 40) for tag in tags}
    assert all(np.isfinite(value) for value in found.values())
    assert found[10, "loss"] == pytest.approx(
        sum(found[10, f"{task}/loss"] for task in tiny.LABELS), rel=1e-6
    )
    assert found[40, "learning_rate"] == pytest.approx(0.01)
    assert found[20, "examples_per_sec"] == pytest.approx(16 * found[20, "steps_per_sec"])


def test_the_eval_directory_holds_every_metric_of_every_evaluation(trained):
    directory, returned = trained
    found = tiny.scalars(directory / "eval")
    assert {step for step, _ in found} == {13, 20, 40, 45}
    for metrics, _ in returned:
        step = metrics["global_step"]
        written = {tag: value for (at, tag), value in found.items() if at == step}
        expected = {name: value for name, value in metrics.items() if name != "global_step"}
        assert written == pytest.approx(expected, nan_ok=True)


def test_another_split_is_written_apart(model_dir):
    before = tiny.scalars(model_dir / "eval")
    metrics = verbs.evaluate(tiny.make(), str(model_dir), "train")
    assert tiny.scalars(model_dir / "eval") == pytest.approx(before, nan_ok=True)
    written = tiny.scalars(model_dir / "eval_train")
    assert written[45, "size/rmse"] == pytest.approx(metrics["size/rmse"])


def test_a_finished_run_says_so_and_evaluates(model_dir, trained, caplog):
    weights = tiny.variables(model_dir)
    # As if the start that took the last step was killed right after it.
    (model_dir / "balancing.svg").unlink()
    with caplog.at_level(logging.INFO, "mtl"):
        metrics, steps = verbs.train(tiny.make(train_steps=45), str(model_dir))
    assert steps == 0
    assert (model_dir / "balancing.svg").exists()
    assert "Nothing to train: step 45 of 45, all steps are done" in caplog.text
    assert metrics == pytest.approx(trained[1][-1][0], nan_ok=True)
    for name, value in tiny.variables(model_dir).items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)


def test_metrics_equal_numpy_on_the_predictions_of_labelled_rows(trained):
    directory, returned = trained
    metrics, _ = returned[-1]
    predicted, rows = _predict(directory), tiny.SPLITS["test"]
    assert len(predicted["sign/probability"]) == 48
    right = predicted["sign/class_id"] == rows["sign"]
    assert metrics["sign/accuracy"] == pytest.approx(right.mean())
    probability = np.where(rows["sign"], 1, -1) * (predicted["sign/probability"] - 0.5) + 0.5
    assert metrics["sign/average_loss"] == pytest.approx(-np.log(probability).mean(), rel=1e-5)
    labelled = np.flatnonzero(rows["kind"] >= 0)
    assert len(labelled) == 32
    of_label = predicted["kind/probabilities"][labelled, rows["kind"][labelled]]
    assert metrics["kind/average_loss"] == pytest.approx(-np.log(of_label).mean(), rel=1e-5)
    error = predicted["size/value"] - rows["size"]
    assert metrics["size/rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)


def test_predicting_needs_no_labels(trained):
    directory, _ = trained
    test = tiny.SPLITS["test"]
    unlabelled = {name: value for name, value in test.items() if name not in tiny.LABELS}
    found = _predict(directory, "new", splits={"new": unlabelled, "test": test})
    for name, value in _predict(directory).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def _example(**fields):
    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    found = {name: feature(value) for name, value in fields.items()}
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString(
        deterministic=True
    )


def _newest(directory):
    return max(directory.iterdir(), key=lambda path: int(path.name))


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The directory of an export by hand."""
    directory = tmp_path_factory.mktemp("manual")
    return verbs.export(tiny.make(check_rows=256), str(trained[0]), str(directory))


@pytest.fixture(scope="module")
def served(trained, exported, tmp_path_factory):
    """Serve in another process: {kind of export: {"<loader>:<signature>:<output>": value}}."""
    directory, copies = trained[0], tmp_path_factory.mktemp("served")
    exports = {
        "latest": _newest(directory / "export" / "latest"),
        "best": _newest(directory / "export" / "best"),
        "manual": exported,
    }
    places = [shutil.copytree(export, copies / kind) for kind, export in exports.items()]
    test = tiny.SPLITS["test"]
    examples = [_example(x=x, word=word) for x, word in zip(test["x"], test["word"], strict=True)]
    np.savez(copies / "inputs.npz", examples=np.array(examples, object))
    arguments = [copies / "inputs.npz", *places]
    subprocess.run([sys.executable, "-c", SERVE, *map(str, arguments)], check=True)
    return {kind: dict(np.load(copies / f"{kind}.npz", allow_pickle=True)) for kind in exports}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latest", "best", "manual"])
def test_an_export_answers_as_predict_does_in_a_fresh_process(trained, served, kind):
    directory, _ = trained
    checkpoint = "best" if kind == "best" else "latest"
    served = served[kind]
    signatures = {
        *("serving_default", "sign", "sign/classify", "sign/regress"),
        *("kind", "kind/classify", "size", "size/regress"),
    }
    keys = [key.split(":") for key in served]
    assert {(loader, name) for loader, name, _ in keys} >= {
        (loader, name) for loader in ("v1", "v2") for name in signatures
    }
    expected = _predict(directory, checkpoint=checkpoint)
    for loader in ("v1", "v2"):
        for name, value in expected.items():
            task, output = name.split("/")
            for key in (f"{loader}:serving_default:{name}", f"{loader}:{task}:{output}"):
                if value.dtype.kind == "f":
                    np.testing.assert_allclose(served[key], value, atol=1e-6, err_msg=key)
                else:
                    np.testing.assert_array_equal(served[key], value, err_msg=key)
        probability = expected["sign/probability"]
        scores = served[f"{loader}:sign/classify:scores"]
        np.testing.assert_allclose(scores, np.stack([1 - probability, probability], 1), atol=1e-6)


def test_absent_optional_features_take_their_defaults(exported):
    x = tiny.SPLITS["test"]["x"][:4]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], exported)
        signature = meta.signature_def["size"]
        placeholder, output = signature.inputs["examples"].name, signature.outputs["value"].name
        values = [
            session.run(output, {placeholder: examples})
            for examples in ([_example(x=row) for row in x],
                             [_example(x=row, word=b"none") for row in x],
                             [_example(x=row, word=b"red") for row in x])
        ]  # fmt: skip
        with pytest.raises(tf.errors.InvalidArgumentError, match="x"):
            session.run(output, {placeholder: [_example(word=b"red")]})
    np.testing.assert_array_equal(values[0], values[1])
    assert np.abs(values[0] - values[2]).max() > 1e-6


def test_the_best_export_is_the_best_checkpoint(trained):
    directory, _ = trained
    evaluated = tiny.scalars(directory / "eval")
    losses = {step: value for (step, tag), value in evaluated.items() if tag == "average_loss"}
    step, loss = min(losses.items(), key=lambda item: item[1])
    record = checkpoints.BestKeeper(checkpoints.Best(), str(directory)).read()
    assert record.pop("measured_on")["rows"].startswith("48 rows, ")
    assert record == {
        "metric": "average_loss",
        "higher_is_better": False,
        "value": pytest.approx(loss),
        "step": step,
        "checkpoint": f"model.ckpt-{step}",
        "last_step": 45,
        "evaluations_since": [13, 20, 40, 45][::-1].index(step),
        "steps_since": [later for later in (13, 20, 40, 45) if later > step],
    }
    metrics = verbs.evaluate(tiny.make(), str(directory), checkpoint="best")
    assert metrics["global_step"] == step
    assert metrics["average_loss"] == pytest.approx(loss)
    assert tiny.checkpoint_steps(directory / "best") == [step]


def test_a_model_dir_can_be_moved(trained, tmp_path):
    moved = shutil.copytree(trained[0], tmp_path / "moved")
    for checkpoint in ("latest", "best"):
        path = run_directory.checkpoint_path(str(moved), checkpoint)
        assert pathlib.Path(path).parent.is_relative_to(moved)


def test_an_interrupted_evaluation_is_made_up_for(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(exporters.BestExporter, "export", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verbs.train(tiny.make(train_steps=20), str(tmp_path))
    assert tiny.checkpoint_steps(tmp_path) == [0, 20]
    assert not (tmp_path / "best").exists()
    assert verbs.train(tiny.make(train_steps=20), str(tmp_path))[1] == 0
    assert tiny.checkpoint_steps(tmp_path / "best") == [20]
    assert _newest(tmp_path / "export" / "best").is_dir()


def test_patience_stops_training_and_a_finished_run_stays_stopped(tmp_path, caplog):
    # A metric that never changes: the first evaluation is the best of all.
    def run(patience):
        best = checkpoints.Best(metric="sign/label_mean", higher_is_better=False, patience=patience)
        made = tiny.make(best=best, checkpoint_steps=5, keep_checkpoints=2)
        return verbs.train(made, str(tmp_path))

    metrics, steps = run(patience=2)
    assert (steps, metrics["global_step"]) == (15, 15)
    assert tiny.checkpoint_steps(tmp_path) == [10, 15]
    exported = _newest(tmp_path / "export" / "best")
    with caplog.at_level(logging.INFO, "mtl"):
        assert run(patience=2)[1] == 0
    assert "Best.patience has ended the run" in caplog.text
    assert run(patience=3)[1] == 5
    assert tiny.checkpoint_steps(tmp_path) == [15, 20]
    assert _newest(tmp_path / "export" / "best") == exported
    assert tiny.checkpoint_steps(tmp_path / "best") == [5]


def test_a_run_that_starts_again_knows_nothing_of_the_one_before(tmp_path, caplog):
    """As it does where its file `checkpoint` is deleted, and whatever else is left."""
    verbs.train(tiny.make(train_steps=20), str(tmp_path))
    shutil.copytree(tmp_path / "best", tmp_path / "best_before")
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "warm_start.txt").write_text("of the run before\n")
    # Better than any other could be, with the patience used up.
    path = tmp_path / "best" / "best.json"
    path.write_text(
        checksums.add_checksum(
            checksums.read_json(str(path), "") | {"value": -1, "evaluations_since": 3}
        )
    )
    far = {split: {**rows, "x": rows["x"] + 100} for split, rows in tiny.SPLITS.items()}
    best = checkpoints.Best(patience=3)
    with caplog.at_level(logging.INFO, "mtl"):
        metrics, steps = verbs.train(
            tiny.make(far, best, train_steps=8, checkpoint_steps=4), str(tmp_path)
        )
    assert (steps, metrics["global_step"]) == (8, 8)
    record = json.loads(path.read_text())
    curve = _shown(tmp_path / "eval", "average_loss")
    assert list(curve) == [4, 8]
    assert record["value"] == pytest.approx(min(curve.values()))
    assert record["last_step"] == 8 and record["step"] in (4, 8)
    assert tiny.checkpoint_steps(tmp_path / "best") == [record["step"]]
    assert list(_shown(tmp_path, "loss")) == []  # Losses are shown every 10 steps; the run has 8.
    learned = json.loads((tmp_path / "statistics" / "statistics.json").read_text())
    assert learned["numeric_x"]["mean"][0] == pytest.approx(100, abs=1)
    assert not (tmp_path / "warm_start.txt").exists()
    told = [line for line in caplog.messages if "evaluated" in line]
    assert [line.split(": ")[0] for line in told] == ["step 4 evaluated", "step 8 evaluated"]
    assert told[0].endswith(f"average_loss {curve[4]:.5g} (best so far)")
    assert "sign/auc " in told[0] and "kind/accuracy " in told[0] and "size/rmse " in told[0]


def _shown(folder, tag):
    """{step: value} as TensorBoard shows it, of which a run that goes back takes some back."""
    events = event_accumulator.EventAccumulator(str(folder), {"scalars": 0}).Reload()
    known = tag in events.Tags()["scalars"]
    return {event.step: event.value for event in events.Scalars(tag)} if known else {}


def test_an_evaluation_by_hand_leaves_the_runs_own_curve_alone(trained, tmp_path):
    model_dir = shutil.copytree(trained[0], tmp_path / "run")
    files = sorted(model_dir.rglob("events*"))
    made, early = tiny.make(), str(model_dir / "model.ckpt-20")
    before = [path.read_bytes() for path in files]
    assert verbs.evaluate(made, str(model_dir), checkpoint=early)["global_step"] == 20
    assert verbs.evaluate(made, str(model_dir), split="test")["global_step"] == 45
    assert sorted(model_dir.rglob("events*")) == files
    assert [path.read_bytes() for path in files] == before
    for checkpoint in ("latest", early, str(model_dir / "model.ckpt-40")):
        verbs.evaluate(made, str(model_dir), split="train", checkpoint=checkpoint)
    assert list(_shown(model_dir / "eval_train", "average_loss")) == [20, 40]


def test_checkpoint_secs_saves_by_time(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "SECS_PER_CALL", 0.0)  # Hooks see each step.
    run = {"checkpoint_steps": None, "keep_checkpoints": 9, "train_steps": 2}
    tiny.train(tiny.make(**run, checkpoint_secs=1e-6, steps_per_call=1), tmp_path / "often")
    assert tiny.checkpoint_steps(tmp_path / "often") == [0, 1, 2]
    tiny.train(tiny.make(**run, checkpoint_secs=1e6), tmp_path / "never")
    assert tiny.checkpoint_steps(tmp_path / "never") == [0, 2]


def test_an_unknown_metric_is_refused_before_the_first_step(tmp_path):
    made = tiny.make(best=checkpoints.Best(metric="sign/acuracy"))
    with pytest.raises(checks.UserError, match=r"^Best\.metric must .* mean 'sign/accuracy'\?$"):
        verbs.train(made, str(tmp_path))
    assert tiny.checkpoint_steps(tmp_path) == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Lifted(heads.Binary):
    """A head with a metric more, whose direction it does not declare."""

    def summary(self, sums):
        return {**super().summary(sums), "lift": sums["weight"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metric": "sign/auc", "higher_is_better": False},
            r"True for 'sign/auc', or left out, got False\.$",
        ),
        (
            {"metric": "average_loss", "higher_is_better": True},
            r"False for 'average_loss', or left out, got True\.$",
        ),
        *(
            (
                {"metric": metric},
                rf"True or False for '{metric}', whose direction its head does not declare, got No",
            )
            for metric in ("sign/lift", "sign/prediction_mean", "size/label_mean")
        ),
    ],
)
def test_a_wrong_or_a_missing_direction_is_refused_before_the_first_step(
    tmp_path, settings, message
):
    made = tiny.make(best=checkpoints.Best(**settings))
    lifted = dataclasses.replace(made.model, heads=[_Lifted(name="sign"), *made.model.heads[1:]])
    made = dataclasses.replace(made, model=lifted)
    with pytest.raises(checks.UserError, match=r"^Best\.higher_is_better must be " + message):
        verbs.train(made, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("metric", "better"), [("sign/auc", 0.7), ("average_loss", 0.5)])
def test_a_metric_alone_is_enough(tmp_path, metric, better):
    made = tiny.make(best=checkpoints.Best(metric=metric))
    keeper = evaluation.Evaluator(made, str(tmp_path), interruption.Interruption()).keeper
    keeper.update(str(tmp_path / "model.ckpt-10"), {metric: 0.6, "global_step": 10})
    assert keeper.is_best({metric: better, "global_step": 20})
    assert not keeper.is_best({metric: 1.2 - better, "global_step": 20})


_DEEPER = networks.SharedBottom(trunk=networks.MLP(layers=[8, 8]), tower=networks.MLP(layers=[4]))
_WIDER = networks.SharedBottom(
    trunk=networks.MLP(layers=[9], batch_norm=True), tower=networks.MLP(layers=[4])
)
_NUMERIC = features.Numeric(names=["x"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"network": _DEEPER}, "lacks 'network/trunk/hidden_0/bias'"),
        ({"network": _WIDER}, r"has shape \[8, 4\] there and \[9, 4\] here"),
        ({"optimizer": optimizers.Momentum()}, "lacks '.*/Momentum'"),
        (
            {"columns": [_NUMERIC, features.Categorical(names=["word"], dimension=3)]},
            r"has shape \[4, 2\] there and \[4, 3\] here",
        ),
        (
            {"columns": [_NUMERIC, features.Categorical(names=["word"], max_size=1)]},
            "trained without the statistics of categorical_word",
        ),
    ],
    ids=["deeper", "wider", "optimizer", "embedding", "statistics"],
)
def test_another_architecture_is_refused_and_nothing_overwritten(model_dir, changed, message):
    before = _content(model_dir)
    with pytest.raises(checks.UserError, match=message) as raised:
        verbs.train(tiny.make(**changed, train_steps=60), str(model_dir))
    assert "\n" not in str(raised.value)
    after = _content(model_dir)
    assert {path: after.get(path) for path in before} == before
    assert max(tiny.checkpoint_steps(model_dir)) == 45


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export"])
def test_the_later_verbs_refuse_another_architecture(trained, tmp_path, verb):
    made, directory = tiny.make(network=_WIDER, check_rows=256), str(trained[0])
    act = {
        "evaluate": lambda: verbs.evaluate(made, directory),
        "predict": lambda: list(verbs.predict(made, directory)),
        "export": lambda: verbs.export(made, directory, str(tmp_path / "export")),
    }
    with pytest.raises(checks.UserError, match=r"has shape \[8, 4\] there and \[9, 4\] here"):
        act[verb]()
    assert not list(tmp_path.rglob("saved_model.pb"))


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    for which in ("latest", "best", str(tmp_path / "model.ckpt-7")):
        with pytest.raises(checks.UserError, match="be 'latest', 'best' or a path"):
            run_directory.checkpoint_path(str(tmp_path), which)


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path):
    with pytest.raises(checks.UserError, match=r"got '20'. There is no checkpoint yet"):
        run_directory.checkpoint_path(str(tmp_path), "20")
    paths = [str(tmp_path / f"model.ckpt-{step}") for step in (5, 10)]
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[-1], paths)
    listed = re.escape(f"got '20'. There are: {paths[0]}, {paths[1]}.")
    with pytest.raises(checks.UserError, match=listed):
        run_directory.checkpoint_path(str(tmp_path), "20")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_steps": 0}, r"^Run\.train_steps must be at least 1, got 0"),
        ({"train_steps": 1.5}, r"^Run\.train_steps must be a whole number, got 1\.5"),
        ({"checkpoint_steps": 0}, r"^Run\.checkpoint_steps must be at least 1, got 0"),
        ({"checkpoint_secs": 1.0}, "set either checkpoint_steps or checkpoint_secs"),
        ({"checkpoint_steps": None}, "set either checkpoint_steps or checkpoint_secs"),
        ({"checkpoint_steps": None, "checkpoint_secs": -1.0}, r"^Run\.checkpoint_secs must be abo"),
        ({"seed": "1"}, r"^Run\.seed must be a whole number"),
    ],
)
def test_run_refuses_bad_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        experiment.Run(**{"train_steps": 1, **settings})


def _num_graphs():
    gc.collect()
    return sum(isinstance(thing, tf.Graph) for thing in gc.get_objects())


@pytest.mark.slow
def test_evaluating_again_and_again_keeps_no_graphs(trained, tmp_path):
    made = tiny.make()
    verbs.evaluate(made, str(trained[0]))
    before = _num_graphs()
    verbs.evaluate(made, str(trained[0]))
    assert _num_graphs() <= before
    verbs.train(tiny.make(train_steps=2, checkpoint_steps=1), str(tmp_path))
    assert _num_graphs() <= before + 1


@pytest.mark.slow
@pytest.mark.main_job
@pytest.mark.optimizes_graphs
@pytest.mark.always
def test_digits_reach_their_goal(tmp_path):
    made = config.load(["gin_configs/experiments/digits_shared_bottom.gin"])
    assert isinstance(made.data, pipeline.Pipeline)
    made = dataclasses.replace(made, run=dataclasses.replace(made.run, checkpoint_steps=500))
    metrics, steps = verbs.train(made, str(tmp_path))
    assert steps == made.run.train_steps
    assert metrics["digit/accuracy"] >= 0.97
    assert metrics["parity/auc"] >= 0.99
    best = verbs.evaluate(made, str(tmp_path), checkpoint="best")
    assert best["digit/accuracy"] >= metrics["digit/accuracy"]
