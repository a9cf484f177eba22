"""The scores of trivial models equal scores that are computed from labels."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from mtl import heads
from mtl.tools.reports import baselines, blocks, held_out, page, report
from tests import tiny
from tests.tools.reports import runs


def _numbers(label):
    ones = np.ones(len(label))
    return held_out.Rows("number", label, ones, ones, np.abs(label - 1), ones)


def test_auc_is_compared_with_chance_and_accuracy_with_the_most_frequent_class():
    metrics = {"sign/auc": 0.75, "sign/accuracy": 0.8, "kind/accuracy": 0.8}
    metrics["kind/accuracy_baseline"] = 0.5
    found = baselines.judge(heads.Binary(name="sign"), metrics, None)
    assert (found.metric, found.baseline, found.skill, found.is_better) == ("auc", 0.5, 0.5, True)
    found = baselines.judge(heads.MultiClass(name="kind", classes=3), metrics, None)
    assert (found.metric, found.baseline) == ("accuracy", 0.5)
    assert found.skill == pytest.approx(0.6)


def test_classes_of_places_are_compared_with_the_most_frequent_one():
    metrics = {"kind/miou": 0.4, "kind/pixel_accuracy": 0.8, "kind/accuracy_baseline": 0.5}
    found = baselines.judge(heads.Segmentation(name="kind", classes=3), metrics, None)
    assert (found.metric, found.baseline) == ("pixel_accuracy", 0.5)


def test_the_error_of_the_mean_is_read_off_the_metrics():
    label = np.random.default_rng(0).gamma(2.0, size=500)
    predicted = label + np.random.default_rng(1).normal(size=500)
    squares = float(np.mean((label - predicted) ** 2))
    metrics = {"size/rmse": squares**0.5, "size/r2": 1 - squares / float(label.var())}
    found = baselines.judge(heads.Regression(name="size"), metrics, None)
    assert found.baseline == pytest.approx(float(label.std()))
    assert found.is_better == (squares**0.5 < label.std())


def test_the_error_of_the_median_needs_the_labels():
    label = np.array([0.0, 0.0, 1.0, 2.0, 2.0, 2.0])
    head = heads.Ordinal(name="level", classes=3)
    found = baselines.judge(head, {"level/mae": 0.1}, _numbers(label))
    assert found.baseline == pytest.approx(np.mean(np.abs(label - 1.5)))
    assert baselines.judge(head, {"level/mae": 0.1}, None).baseline is None


def test_a_model_that_is_undefined_or_worse_does_not_pass():
    head = heads.Binary(name="sign")
    for value in (float("nan"), 0.5, 0.4):
        assert baselines.judge(head, {"sign/auc": value}, None).is_better is False
    run = runs.make(metrics={"sign/auc": 0.4, "kind/accuracy": 0.3, "kind/accuracy_baseline": 0.2})
    verdicts = report._judge(run, None)
    lines = report._sum_up(run, verdicts)
    assert lines[0] == (
        "No better than a trivial model, which knows only the labels: sign.",
        "warning",
    )


def test_what_is_undefined_is_told_apart_from_what_is_worse():
    metrics = {"sign/auc": float("nan"), "kind/accuracy": 0.3, "kind/accuracy_baseline": 0.2}
    run = runs.make(metrics=metrics)
    lines = report._sum_up(run, report._judge(run, None))
    (line, mood) = lines[0]
    assert line.startswith("Metric undefined, so not compared") and line.endswith(": sign (auc).")
    assert mood == "warning" and len(lines) == 1  # Nor do "all tasks" beat a trivial model.
    verdicts = blocks.Verdicts(report._judge(run, None))
    whole = blocks.Page("a", "", "", [], [blocks.Section("a", "A", [verdicts])], [])
    assert "undefined: no labels" in page.render(whole)


def _binary(score, target):
    ones = np.ones(len(target))
    return held_out.Rows("binary", target, (score > 0.5).astype(int), score, ones, ones)


def test_the_lead_of_random_scores_is_spread_as_the_formula_says():
    rng, leads = np.random.default_rng(0), []
    head, metrics = heads.Binary(name="sign"), {"sign/auc": 0.6}
    for _ in range(2000):
        rows = _binary(rng.integers(0, 400, 40) / 400, (np.arange(40) < 15).astype(int))
        leads.append(baselines.judge(head, metrics, rows).deviations)
    assert abs(np.mean(leads)) < 0.07 and np.std(leads) == pytest.approx(1, abs=0.05)


@pytest.mark.medium
@pytest.mark.parametrize("heaviest", [1.0, 30.0, 1000.0])
def test_the_lead_of_random_scores_is_spread_as_the_formula_says_whatever_rows_weigh(heaviest):
    rng, leads = np.random.default_rng(1), []
    head, metrics = heads.Binary(name="sign"), {"sign/auc": 0.6}
    weight = np.where(np.arange(60) % 10 < 2, heaviest, 1.0)
    for draw in range(2000):
        rows = _binary(rng.random(60), (np.arange(60) < 25).astype(int))._replace(weight=weight)
        leads.append(baselines.judge(head, metrics, rows).deviations)
        if draw < 20:
            area = sklearn_metrics.roc_auc_score(rows.target, rows.score, sample_weight=weight)
            assert np.sign(leads[-1]) == np.sign(area - 0.5)
    assert abs(np.mean(leads)) < 0.07 and np.std(leads) == pytest.approx(1, abs=0.05)
    assert np.mean(np.array(leads) > 2) < 0.035


def test_the_lead_of_rows_that_weigh_little_is_not_clear():
    """30 rows of weight 1,000 without a signal among 1,970 of weight 1 with one."""
    rng, clear = np.random.default_rng(2), []
    head, metrics = heads.Binary(name="sign"), {"sign/auc": 0.51}
    for _ in range(300):
        target, is_heavy = rng.integers(0, 2, 2000), np.arange(2000) < 30
        score = rng.random(2000) + np.where(is_heavy, 0, 0.3 * target)
        rows = _binary(score, target)._replace(weight=np.where(is_heavy, 1000.0, 1.0))
        clear.append(baselines.judge(head, metrics, rows).is_clear)
    assert np.mean(clear) < 0.05


def test_a_lead_that_may_be_chance_is_said_to_be():
    target = np.arange(20) % 2
    few = _binary(np.where(np.arange(20) % 7 < 4, target, 1 - target) * 0.9, target)
    many = _binary(np.tile(few.score, 50), np.tile(target, 50))
    head, metrics = heads.Binary(name="sign"), {"sign/auc": 0.6}
    unclear, clear = (baselines.judge(head, metrics, rows) for rows in (few, many))
    assert unclear.is_better and not unclear.is_clear and clear.is_clear
    run = runs.make(metrics=metrics)
    assert report._sum_up(run, [clear])[0][1] == ""
    assert report._sum_up(run, [unclear])[0] == (
        "Better than a trivial model, but the difference may be due to chance: sign.",
        "warning",
    )


def test_tasks_without_a_trivial_model_are_not_counted_among_the_better_ones():
    better = baselines.Verdict("a", "auc", True, 0.9, 0.5, "scores at random")
    unknown = baselines.Verdict("b", "mae", False, 0.1, None, "")
    run = runs.make(metrics={"a/auc": 0.9})
    for verdicts, text in (
        ([better], "The task beats"),
        ([better, unknown], "1 of 2 tasks beats"),
        ([better, better, unknown], "2 of 3 tasks beat"),
        ([better, better, better], "All 3 tasks beat"),
    ):
        line, _ = report._sum_up(run, verdicts)[0]
        assert line == f"{text} a trivial model, which knows only the labels."


def test_accuracies_are_compared_row_by_row():
    rng = np.random.default_rng(0)
    target, predicted = rng.integers(0, 3, 300), rng.integers(0, 3, 300)
    predicted = np.where(rng.random(300) < 0.2, target, predicted)
    ones = np.ones(300)
    rows = held_out.Rows("classes", target, predicted, ones, ones, ones)
    metrics = {"kind/accuracy": 0.5, "kind/accuracy_baseline": 0.4}
    found = baselines.judge(heads.MultiClass(name="kind", classes=3), metrics, rows)
    lead = 1.0 * (target == predicted) - (target == np.bincount(target).argmax())
    assert found.deviations == pytest.approx(lead.mean() / (lead.std() / np.sqrt(300)))


def test_a_task_without_metrics_has_no_verdict():
    assert baselines.judge(tiny.make().model.heads[0], {}, None) is None
