"""Errors in the data are found in any row of a split; correct data takes few batches."""

import dataclasses

import numpy as np
import pytest

from mtl import checks, features
from mtl.runs import plausibility
from tests import tiny


def looked(change=lambda rows: None, split="train", count=96, columns=None, **settings):
    rows = {name: values[:count].copy() for name, values in tiny.SPLITS["train"].items()}
    change(rows)
    chosen = {"columns": columns} if columns else {}
    made = tiny.make(splits={"train": rows, "test": rows}, **chosen)
    data = dataclasses.replace(made.data, **settings)
    look = plausibility.Look(made.model, data, split)
    look.finish()
    return look


def put(name, values):
    return lambda rows: rows.update({name: np.broadcast_to(values, rows[name].shape).copy()})


def test_data_that_is_right_takes_few_batches():
    look = looked(columns=[features.Numeric(names=["x"])])
    look.require_labels()
    assert look.describe_doubts() == [] and look._batches == 1


@pytest.mark.parametrize(
    "name, missing", [("sign", np.int64(-1)), ("kind", np.int64(-1)), ("size", np.float32("nan"))]
)
def test_a_task_without_a_label_is_refused(name, missing):
    look = looked(put(name, missing))
    says = (
        f"labels of task '{name}', field '{name}' must be there in split 'train', got 'none in 96"
    )
    with pytest.raises(checks.UserError, match=says):
        look.require_labels()
    look.require_labels(every=False)  # Others have some.


def test_one_label_in_the_last_row_is_one():
    def change(rows):
        rows["sign"][:-1] = -1

    look = looked(change)
    look.require_labels()
    assert [line for line in look.describe_doubts() if "'sign', field 'sign', are the same" in line]


@pytest.mark.parametrize("last", [0, 1])
def test_labels_of_one_kind(last):
    def change(rows):
        rows["sign"][:-1], rows["sign"][-1] = 0, last

    found = looked(change).describe_doubts()
    assert len(found) == 1 - last and all("task 'sign'" in line for line in found)


def test_a_label_that_is_wrong_is_for_training_to_tell():
    look = looked(put("sign", np.int64(7)))
    look.require_labels()
    assert look.describe_doubts() == []


@pytest.mark.parametrize("name, value", [("word", b"red"), ("x", np.float32("nan"))])
@pytest.mark.parametrize("varies", [False, True])
def test_a_column_that_never_varies(name, value, varies):
    def change(rows):
        last = rows[name][-1].copy() if name == "x" else b"blue"
        put(name, value)(rows)
        rows[name][-1] = last if varies else rows[name][-1]

    found = looked(change).describe_doubts()
    assert len(found) == 1 - varies and all(f"Field {name!r} never" in line for line in found)


@pytest.mark.parametrize(
    "text, is_told", [("Z\u00fcrich".encode("latin-1"), 1), ("Z\u00fc".encode(), 0)]
)
def test_text_that_is_not_utf_8(text, is_told):
    def change(rows):
        rows["word"][3] = text

    found = looked(change).describe_doubts()
    assert len(found) == is_told
    assert all("Field 'word' holds text that is not UTF-8" in line for line in found)


@pytest.mark.parametrize("most, is_told", [(6, 1), (5, 0)])
def test_text_is_read_far_where_no_column_is_fitted(most, is_told, monkeypatch):
    def change(rows):
        rows["word"][-1] = "Z\u00fcrich".encode("latin-1")

    monkeypatch.setattr(plausibility, "_MOST_BATCHES", most)
    look = looked(change, columns=[features.Hashed(names=["word"], num_buckets=9)])
    assert (look._batches, len(look.describe_doubts())) == (most, is_told)


@pytest.mark.parametrize("count, batch_size, is_told", [(20, 21, 1), (20, 20, 0), (20, 19, 0)])
def test_a_batch_larger_than_the_data(count, batch_size, is_told):
    found = looked(count=count, batch_size=batch_size).describe_doubts()
    assert len(found) == is_told
    assert all("holds 20 rows, and a batch (Pipeline.batch_size) 21" in line for line in found)


def test_a_pass_that_is_made_anyway_is_enough():
    made = tiny.make()
    look = plausibility.Look(made.model, made.data, "train")
    for _ in look.look_at(made.data.one_pass("train")):
        pass
    batches = look._batches
    look.finish()
    assert look._batches == batches == 6


@pytest.mark.medium
def test_a_split_that_nothing_can_be_measured_on():
    rows = dict(tiny.SPLITS["test"])
    for name in ("sign", "kind", "size"):
        model, splits = tiny.make().model, {**tiny.SPLITS, "test": rows}
        data = tiny.make(splits=splits).data
        plausibility.look_at_labels(model, data, "test")
        rows[name] = np.full_like(rows[name], np.nan if name == "size" else -1)
    data = tiny.make(splits={**tiny.SPLITS, "test": rows}).data
    with pytest.raises(checks.UserError, match="task 'sign'.*split 'test', got 'none in 48 rows'"):
        plausibility.look_at_labels(model, data, "test")


@pytest.mark.parametrize(
    "text, is_told",
    [(b" b", 1), (b"b ", 1), (b"['a', 'b']", 1), (b"a|b", 1), (b"[]", 1), (b"a b", 0), (b"[a]", 0)],
)
def test_what_is_hardly_one_value_of_a_list_is_told(text, is_told):
    tags = [list(row) for row in tiny.TAGGED_SPLITS["train"]["tags"]]
    tags[-1] = [b"a", text]
    rows = {**tiny.TAGGED_SPLITS["train"], "tags": tags}
    made = tiny.make(columns=[features.Hashed(names=["tags"], num_buckets=9)])
    source = tiny.Rows(splits={"train": rows})
    data = dataclasses.replace(made.data, source=source, spec=tiny.TAGGED_SPEC)
    look = plausibility.Look(made.model, data, "train")
    look.finish()
    found = [line for line in look.describe_doubts() if "'tags'" in line]
    assert len(found) == is_told
    assert all(f"'tags', a list of texts, holds {text.decode()!r} as" in line for line in found)


def test_an_odd_value_is_found_among_odd_values_of_all_kinds():
    assert plausibility._find_odd(b"a\nb c") == ""
    assert plausibility._find_odd(b"a\nx \n y\n[z]\np|q") == "x "
