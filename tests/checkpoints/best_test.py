import json
import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checkpoints, checks
from mtl.checkpoints import mismatch

tf1 = tf.compat.v1


@pytest.mark.parametrize(
    ("higher", "value", "best", "expected"),
    [
        (False, 1.0, 2.0, True),
        (False, 2.0, 1.0, False),
        (True, 2.0, 1.0, True),
        (True, 1.0, 2.0, False),
        (True, 1.0, 1.0, False),
        (False, 1.0, 1.0, False),
        (False, 1.0, None, True),
        (False, math.nan, None, False),
        (True, math.nan, 1.0, False),
        (True, -math.inf, 1.0, False),
        (False, -math.inf, 1.0, True),
    ],
)
def test_is_better(higher, value, best, expected):
    chosen = checkpoints.Best(metric="m", higher_is_better=higher)
    assert chosen.is_better(value, best) is expected


def test_best_refuses_a_bad_patience():
    with pytest.raises(checks.UserError, match=r"^Best\.patience must be at least 1, got 0"):
        checkpoints.Best(patience=0)


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [(None, True, True), (None, False, False), (True, True, True), (False, False, False)]
    + [(True, None, True), (False, None, False), (None, None, None)],
)
def test_a_known_direction_need_not_be_set(given, known, expected):
    best = checkpoints.Best(metric="m", higher_is_better=given, patience=3)
    directed = best.with_direction(known)
    assert directed.higher_is_better is expected
    assert (directed.metric, directed.patience) == ("m", 3)


@pytest.mark.parametrize("known", [True, False])
def test_a_direction_that_contradicts_the_known_one_is_refused(known):
    best = checkpoints.Best(metric="click/auc", higher_is_better=not known)
    message = (
        rf"^Best\.higher_is_better must be {known} for 'click/auc', or left out, got {not known}"
    )
    with pytest.raises(checks.UserError, match=message):
        best.with_direction(known)


@pytest.mark.parametrize("value", ["False", "True", 0, 1, 1.0, []])
def test_a_direction_that_is_no_bool_is_refused(value):
    message = r"^Best\.higher_is_better must be True or False, got "
    with pytest.raises(checks.UserError, match=message):
        checkpoints.Best(metric="m", higher_is_better=value)


@pytest.mark.parametrize("value", [None, 3, ["sign/auc"]])
def test_a_metric_that_is_no_name_is_refused(value):
    with pytest.raises(checks.UserError, match=r"^Best\.metric must name an evaluation metric"):
        checkpoints.Best(metric=value)


