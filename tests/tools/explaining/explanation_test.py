"""A whole explanation: its page, its tables, and the reasons for missing parts."""

import csv
import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads
from mtl.tools.explaining import describe, explanation, settings, tables
from mtl.tools.reports import page
from tests.tools.explaining import conftest
from tests.tools.reports import page_test

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def found(run):
    asked = settings.Settings(
        repeats=2, steps=64, batches=3, rows=[4], classes={"kind": "more"}, groups=[["a", "b"]]
    )
    return explanation.explain_run(*run, asked)


def test_the_page_stands_alone_and_tells_of_all_parts(found, monkeypatch):
    # A training beside drops the checkpoint as soon as it is held no longer.
    monkeypatch.delattr(tf.train, "load_variable")
    text = page.render(describe.describe(found))
    page_test.assert_stands_alone(text)
    for told in ("Which fields matter", "Row 4", "logit of more", "Partial dependence", "cosine"):
        assert told in text
    assert (
        "Neither a column nor a head reads unread" in text
        and "items + times" in text
        and "a + b" in text
    )


def test_all_numbers_are_in_the_tables_to_the_last_digit(found, tmp_path):
    written = tables.write_tables(str(tmp_path), found)
    assert [path.rpartition("/")[2] for path in written] == list(tables.NAMES)
    texts = [pathlib.Path(path).read_text() for path in written]
    read = [list(csv.DictReader(text.splitlines())) for text in texts]
    importance, attributions, dependence, gradients = read
    assert len(importance) == 7 * 6
    drops = [float(line["worse_by"]) for line in importance]
    np.testing.assert_array_equal(drops, found.importance.drop.ravel())
    of_kind = [line for line in attributions if line["task"] == "kind"]
    total = sum(float(line["attribution"]) for line in of_kind)
    difference = float(of_kind[0]["value"]) - float(of_kind[0]["baseline"])
    assert total + float(of_kind[0]["residual"]) == pytest.approx(difference)
    assert {line["output"] for line in of_kind} == {"more"}
    assert {line["column"]: line["fields"] for line in of_kind}["clicks"] == "items times"
    by_class = [line for line in dependence if line["task"] == "kind" and line["field"] == "a"]
    first = [float(line["mean"]) for line in by_class if line["value"] == by_class[0]["value"]]
    assert len(first) == 3 and sum(first) == pytest.approx(1, abs=1e-5)
    assert {(line["task"], line["other"]) for line in gradients} == {
        ("first", "second"),
        ("first", "kind"),
        ("second", "kind"),
    }


def test_the_most_important_fields_are_drawn(found):
    assert {one.field for one in found.dependences} >= {"a", "b", "word"}
    words = next(one for one in found.dependences if one.field == "word")
    assert not words.is_number and set(words.grid) == {b"red", b"green", b"blue"}
    reds = words.means["first"][list(words.grid).index(b"red"), 0]
    assert reds == words.means["first"].max()


def test_a_split_without_labels_is_refused(run):
    with pytest.raises(checks.UserError, match="split 'bare' must hold a label of a task"):
        explanation.explain_run(*run, settings.Settings(split="bare"))


def test_rows_of_training_are_said_to_be_that(run, found):
    trained = dataclasses.replace(found.held, split="train")
    lead = describe.describe(dataclasses.replace(found, held=trained)).lead
    assert "All 300 rows of the split train" in lead[1] and "memorized" in lead[2]
    assert "by heart" not in " ".join(describe.describe(found).lead)


def test_what_cannot_be_explained_is_said_in_a_line(run):
    """A task without labels, a head with unknown predictions, lists, and a constant field."""
    experiment, folder = run
    splits = {name: dict(own) for name, own in conftest.SPLITS.items()}
    splits["test"]["kind"] = np.full(300, -1)
    splits["test"]["noise"] = np.zeros(300, np.float32)
    source = dataclasses.replace(experiment.data.source, splits=splits)

    class Odd(heads.Regression):
        directions = {}

        def predictions(self, logits):
            return {}

    own = [head if head.name != "second" else Odd(name="second") for head in experiment.model.heads]
    changed = dataclasses.replace(
        experiment,
        data=dataclasses.replace(experiment.data, source=source),
        model=dataclasses.replace(experiment.model, heads=own),
    )
    asked = settings.Settings(
        repeats=1, steps=4, batches=2, dependence=["items", "noise", "b"], fields=["a"]
    )
    found = explanation.explain_run(changed, folder, asked)
    told = "\n".join(found.left_out)
    for line in (
        "Importance for kind: it has no label among these rows.",
        "Importance for second: its head does not say whether higher metrics are better.",
        "Predictions and partial dependence of second: Odd predicts no probability",
        "Partial dependence on items: it has several values per row",
        "Partial dependence on noise: all rows hold the same value.",
        "Gradients of kind: in every batch, the gradient is 0 or not finite.",
    ):
        assert line in told
    text = page.render(describe.describe(found))
    page_test.assert_stands_alone(text)
    assert "n/a" in text and "undefined" in text
    assert [one.field for one in found.dependences] == ["b"]
