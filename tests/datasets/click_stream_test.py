"""Made-up clicks: the drawn rows agree with the docstring."""

import dataclasses

import numpy as np
import pytest

from mtl import checks, spec
from mtl.datasets import click_stream

pytestmark = pytest.mark.medium

MADE = click_stream.ClickStream(rows={"train": 5000, "test": 1500}, max_events=20, categories=10)
SPEC = spec.Spec(
    features={"item": "int64", "clicked_items": ("int64", (None,))},
    labels={"click": "int64", "purchase_probability": "float32"},
)


def _rows(made=MADE, split="train"):
    return list(made.records(split).as_numpy_iterator())


@pytest.fixture(scope="module")
def rows():
    return _rows()


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_probabilities_follow_from_the_events_of_the_category(rows):
    for row in rows[:300]:
        same = [item % 10 == row["item"] % 10 for item in row["clicked_items"]]
        count, recent = sum(same), any(same[-3:])
        click = _sigmoid(1.2 * np.log1p(count) - 1.5)
        purchase = _sigmoid(0.4 * np.log1p(count) + 2.5 * recent - 2.5)
        np.testing.assert_allclose(row["click_probability"], click, rtol=1e-5)
        np.testing.assert_allclose(row["purchase_probability"], purchase, rtol=1e-5)
        assert row["category"] == row["item"] % 10
        assert (row["clicked_categories"] == row["clicked_items"] % 10).all()
        assert len(row["clicked_times"]) == len(same)
        assert (np.diff(row["clicked_times"]) >= 0).all()
        assert (row["clicked_times"] <= row["now"]).all()


def test_labels_and_lengths_are_drawn_as_said(rows):
    for task in ("click", "purchase"):
        labels = np.array([row[task] for row in rows])
        truth = np.array([row[f"{task}_probability"] for row in rows])
        error = np.sqrt((truth * (1 - truth)).mean() / len(rows))
        assert abs(labels.mean() - truth.mean()) < 4 * error
        high = truth > np.median(truth)
        assert labels[high].mean() > labels[~high].mean() + 0.1
    lengths = np.bincount([len(row["clicked_items"]) for row in rows], minlength=21)
    assert len(lengths) == 21 and lengths.min() > 150
    items = np.concatenate([row["clicked_items"] for row in rows])
    assert items.min() == 0 and items.max() == MADE.items - 1
    gaps = np.concatenate([np.diff(row["clicked_times"]) for row in rows])
    assert 3000 < gaps.mean() < 4200


def test_rows_depend_on_seed_split_and_number_alone(rows):
    fewer = dataclasses.replace(MADE, rows={"train": 7})
    for one, other in zip(_rows(fewer), rows, strict=False):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    others = [_rows(split="test")[0], _rows(dataclasses.replace(fewer, seed=1))[0]]
    for other in others:
        assert not np.array_equal(other["clicked_items"], rows[0]["clicked_items"])


def test_a_scan_tells_what_a_batch_holds():
    found = [values for _, values in MADE.scan("test", SPEC)]
    batch = next(iter(MADE.records("test").batch(10)))
    decoded = MADE.decode(batch, SPEC, with_labels=True)
    assert list(decoded) == list(found[0])
    assert decoded["clicked_items"].to_list() == [row["clicked_items"] for row in found[:10]]
    assert decoded["item"].numpy().tolist() == [row["item"] for row in found[:10]]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"items": 10}, "ClickStream.items must"),
        ({"interests": 51}, "ClickStream.interests must be at most 50, the categories"),
        ({"noise": 1.5}, r"ClickStream.noise must be in \[0, 1\]"),
        ({"rows": {"training": 5}}, "Did you mean 'train'"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(checks.UserError, match=says):
        click_stream.ClickStream(**settings)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"itm": "int64"}, "'item'"),
        ({"item": "float32"}, "ClickStream field 'item' must be int64"),
        ({"clicked_items": ("int64", (5,))}, r"have shape \(None,\)"),
    ],
)
def test_fields_that_do_not_fit(field, says):
    wrong = spec.Spec(features=field, labels=SPEC.labels)
    with pytest.raises(checks.UserError, match=says):
        next(MADE.scan("test", wrong))


def test_items_of_a_session_are_shown_to_one_user_and_popular_ones_more_often():
    plain = click_stream.ClickStream(rows={"train": 3000})
    made = dataclasses.replace(plain, shown=7, popularity=3.0, spread=2.0)
    (rows,) = made.records("train").ragged_batch(3000).as_numpy_iterator()
    (alone,) = plain.records("train").ragged_batch(3000).as_numpy_iterator()
    np.testing.assert_array_equal(alone["session"], np.arange(3000))
    session, counts = np.unique(rows["session"], return_counts=True)
    assert sorted(set(counts)) == [6, 7]  # The last of each 1000 rows is shorter.
    np.testing.assert_array_equal(rows["session"], np.repeat(session, counts))
    lists = [items.tolist() for items in rows["clicked_items"]]
    assert lists == [lists[first] for first in rows["session"]]
    assert len(set(map(tuple, lists))) > 350
    assert len(set(rows["category"][:7].tolist())) > 1
    # An item of rank r of 40 in its category comes up with r^(1/3): the first one at 0.29.
    assert abs((rows["item"] < 50).mean() - (1 / 40) ** (1 / 3)) < 0.03
    by_session = np.add.reduceat(rows["click_probability"], session) / counts
    assert np.std(by_session) > 0.2
