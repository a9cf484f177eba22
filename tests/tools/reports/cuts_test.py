"""A page that leaves something out says how much."""

import dataclasses
import math

import numpy as np

from mtl.monitoring import event_files
from mtl.tools.reports import (
    blocks,
    comparison,
    comparison_page,
    curve_sections,
    held_out,
    row_sections,
    size_sections,
    splits,
)
from tests.tools.reports import runs


def _lines(told):
    """The texts of blocks, those folded included."""
    found = []
    for one in told:
        found += [one.text] if isinstance(one, blocks.Text) else []
        found += _lines(one.blocks) if isinstance(one, blocks.Fold) else []
    return found


def _facts(tasks=(), missing=(), classes=2):
    counts = {str(place): 1 for place in range(classes)}
    labels = splits.Labels(classes, counts, classes, ("0", 1), None, None)
    return splits.Facts("train", 9, 9, dict.fromkeys(tasks, labels), dict.fromkeys(missing, 3))


def test_labels_and_classes_of_many_tasks():
    run = runs.of_many_tasks(120, 1)
    tasks = run.experiment.model.tasks
    lines = _lines(row_sections.tell_data(run, [_facts(tasks)], []))
    assert "100 of 120 tasks are shown." in lines and "20 of 120 tasks are shown." in lines
    lines = _lines(row_sections.tell_data(run, [_facts(tasks[:1], classes=101)], []))
    assert "Left out, because they have more than 100 classes: task_0." in lines


def test_all_other_fields_are_full_only_where_all_are_told():
    run = runs.make()
    *_, table = row_sections.tell_data(run, [_facts(missing=["a", "b"])], [])
    assert table.caption.endswith("all other fields are complete")
    *_, table, line = row_sections.tell_data(run, [_facts(missing=map(str, range(300)))], [])
    assert "all others" not in table.caption
    assert line.text == "200 of 300 fields with missing values are shown."


def test_curves_and_evaluations_of_many_tasks():
    run = runs.of_many_tasks(50, 2)
    line = "20 of 50 tasks, those with the lowest skill scores, are shown."
    assert line in _lines(curve_sections.tell_curves(run, []))
    assert line in _lines(row_sections.tell_evaluation(run, [], None))
    few = runs.of_many_tasks(3, 2)
    assert not [one for one in _lines(curve_sections.tell_curves(few, [])) if "shown" in one]


def test_slices_that_are_far_worse():
    rng = np.random.default_rng(0)
    fields = {f"field_{i}": rng.integers(0, 2, 2000) for i in range(12)}
    error = sum(fields.values()) + rng.random(2000)
    seen = held_out.Seen(2000, 2000, {}, fields)
    told = row_sections._tell_slices(error, np.ones(2000), seen, "distance")
    assert _lines(told) == ["8 of 12 such slices are shown."]


def test_confusions_of_many_classes():
    rows = {(place, place + 1): 1.0 for place in range(30)}
    table = row_sections._tell_confusions([str(place) for place in range(40)], rows)
    assert table.caption.endswith(": 15 of 30 pairs shown") and len(table.rows) == 15


def test_pairs_gates_and_weights():
    points = {0: 0.1, 10: -0.2}
    curves = {f"surgery/cosine/{i}/{j}": points for i in range(8) for j in range(i)}
    curves |= {f"gate/gate_{i}/expert_{j}": points for i in range(25) for j in range(6)}
    run = runs.make(training=curves.items())
    (line,) = _lines(curve_sections.tell_balancing(run))
    assert line == "20 of 28 pairs of tasks, those with the lowest cosines, are shown."
    lines = _lines(curve_sections.tell_gates(run))
    assert lines == ["20 of 25 gates are shown.", "100 of 150 weights are shown."]


def test_scalars_that_were_not_finite():
    broken = {f"loss_{i}": {5} for i in range(14)}
    record = event_files.Record({"loss": {1: 0.5}}, broken)
    run = dataclasses.replace(runs.make(), training=record)
    lines = _lines(size_sections.tell_problems(run, []))
    assert lines[-1] == "10 of 14 scalars that were not finite are shown."


def test_scalars_of_a_surgery_that_a_step_does_not_measure_are_no_problem():
    broken = {"surgery/norm/a": {5}, "first/surgery/cosine/a/b": {5}, "loss": {5}}
    training = event_files.Record({"surgery/cosine/a/b": {10: -0.5}, "weight/a": {10: 1}}, broken)
    run = dataclasses.replace(runs.make(), training=training)
    (line,) = _lines(size_sections.tell_problems(run, []))
    assert line.startswith("loss was not finite")
    (table,) = curve_sections.tell_balancing(run)
    assert [row[:2] for row in table.rows] == [["a/b", -0.5]]


def test_the_loss_of_a_task_called_surgery_is_a_problem_if_it_was_not_finite():
    broken = {"surgery/loss": {5}, "weight/surgery": {7}, "surgery/norm/surgery": {5}}
    training = event_files.Record({"loss": {10: 1.0}}, broken)
    run = dataclasses.replace(runs.make(), training=training)
    lines = _lines(size_sections.tell_problems(run, []))
    assert [line.split()[0] for line in lines] == ["surgery/loss", "weight/surgery"]


def test_the_loss_of_a_task_without_labels_in_a_batch_is_no_problem():
    broken = {"a/loss": {1, 2}, "b/loss": {1, 2, 3}, "loss": {3}}
    training = event_files.Record({"loss": {1: 0.5, 2: 0.4}}, broken)
    run = dataclasses.replace(runs.make(), training=training)
    lines = _lines(size_sections.tell_problems(run, []))
    assert [line.partition(" of the")[0] for line in lines] == [
        "b/loss was not finite at 1",
        "loss was not finite at 1",
    ]


def test_runs_without_a_value_come_last_on_a_page():
    values = {"a": math.nan, "b": 0.2, "c": 0.3}
    made = {name: runs.make(name, {"sign/auc": value}) for name, value in values.items()}
    found = comparison.compare(made)
    page = comparison_page.describe(found, comparison.sort_by(found, "sign/auc"))
    assert [row[0] for row in page.sections[0].blocks[0].rows] == ["c", "b", "a"]
    assert page.state == "3 runs"


def test_curves_of_runs_with_many_tasks():
    made = {"a": runs.of_many_tasks(30, 2), "b": runs.of_many_tasks(30, 2)}
    page = comparison_page.describe(comparison.compare(made))
    (curves,) = [one for one in page.sections if one.key == "curves"]
    assert _lines(curves.blocks) == ["20 of 30 tasks are shown."]
