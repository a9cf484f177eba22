"""One pass over held-out rows, beside what the run's own evaluation says of them."""

import dataclasses
import math

import numpy as np
import pytest

from mtl import heads, verbs
from mtl.tools.reports import held_out, page, record, report, splits
from tests import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The experiment, its folder, and the metrics of its evaluation."""
    folder = str(tmp_path_factory.mktemp("held_out") / "run")
    made = tiny.make(train_steps=10)
    metrics, _ = verbs.train(made, folder)
    return made, folder, metrics


def test_the_pass_and_the_evaluation_agree(trained):
    made, folder, metrics = trained
    seen = held_out.predict_rows(made, folder, f"{folder}/model.ckpt-10", 1000)
    assert seen.rows == 48 and seen.is_whole and set(seen.fields) == {"word"}
    for task in ("sign", "kind"):
        rows = seen.tasks[task]
        right = np.average(rows.target == rows.predicted, weights=rows.weight)
        assert right == pytest.approx(metrics[f"{task}/accuracy"], abs=1e-6)
        loss = np.average(rows.error, weights=rows.weight)
        assert loss == pytest.approx(metrics[f"{task}/average_loss"], rel=1e-4)
    assert seen.tasks["kind"].weight.sum() == 32  # A third of the labels is missing.
    size = seen.tasks["size"]
    assert size.error.mean() == pytest.approx(metrics["size/mae"], rel=1e-5)
    assert math.sqrt(np.square(size.error).mean()) == pytest.approx(metrics["size/rmse"], rel=1e-5)


def test_the_pass_finds_changed_values_in_as_many_rows(trained):
    made, folder, _ = trained
    run = record.read_run(made, folder)
    seen = held_out.predict_rows(made, folder, run.checkpoint, 1000)
    assert seen.hashes == run.best["measured_on"]["fields"]
    assert not run.describe_change(seen.total, seen.hashes)
    test = {**tiny.SPLITS["test"], "sign": 1 - tiny.SPLITS["test"]["sign"]}
    other = tiny.make(train_steps=10, splits={**tiny.SPLITS, "test": test})
    seen = held_out.predict_rows(other, folder, run.checkpoint, 1000)
    assert "(sign)" in run.describe_change(seen.total, seen.hashes)
    test = {**tiny.SPLITS["test"], "x": tiny.SPLITS["test"]["x"] + 1}
    other = tiny.make(train_steps=10, splits={**tiny.SPLITS, "test": test})
    seen = held_out.predict_rows(other, folder, run.checkpoint, 1000)
    assert "(x)" in run.describe_change(seen.total, seen.hashes)


def test_a_part_of_the_rows_is_called_a_part(trained):
    made, folder, _ = trained
    seen = held_out.predict_rows(made, folder, f"{folder}/model.ckpt-10", 32)
    assert seen.rows == 32 and seen.total == 48 and not seen.is_whole and not seen.hashes


def test_heads_of_several_labels_and_of_none(tmp_path):
    """Labels come as an array, of which some are missing, and as lists."""
    splits_ = {}
    for split, own in tiny.SPLITS.items():
        signs = (own["x"][:, :2] > 0).astype(np.int64)
        signs[::5, 0] = -1
        lists = [[b"abc"[c : c + 1] for c in np.flatnonzero(row > 0)] for row in own["x"]]
        splits_[split] = {"x": own["x"], "word": own["word"], "signs": signs, "lists": lists}
    labels = {"signs": ("int64", (2,)), "lists": ("string", (None,))}
    made = tiny.make(splits=splits_, train_steps=10)
    own = [
        heads.MultiLabel(name="signs", classes=2),
        heads.MultiLabel(name="lists", classes=["a", "b", "c"]),
        heads.GaussianMixture(name="usual", num_components=2),
    ]
    made = dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, spec=dataclasses.replace(tiny.SPEC, labels=labels)),
        model=dataclasses.replace(made.model, heads=own),
    )
    folder = str(tmp_path / "run")
    metrics, _ = verbs.train(made, folder)
    seen = held_out.predict_rows(made, folder, f"{folder}/model.ckpt-10", 1000)
    assert not seen.tasks and set(seen.labels) == {"signs", "lists"}
    for task, found in seen.labels.items():
        mean = np.average(found.errors, weights=found.weights)
        assert mean == pytest.approx(metrics[f"{task}/average_loss"], rel=1e-4)
        right = found.entries.target == found.entries.predicted
        rate = np.average(right, weights=found.entries.weight)
        assert rate == pytest.approx(metrics[f"{task}/accuracy"], abs=1e-6)
    assert seen.labels["signs"].weights.sum() == 48 * 2 - 10
    log_density = seen.unlabelled["usual"].values
    assert log_density.mean() == pytest.approx(metrics["usual/log_likelihood"], rel=1e-4)
    text = page.render(report.describe_run(made, folder, 1000))
    for says in ("ROC: of all labels", "whose log density is at most", "each label of a row"):
        assert says in text


def test_what_a_split_holds(trained):
    made, _, _ = trained
    facts = splits.look_at(made, "train", 1000)
    assert facts.rows == facts.total == 96
    assert facts.tasks["kind"].labelled == 64 and facts.missing["kind"] == 32
    assert facts.missing["word"] == facts.missing["x"] == 0
    rows = tiny.SPLITS["train"]
    known = rows["kind"][rows["kind"] >= 0]
    assert facts.tasks["kind"].counts == {str(c): int((known == c).sum()) for c in range(3)}
    assert facts.tasks["size"].mean == pytest.approx(rows["size"].mean())
    assert facts.tasks["size"].spread == pytest.approx(rows["size"].std())
    part = splits.look_at(made, "train", 32)
    assert part.rows == 32 and part.total == 96


def test_the_report_of_numbers_with_missing_labels(trained):
    made, folder, metrics = trained
    page = report.describe_run(made, folder, 1000)
    verdict = page.sections[0].blocks[-1].verdicts
    (size,) = [one for one in verdict if one.task == "size"]
    assert (size.metric, size.value) == ("rmse", pytest.approx(metrics["size/rmse"]))
    assert size.baseline == pytest.approx(tiny.SPLITS["test"]["size"].std(), rel=1e-4)
    assert page.state == "finished" and {one.key for one in page.sections} >= {"data", "evaluation"}
