"""Labels of a task, counted as one reads them off the rows."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, spec
from mtl.tools.reports import record, report, row_sections, size_sections, splits
from tests import tiny
from tests.tools.reports import runs


def _count(head, *batches):
    counter = splits.LabelCounter(head)
    for batch in batches:
        counter.see({head.field: tf.constant(batch)})
    return counter.tell()


def test_of_several_labels_a_row_counts_for_each():
    head = heads.MultiLabel(name="tags", classes=["a", "b", "c"])
    found = _count(head, np.eye(3, dtype=int)[[0, 2]], np.array([[1, -1, 0], [-1, -1, -1]]))
    assert found.counts == {"a": 2, "b": 0, "c": 1} and found.labelled == 3
    assert found.largest == ("a", 2) and found.mean is None
    assert row_sections._say(found) == "3 classes, 66.7% a"


def test_classes_of_places_are_not_those_of_rows():
    maps = np.array([[[0, 1], [-1, 1]], [[-1, -1], [-1, -1]]])
    found = _count(heads.Segmentation(name="kind", classes=2), maps)
    assert found.labelled == 1 and found.counts == {} and found.classes == 0
    assert _count(heads.Normals(name="way"), np.ones([2, 2, 2, 3], "f")).labelled == 2


def test_lists_of_labels_are_counted():
    head = heads.MultiLabel(name="tags", classes=["a", "b"])
    counter = splits.LabelCounter(head)
    counter.see({"tags": tf.ragged.constant([["b"], [], ["a", "b", "b"]])})
    found = counter.tell()
    assert found.counts == {"a": 1, "b": 2}


def test_marks_of_missing_lists_are_missing():
    field = spec.Field(name="tags", dtype="string", shape=(None,), default="")
    lists = tf.ragged.constant([["b"], [""], [], ["a", "b"]])
    head = heads.MultiLabel(name="tags", classes=["a", "b"])
    assert splits._count_missing(field, lists, head) == (4, 2)


def test_ids_of_very_many_classes_have_no_mean():
    ids = np.array([4999, 3, 4999, -1])
    found = _count(heads.MultiClass(name="word", classes=5000), ids)
    assert found.mean is None and found.spread is None and found.counts == {}
    assert found.classes == 5000 and found.largest == ("4999", 2)
    assert row_sections._say(found) == "5,000 classes, 66.7% 4999"


def test_numbers_have_a_mean_and_no_classes():
    found = _count(heads.Regression(name="size"), [1.0, 2.0], [6.0])
    assert found.mean == 3.0 and found.classes == 0 and found.largest is None
    assert row_sections._say(found) == "mean 3, standard deviation 2.16"


@pytest.mark.medium
def test_no_more_rows_are_read_than_are_asked_for():
    made = tiny.make()
    for asked, read in ((96, 96), (97, 96), (95, 95)):
        found = splits.look_at(made, "train", asked)
        assert (found.rows, found.total) == (read, 96)


@pytest.mark.medium
def test_the_rows_of_a_sorted_split_that_are_read_are_of_all_of_it():
    own = {**tiny.SPLITS["train"]}
    order = np.argsort(own["kind"], kind="stable")
    own = {name: np.asarray(values)[order] for name, values in own.items()}
    made = tiny.make(splits={**tiny.SPLITS, "train": own})
    whole, part = (splits.look_at(made, "train", rows).tasks["kind"] for rows in (96, 48))
    assert all(
        0.25 * count < part.counts[name] < 0.75 * count for name, count in whole.counts.items()
    )


def test_rows_that_nobody_wants_are_no_problem():
    looked = report._read_data(runs.make(), 0)
    assert looked == (None, (), [])
    told = row_sections.tell_data(runs.make(), looked.facts, looked.problems)
    assert told == "no rows were read, as --rows is 0."


def test_what_keeps_all_rows_from_being_read_is_one_problem(monkeypatch):
    def fail(*arguments):
        raise checks.UserError("the file is gone.")

    monkeypatch.setattr(splits, "look_at", fail)
    monkeypatch.setattr(report.held_out, "predict_rows", fail)
    monkeypatch.setattr(record.Run, "checkpoint", "model.ckpt-40")
    looked = report._read_data(runs.make(training=[("loss", {1: 0.5})]), 100)
    assert looked.problems == ["the file is gone."]
    lines = size_sections.tell_problems(runs.make(), looked.problems)
    assert [line.text for line in lines].count("the file is gone.") == 1


def test_other_rows_than_those_of_the_metrics_are_a_problem():
    """The errors of an advantage come from the rows of today, so that they are left out, too."""
    metrics = {"sign/accuracy": 0.71, "sign/accuracy_baseline": 0.58, "sign/auc": 0.75}
    seen = runs.seen_rows(["sign"], 300)
    warnings, deviations = {}, {}
    for rows in (300, 399):
        run = runs.make(metrics=metrics, measured_on={"rows": f"{rows} rows, 0c5f3a9d1be27744"})
        verdicts = report._judge(run, seen)
        deviations[rows] = [verdict.deviations for verdict in verdicts]
        parts = row_sections.tell_evaluation(run, verdicts, seen)
        warnings[rows] = [getattr(part, "text", "") for part in parts]
        warnings[rows] = [text for text in warnings[rows] if "has 300 rows now" in text]
    assert deviations[399] == [None] and deviations[300] != [None]
    assert not warnings[300] and "measured on 399 rows" in warnings[399][0]


def test_as_many_rows_with_other_values_are_other_rows():
    """A run may have been measured on fields that the data no longer have, such as an image."""
    fields = {"sign int64": "300 rows, 0a", "image uint8": "300 rows, 0b"}
    run = runs.make(
        metrics={"sign/accuracy": 0.71, "sign/accuracy_baseline": 0.58, "sign/auc": 0.75},
        measured_on={"rows": "300 rows, 0c5f3a9d1be27744", "fields": fields},
    )
    same = runs.seen_rows(["sign"], 300)._replace(hashes={"sign int64": "300 rows, 0a"})
    flipped = same._replace(hashes={"sign int64": "300 rows, 0d"})
    assert report._judge(run, same)[0].deviations is not None
    assert report._judge(run, flipped)[0].deviations is None
    assert not run.describe_change(300, same.hashes)
    assert "other values now than when" in run.describe_change(300, flipped.hashes)
    assert "(sign): pictures" in run.describe_change(300, flipped.hashes)