def _save(directory, step):
    """A real checkpoint, whose variable `w` is the step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("w", initializer=float(step))
        session.run(weight.initializer)
        return tf1.train.Saver().save(session, str(directory / "model.ckpt"), global_step=step)


class _Run:
    """Evaluations one after the other; a new keeper each time, as after a restart."""

    def __init__(self, directory, **best):
        self.directory, self.best = directory, checkpoints.Best(metric="m", **best)

    @property
    def keeper(self):
        return checkpoints.BestKeeper(self.best, str(self.directory))

    def evaluate(self, step, value):
        metrics = {"m": np.float32(value), "global_step": np.int64(step)}
        is_best = self.keeper.is_best(metrics)
        self.keeper.update(_save(self.directory, step), metrics)
        return is_best

    def kept(self):
        """The weight in the best checkpoint, and the steps whose files lie there."""
        path = tf.train.latest_checkpoint(str(self.directory / "best"))
        steps = {int(file.stem.split("-")[1]) for file in (self.directory / "best").glob("*.index")}
        return float(tf.train.load_variable(path, "w")), steps


def test_the_best_checkpoint_is_kept_over_restarts(tmp_path):
    run = _Run(tmp_path, higher_is_better=True)
    assert run.keeper.read() == {}
    assert [run.evaluate(step, value) for step, value in [(1, 0.5), (2, 0.25), (3, 0.75)]] == [
        *(True, False, True)
    ]
    assert run.kept() == (3.0, {3})
    assert not run.evaluate(4, 0.5)
    assert not run.evaluate(5, math.nan)
    assert run.kept() == (3.0, {3})
    record = json.loads((tmp_path / "best" / "best.json").read_text())
    assert record.pop("checksum").startswith("crc32:")
    assert record == {
        "metric": "m",
        "higher_is_better": True,
        "value": 0.75,
        "step": 3,
        "checkpoint": "model.ckpt-3",
        "last_step": 5,
        "evaluations_since": 2,
        "steps_since": [4, 5],
    }
    # A copy is as old as its checkpoint, and so older than the export of that checkpoint.
    for copy in (tmp_path / "best").glob("*ckpt-3*"):
        assert copy.stat().st_mtime_ns == (tmp_path / copy.name).stat().st_mtime_ns
    assert sorted(path.suffix for path in (tmp_path / "best").glob("*ckpt-3*")) == [
        *(".data-00000-of-00001", ".index", ".meta")
    ]


@pytest.mark.parametrize(
    "damage", [lambda text: text[:20], lambda text: text.replace("0.5", "0.6")]
)
def test_a_damaged_record_of_the_best_is_one_line(tmp_path, damage):
    run = _Run(tmp_path)
    run.evaluate(1, 0.5)
    path = tmp_path / "best" / "best.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(checks.UserError, match="best.json is damaged: .* Delete the file: the"):
        run.keeper.read()


def test_lower_is_better_by_default(tmp_path):
    run = _Run(tmp_path)
    assert [run.evaluate(step, value) for step, value in [(1, 0.5), (2, 0.75), (3, 0.25)]] == [
        *(True, False, True)
    ]
    assert run.kept() == (3.0, {3})


def test_a_step_that_was_evaluated_does_not_count_again(tmp_path):
    run = _Run(tmp_path, patience=2)
    run.evaluate(1, 0.5)
    run.evaluate(2, 0.75)
    assert not run.evaluate(2, 0.25)
    assert not run.keeper.should_stop()
    assert run.keeper.read()["evaluations_since"] == 1


def test_patience_counts_evaluations_without_a_better_one(tmp_path):
    run, stops = _Run(tmp_path, patience=2), []
    for step, value in enumerate([0.5, 0.75, 0.25, 0.5, math.nan], start=1):
        run.evaluate(step, value)
        stops.append(run.keeper.should_stop())
    assert stops == [False, False, False, False, True]


def test_patience_counts_evaluations_that_were_nan_from_the_first(tmp_path):
    run = _Run(tmp_path, patience=2)
    run.evaluate(1, math.nan)
    run.evaluate(2, math.nan)
    assert run.keeper.should_stop()
    assert run.evaluate(3, 0.5)
    assert run.kept() == (3.0, {3})
    assert run.keeper.read()["evaluations_since"] == 0


def test_an_evaluation_with_a_nan_prediction_is_never_the_best(tmp_path):
    """Whatever the metric, here one of labels or of another task, and the first one too."""
    run = _Run(tmp_path, patience=2)
    metrics = {"m": 0.5, "a/nan_predictions": 0.0, "b/nan_predictions": 1.0, "global_step": 1}
    assert not run.keeper.is_best(metrics)
    run.keeper.update(_save(tmp_path, 1), metrics)
    assert "step" not in run.keeper.read()
    metrics |= {"m": 0.75, "b/nan_predictions": 0.0, "global_step": 2}
    assert run.keeper.is_best(metrics)
    run.keeper.update(_save(tmp_path, 2), metrics)
    metrics |= {"m": 0.25, "a/nan_predictions": 3.0, "global_step": 3}
    run.keeper.update(_save(tmp_path, 3), metrics)
    assert run.kept() == (2.0, {2})
    assert run.keeper.read()["evaluations_since"] == 1


def test_the_record_describes_the_rows_of_the_last_evaluation(tmp_path):
    keeper = _Run(tmp_path).keeper
    for step, description in ((1, {"rows": "a"}), (2, {"rows": "b"}), (3, {})):
        metrics = {"m": 1.0, "global_step": step}
        keeper.update(_save(tmp_path, step), metrics, description)
        # An evaluation without a description keeps the recorded one.
        expected = description or {"rows": "b"}
        assert keeper.read()["measured_on"] == expected


def test_another_metric_starts_anew(tmp_path):
    _Run(tmp_path).evaluate(1, 0.25)
    other = checkpoints.BestKeeper(checkpoints.Best(metric="n"), str(tmp_path))
    assert other.read() == {}
    line = (
        "The best checkpoint of this run has the lowest m, but Best now asks for the lowest n: the "
    )
    assert other.describe_other_goal() == line + "next evaluation replaces the checkpoint."
    other.update(_save(tmp_path, 2), {"n": 0.5, "global_step": 2})
    assert other.read()["step"] == 2 and not other.describe_other_goal()


def test_another_direction_starts_anew(tmp_path):
    _Run(tmp_path).evaluate(1, 0.25)
    other = _Run(tmp_path, higher_is_better=True)
    assert other.keeper.read() == {}
    assert other.evaluate(2, 0.125)


def test_the_record_of_an_older_version_is_read(tmp_path):
    """The record lacks the steps of evaluations without an improvement."""
    run = _Run(tmp_path, higher_is_better=True, patience=3)
    run.evaluate(10, 0.5)
    path = tmp_path / "best" / "best.json"
    record = json.loads(path.read_text())
    del record["steps_since"], record["checksum"]
    path.write_text(json.dumps(record | {"last_step": 30, "evaluations_since": 2}))
    assert run.keeper.last_step == 30
    assert not run.keeper.should_stop()
    assert not run.evaluate(40, 0.25)
    assert run.keeper.should_stop()
    assert run.keeper.read()["value"] == 0.5


def test_a_run_that_goes_back_forgets_the_evaluations_of_later_steps(tmp_path):
    run = _Run(tmp_path, higher_is_better=True, patience=2)
    for step, value in [(10, 0.5), (20, 0.75), (30, 0.25), (40, 0.5)]:
        run.evaluate(step, value)
    whole = run.keeper.read()
    assert run.keeper.should_stop()
    run.keeper.rewind(40)
    assert run.keeper.read() == whole
    run.keeper.rewind(35)
    record = run.keeper.read()
    assert (record["last_step"], record["evaluations_since"], record["step"]) == (30, 1, 20)
    assert not run.keeper.should_stop()
    assert run.kept() == (20.0, {20})
    run.evaluate(40, 0.5)
    assert run.keeper.read() == whole  # Trained once more to the bit, as if it had not been left.
    run.keeper.rewind(30)
    assert run.evaluate(40, 0.875)
    assert run.kept() == (40.0, {40})


@pytest.mark.parametrize("step", [0, 10])
def test_a_best_of_steps_that_are_not_trained_yet_is_the_best_no_longer(tmp_path, step):
    run = _Run(tmp_path, higher_is_better=True)
    run.evaluate(20, 0.75)
    run.keeper.rewind(step)
    assert run.keeper.read() == {} and run.keeper.last_step == 0
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) is None
    assert run.evaluate(15, 0.25)
    assert run.kept() == (15.0, {15})


def test_going_back_where_every_evaluation_was_nan(tmp_path):
    run = _Run(tmp_path, patience=2)
    run.evaluate(10, math.nan)
    run.evaluate(20, math.nan)
    run.keeper.rewind(10)
    assert run.keeper.last_step == 10 and not run.keeper.should_stop()
    run.keeper.rewind(5)
    assert run.keeper.read() == {}
    run.keeper.rewind(0)
    assert run.keeper.read() == {}


def test_going_back_with_the_record_of_an_older_version(tmp_path):
    run = _Run(tmp_path, patience=2)
    run.evaluate(10, 0.5)
    path = tmp_path / "best" / "best.json"
    record = json.loads(path.read_text())
    del record["steps_since"], record["checksum"]
    path.write_text(json.dumps(record | {"last_step": 30, "evaluations_since": 2}))
    run.keeper.rewind(20)
    assert run.keeper.last_step == 10 and not run.keeper.should_stop()
    assert run.kept() == (10.0, {10})


SAVED = {"network/kernel": [3, 8], "network/bias": [8], "head/a/kernel": [8, 1]}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"network/kernel": [3, 8]}, r"it also holds 'head/a/kernel' \(1 more differ\)\."),
        ({**SAVED, "network/bias": [9]}, r"'network/bias' has shape \[8\] there and \[9\] here\."),
        ({**SAVED, "head/b/kernel": [8, 1]}, r"lacks 'head/b/kernel'\. "),
        (
            {"network/kernels": [3, 8], "network/bias": [8], "head/a/kernel": [8, 1]},
            r"lacks 'network/kernels' \(1 more differ\)\.",
        ),
        ({name: [1, *shape] for name, shape in SAVED.items()}, r"\(2 more differ\)"),
    ],
    ids=["extra", "shape", "absent", "renamed", "several"],
)
def test_a_checkpoint_of_another_architecture_is_refused(wanted, message):
    with pytest.raises(checks.UserError, match=message) as raised:
        mismatch.require_same("runs/a/model.ckpt-5", SAVED, wanted)
    text = str(raised.value)
    assert text.startswith("checkpoint runs/a/model.ckpt-5 is of another architecture: ")
    assert "\n" not in text
    assert ".." not in text


def test_the_same_architecture_passes():
    mismatch.require_same("model.ckpt-5", SAVED, dict(SAVED))


def test_evaluations_before_a_step_are_no_candidates(tmp_path):
    keeper = checkpoints.BestKeeper(
        checkpoints.Best(metric="loss", higher_is_better=False, patience=2), str(tmp_path), 30
    )
    for step, loss in ((10, 0.1), (20, 0.2), (25, 0.3)):
        keeper.update(str(tmp_path / "none"), {"global_step": step, "loss": loss})
        assert not keeper.is_best({"global_step": step + 1, "loss": 0.0})
    assert keeper.last_step == 25 and not keeper.should_stop()
    assert "value" not in keeper.read()
    assert keeper.is_best({"global_step": 30, "loss": 0.9})
