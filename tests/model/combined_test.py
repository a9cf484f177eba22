"""Metrics of several tasks as one number: by hand, and in whole runs."""

import dataclasses
import json
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from mtl import checkpoints, checks, types, verbs
from mtl.model import combined
from mtl.monitoring import event_files, summary
from mtl.runs import estimators, fitting
from tests import tiny

tf1 = tf.compat.v1

VALUES = {"a/auc": 0.9, "a/average_loss": 0.3, "b/rmse": 1.5, "b/log": -3.0}
HIGHER = {"a/auc": True, "a/average_loss": False, "b/rmse": False, "b/log": True}


def combine(part, values=VALUES):
    with tf.Graph().as_default(), tf1.Session() as session:
        given = {name: tf.constant(values[name]) for name in part.metrics}
        return session.run(part.combine(given, HIGHER))


def test_the_mean_gain_is_a_mean_over_tasks_of_means_over_their_metrics():
    part = combined.MeanGain(
        baselines={"a/auc": 0.8, "a/average_loss": 0.4, "b/rmse": 1.0, "b/log": -4.0}
    )
    # A log-likelihood of -3 is better than -4; the negative sign does not reverse the order.
    expected = ((0.125 + 0.25) / 2 + (-0.5 + 0.25) / 2) / 2
    np.testing.assert_allclose(combine(part), expected, rtol=1e-6)
    alone = combined.MeanGain(baselines={"a/auc": 0.8, "a/average_loss": 0.4, "b/rmse": 1.0})
    np.testing.assert_allclose(combine(alone), ((0.125 + 0.25) / 2 - 0.5) / 2, rtol=1e-6)


def test_it_is_undefined_where_a_metric_is():
    part = combined.MeanGain(baselines={"a/auc": 0.95, "b/rmse": 2.0})
    assert np.isnan(combine(part, {**VALUES, "b/rmse": np.nan}))


BASELINES = {"sign/auc": 0.5, "size/rmse": 2.0}


def make(parts, best="mean_gain", **run):
    made = tiny.make(best=checkpoints.Best(metric=best, patience=2), **run)
    heads = [head for head in made.model.heads if head.name != "kind"]
    model = dataclasses.replace(made.model, heads=heads, combined_metrics=parts)
    return dataclasses.replace(made, model=model)


