"""Missing labels are counted by reason; classes that training never sees are reported."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import heads, spec
from mtl.runs import label_tallies
from tests import tiny

ABSENT = spec.MISSING["int64"]


def tell(head, *batches):
    missing = label_tallies.Missing([head])
    for batch in batches:
        missing.see({"y": tf.constant(np.array(batch))})
    return missing.describe("train", ""), missing.describe_doubts("train", "")


@pytest.mark.parametrize(
    "head, batches, why",
    [
        (
            heads.Binary(name="y"),
            ([0, -1, ABSENT], [-1, 1]),
            "3 of 5 rows (60.0%)|1 absent, 2 are -1",
        ),
        (
            heads.Binary(name="y", positive=[1], negative=[-1]),
            ([1, -1, ABSENT],),
            "1 of 3|1 absent",
        ),
        (heads.Regression(name="y"), ([3, -1, -2, ABSENT],), "1 of 4|1 absent"),
        (heads.Regression(name="y"), ([1.5, np.nan],), "1 of 2|1 absent or nan"),
        (heads.Regression(name="y", missing=[-1]), ([3, -1],), "1 of 2|1 are -1"),
        (
            heads.MultiClass(name="y", classes=["a", "b"], missing=["?"]),
            (["a", "?", ""],),
            "2 of 3|1 absent or empty, 1 are '?'",
        ),
        (
            heads.Regression(name="y", dimension=2),
            ([[1.0, np.nan], [np.nan, np.nan], [np.nan, 2.0]],),
            "1 of 3|1 without any value",
        ),
    ],
)
def test_rows_without_a_label_are_counted_by_reason(head, batches, why):
    (line,), doubts = tell(head, *batches)
    rows, reasons = why.split("|")
    assert f"is missing in {rows}" in line and line.endswith(reasons) and not doubts
    assert line.startswith("The label of task 'y', field 'y', is missing in")


def test_labels_that_are_all_there_are_no_news():
    assert tell(heads.Binary(name="y"), [0, 1]) == ([], [])


@pytest.mark.parametrize(
    "numbers, is_told", [([5, -1, 0], True), ([5, -1, -2], False), ([5], False)]
)
def test_minus_one_beside_no_other_negative_number_may_be_a_mark(numbers, is_told):
    _, doubts = tell(heads.Regression(name="y"), numbers[:1], numbers[1:] or [7])
    assert len(doubts) == is_told
    assert all(
        "-1 counts as a number" in line and "Regression.missing = [-1]" in line for line in doubts
    )


@pytest.mark.parametrize(
    ("lists", "empty_is_missing", "missing", "is_told"),
    [
        ([["a"], [""], [], ["b"], ["a"]], False, "1 of 5 rows (20.0%)|1 absent", False),
        ([["a"], [""], [], [], ["a"]], False, "1 of 5 rows (20.0%)|1 absent", True),
        ([["a"], [""], [], [], ["a"]], True, "3 of 5 rows (60.0%)|1 absent, 2 empty", False),
    ],
)
def test_absent_and_empty_lists_are_counted(lists, empty_is_missing, missing, is_told):
    head = heads.MultiLabel(name="y", classes=["a", "b"], empty_is_missing=empty_is_missing)
    tally = label_tallies.Missing([head])
    for part in (lists[:2], lists[2:]):
        tally.see({"y": tf.ragged.constant(part, row_splits_dtype=tf.int64)})
    rows, reasons = missing.split("|")
    (line,) = tally.describe("train", "")
    assert f"is missing in {rows}" in line and line.endswith(reasons)
    doubts = tally.describe_doubts("train", "")
    assert len(doubts) == is_told
    said = "field 'y', is an empty list, no class, in 2 of 5 rows (40.0%) of split 'train'"
    assert all(said in doubt and "MultiLabel.empty_is_missing = True" in doubt for doubt in doubts)


def untrained(train, test, head=None, seen=0, **settings):
    """Return the warnings on `kind` after `seen` training rows, or after all if `seen` is 0."""
    rows = {
        split: {**tiny.SPLITS["train"], "kind": np.resize(kinds, 96)}
        for split, kinds in (("train", train), ("test", test))
    }
    made = tiny.make(splits=rows)
    head = head or heads.MultiClass(name="kind", classes=["a", "b", "c"])
    model = dataclasses.replace(made.model, heads=[head])
    classes = label_tallies.Classes(model.heads)
    classes.see({"kind": tf.constant(rows["train"]["kind"][: seen or None])})
    return label_tallies.describe_untrained(classes, model.heads, made.data, not seen)


@pytest.mark.parametrize(
    "train, test, told",
    [
        ([0, 1], [0, 1, 2, 2], "'c' (48)"),
        ([1], [0, 1, 2], "'a' (32), 'c' (32)"),
        ([0, 1, -1], [0, 1, -1], None),
        ([0, 1, 2], [0], None),
    ],
)
def test_a_class_that_is_evaluated_and_not_trained_is_told(train, test, told):
    lines = untrained(train, test)
    assert len(lines) == (told is not None)
    for line in lines:
        assert line == (
            "Task 'kind' has classes in split 'test' without a row in split 'train', which it "
            f"cannot learn: {told}."
        )


def test_rows_behind_those_that_were_seen_count():
    kinds = [0] * 95 + [1]
    assert untrained(kinds, [0, 1], seen=16) == []
    assert len(untrained(kinds, [0, 2], seen=16)) == 1


def test_no_label_is_read_where_all_classes_were_seen():
    classes = label_tallies.Classes([head := heads.MultiClass(name="kind", classes=2)])
    classes.see({"kind": tf.constant([0, 1], tf.int64)})
    assert label_tallies.describe_untrained(classes, [head], None, False) == []
