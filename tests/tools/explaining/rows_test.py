"""Rows are taken and permuted whole, lists too."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads
from mtl.data import whole_groups
from mtl.tools.explaining import rows

tf1 = tf.compat.v1


def lists(*values):
    return tf1.ragged.constant_value(
        [list(own) for own in values], np.int64, row_splits_dtype="int64"
    )


@pytest.fixture
def some():
    features = {
        "a": np.array([1.0, 2.0, 3.0]),
        "pic": np.arange(12).reshape(3, 2, 2),
        "own": lists([1, 2], [], [3]),
        "nested": lists([1, 2, 3], [4], []),
        "nested/values_per_item": lists([1, 2], [1], []),
        "own/weights": lists([5, 6], [], [7]),
    }
    return rows.Rows("test", features, {"y": np.array([0, 1, 2])})


def test_rows_are_taken_with_their_lists(some):
    taken = some.take([2, 0, 0])
    assert taken.size == 3 and taken.labels["y"].tolist() == [2, 0, 0]
    assert taken.features["own"].to_list() == [[3], [1, 2], [1, 2]]
    assert taken.features["pic"][0].tolist() == [[8, 9], [10, 11]]
    assert some.take([1]).features["own"].to_list() == [[]]
    assert some.take([]).features["own"].to_list() == []


def test_only_the_fields_that_are_named_are_permuted_with_counts_and_weights(some):
    order = np.array([1, 2, 0])
    found = some.permute(["own", "nested"], order)
    assert found["own"].to_list() == [[], [3], [1, 2]]
    assert found["own/weights"].to_list() == [[], [7], [5, 6]]
    assert found["nested"].to_list() == [[4], [], [1, 2, 3]]
    assert found["nested/values_per_item"].to_list() == [[1], [], [1, 2]]
    assert found["a"] is some.features["a"]


def test_a_field_is_filled_with_one_value_of_its_type(some):
    assert some.fill("a", 7)["a"].tolist() == [7.0, 7.0, 7.0]
    words = rows.Rows("test", {"w": np.array([b"x", b"yyy"], object)}, {})
    assert words.fill("w", b"longer")["w"].tolist() == [b"longer"] * 2


def sort_split(experiment):
    """The same run, whose split test is sorted by `a`, with the rows' places in `number`."""
    own = dict(experiment.data.source.splits["test"])
    order = np.argsort(own["a"])
    own = {name: [values[i] for i in order] for name, values in own.items()}
    own["a"], own["number"] = np.asarray(own["a"]), np.arange(300)
    own = {name: np.asarray(v) if name not in ("items", "times") else v for name, v in own.items()}
    source = dataclasses.replace(experiment.data.source, splits={"test": own})
    return dataclasses.replace(
        experiment, data=dataclasses.replace(experiment.data, source=source, batch_size=30)
    )


@pytest.mark.medium
def test_rows_are_drawn_over_the_whole_of_a_sorted_split_and_named_ones_read_beside_them(run):
    made = sort_split(run[0])
    found = rows.read_rows(made, "test", 60, [299, 0])
    places = found.held.features["number"]
    assert found.total == 300 and len(set(places)) == 60 and places[0] < 30 and places[-1] >= 270
    assert (np.diff(found.held.features["a"]) >= 0).all()
    assert found.shown.features["number"].tolist() == [299, 0]
    again = rows.read_rows(made, "test", 60).held.features["number"]
    assert again.tolist() == places.tolist()
    with pytest.raises(checks.UserError, match="--rows must be below 300, the number of rows"):
        rows.read_rows(made, "test", 60, [300])


@pytest.mark.medium
def test_each_batch_holds_rows_of_all_of_a_sorted_split(run):
    batches = [one.features["number"] for one in rows.read_batches(sort_split(run[0]), "test", 4)]
    assert [len(own) for own in batches] == [30] * 4
    assert len(set(np.concatenate(batches))) == 120
    assert all(own.min() < 100 and own.max() >= 200 for own in batches)


@pytest.mark.medium
def test_groups_that_a_head_ranks_are_read_whole(run):
    made = sort_split(run[0])
    own = dict(made.data.source.splits["test"])
    own |= {"user": np.arange(300) // 6, "grade": np.ones(300, np.int64)}
    labels = {**made.data.spec.labels, "user": "int64", "grade": "int64"}
    data = dataclasses.replace(
        made.data,
        source=dataclasses.replace(made.data.source, splits={"test": own}),
        spec=dataclasses.replace(made.data.spec, labels=labels),
        sampler=whole_groups.WholeGroups(group="user"),
    )
    ranked = [*made.model.heads, heads.Ranking(name="grade", group="user")]
    made = dataclasses.replace(made, data=data, model=dataclasses.replace(made.model, heads=ranked))
    for held in (rows.read_rows(made, "test", 60).held, next(rows.read_batches(made, "test", 2))):
        counts = np.bincount(held.labels["user"])
        assert set(counts) <= {0, 6}


@pytest.mark.medium
def test_batches_are_as_large_as_in_training_and_the_rest_is_left_out(run):
    sizes = [one.size for one in rows.read_batches(run[0], "test", 20)]
    assert sizes == [64] * 4
    assert [one.size for one in rows.read_batches(run[0], "bare", 20)] == [60]
    assert len(list(rows.read_batches(run[0], "train", 3))) == 3