def train(made, model_dir):
    """Train without the exports, which take most of such a run."""
    with mock.patch.object(estimators, "build_exporter", return_value=lambda *_: None):
        return verbs.train(made, str(model_dir))[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose best checkpoint is chosen by a combined metric, and its folder."""
    path = tmp_path_factory.mktemp("runs") / "first"
    parts = [combined.MeanGain(baselines=BASELINES)]
    made = make(parts, train_steps=20, checkpoint_steps=10)
    return made, path, train(made, path)


@pytest.mark.medium
def test_a_combined_metric_is_one_of_every_evaluation(run):
    made, path, metrics = run
    auc, rmse = metrics["sign/auc"], metrics["size/rmse"]
    gain = ((auc - 0.5) / 0.5 + (2.0 - rmse) / 2.0) / 2
    assert metrics["mean_gain"] == pytest.approx(gain, abs=1e-6)
    assert verbs.evaluate(made, str(path))["mean_gain"] == metrics["mean_gain"]
    assert f"mean_gain            {metrics['mean_gain']:.4f}" in summary.metrics_table(metrics)
    assert made.model.find_main_metrics(metrics)[-1] == "mean_gain"


@pytest.mark.medium
def test_the_best_checkpoint_is_the_one_of_the_highest_value(run):
    _, path, _ = run
    record = json.loads((path / "best" / "best.json").read_text())
    curve = event_files.read_record(str(path / "eval")).curves["mean_gain"]
    assert record["metric"] == "mean_gain" and record["higher_is_better"] is True
    assert set(curve) == {10, 20}
    assert record["step"] == max(curve, key=curve.get)
    assert record["value"] == pytest.approx(max(curve.values()))


@pytest.mark.medium
def test_baselines_are_read_from_a_run_once(run, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(run[1], source)
    step = json.loads((source / "best" / "best.json").read_text())["step"]
    curves = event_files.read_record(str(source / "eval")).curves
    given = {"sign/auc": str(source), "size/rmse": 1.0}
    made = make([combined.MeanGain(baselines=given)], train_steps=2, checkpoint_steps=2)
    found = train(made, tmp_path / "run")
    auc = curves["sign/auc"][step]
    gain = ((found["sign/auc"] - auc) / auc + (1 - found["size/rmse"])) / 2
    assert found["mean_gain"] == pytest.approx(gain, abs=1e-6)
    # The run that it was read from may go.
    shutil.rmtree(source)
    (part,) = made.model.fitted(fitting.load_statistics(str(tmp_path / "run"))).combined_metrics
    assert part.baselines == {"sign/auc": auc, "size/rmse": 1.0}
    other = make([combined.MeanGain(baselines={**given, "size/rmse": 2.0})], train_steps=4)
    with pytest.raises(checks.UserError, match=r"MeanGain\.baselines must be as when the run was"):
        verbs.train(other, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("baselines", "told"),
    [
        ({"sign/acu": 0.5}, r"MeanGain 'mean_gain' must be one of .*, got 'sign/acu'\. Did you m"),
        ({"sign/label_mean": 0.5}, "be a metric with a better direction, got 'sign"),
        ({"sign/auc": "none"}, r"\['sign/auc'\] must be a number, or the folder of a run that was"),
        ({"sign/acu": "RUN"}, r"a metric of .*first must be one of .*Did you mean 'sign/auc'\?"),
        ({"sign/precision": "ZERO"}, r"must not be 0, as a gain is divided by it, got 0"),
    ],
)
@pytest.mark.medium
def test_mistakes_are_told_before_training(baselines, told, run, tmp_path):
    if baselines.get("sign/precision") == "ZERO":
        baselines = {"sign/precision": str(tmp_path / "zero")}
        value = tf1.Summary.Value(tag="sign/precision", simple_value=0.0)
        with tf.Graph().as_default():
            writer = tf1.summary.FileWriter(str(tmp_path / "zero" / "eval"))
            writer.add_summary(tf1.Summary(value=[value]), 5)
            writer.close()
    baselines = {n: str(run[1]) if value == "RUN" else value for n, value in baselines.items()}
    made = make([combined.MeanGain(baselines=baselines)])
    with pytest.raises(checks.UserError, match=told) as caught:
        verbs.train(made, str(tmp_path / "run"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("baselines", "told"),
    [
        ({}, r"MeanGain\.baselines must hold a metric"),
        ({"a/auc": 0.0}, r"baselines\['a/auc'\] must not be 0, as a gain is divided by it"),
        ({"a/auc": float("nan")}, r"baselines\['a/auc'\] must be a float32, got nan"),
        ({"a/auc": None}, r"baselines\['a/auc'\] must map metrics of tasks to numbers, or to fold"),
    ],
)
def test_baselines_that_are_none_are_refused(baselines, told):
    with pytest.raises(checks.UserError, match=told):
        combined.MeanGain(baselines=baselines)


def test_names_are_unique():
    part = combined.MeanGain(baselines=BASELINES, name="average_loss")
    with pytest.raises(checks.UserError, match="combined_metrics must hold each name once, got"):
        make([part])


@pytest.mark.parametrize("better", [None, "lower", 1])
def test_an_own_metric_says_what_is_better(better):
    """Without the attribute, the worst checkpoint of a cost would be kept as the best."""

    class Cost(types.CombinedMetric):
        name, metrics = "cost", ("size/rmse",)

        def combine(self, values, directions):
            return values["size/rmse"]

    if better is not None:
        Cost.higher_is_better = better
    made = tiny.make().model
    with pytest.raises(checks.UserError, match="Cost.higher_is_better must be True or False, got"):
        dataclasses.replace(made, combined_metrics=[Cost()])
    Cost.higher_is_better = False
    changed = dataclasses.replace(made, combined_metrics=[Cost()])
    assert changed.find_direction("cost") is False


def test_a_metric_that_is_read_but_not_listed_is_one_line():
    class Cost(types.CombinedMetric):
        name, metrics, higher_is_better = "cost", ("a/auc",), True

        def combine(self, values, directions):
            return values["b/rmse"]

    metrics = {name: (value, None) for name, value in VALUES.items()}
    told = r"Cost.metrics must list each metric that combine reads, got \['a/auc'\]. Add 'b/rmse'"
    with pytest.raises(checks.UserError, match=told):
        combined.build_metrics([Cost()], metrics, HIGHER.get)
