"""Batches that cut no group: what is in them, and how they go on after a stop."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, experiment, features, heads, spec
from mtl.data import pipeline, whole_groups
from tests import tiny

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={"x": "int64", "tags": ("string", (None,))},
    labels={"y": "int64", "query": "string", "lists": ("int64", (None,))},
)


def make(sizes=None, batch_size=16, shuffle_buffer=100, **settings):
    """300 rows in groups of up to 7, larger than the chunks that are read."""
    if sizes is None:
        sizes = np.random.default_rng(0).integers(1, 8, 80)
    count = sum(sizes)
    keys = np.repeat([f"q{number}" for number in range(len(sizes))], sizes)
    rows = {
        "x": np.arange(count),
        "y": np.arange(count) % 3,
        "query": keys.astype(object),
        "tags": tf.ragged.constant([["a"] * (x % 3) for x in range(count)], tf.string),
        "lists": tf.ragged.constant([[1] * (x % 2) for x in range(count)], tf.int64),
    }
    return pipeline.Pipeline(
        source=tiny.Rows(splits={"train": rows}),
        spec=SPEC,
        sampler=whole_groups.WholeGroups(group="query"),
        batch_size=batch_size,
        shuffle_buffer=shuffle_buffer,
        **settings,
    )


def read(data, count, parts=1, seed=1):
    dataset = data.dataset("train", training=True, seed=seed, parts=parts).take(count)
    return list(dataset.as_numpy_iterator())


def sizes_of(data):
    keys = data.source.splits["train"]["query"]
    return dict(zip(*np.unique(keys.astype(str), return_counts=True), strict=True))


def test_parts_of_a_batch_are_joined_in_their_order():
    images = np.arange(48).reshape(2, 3, 4, 2)
    lists = tf.ragged.constant([[[1], [2, 3], []], [[4], [], [5]]])
    rows, is_row = whole_groups._join_parts(
        {"image": tf.constant(images), "list": lists}, tf.constant([[True] * 3, [False] * 3])
    )
    np.testing.assert_array_equal(rows["image"], images.reshape(6, 4, 2))
    assert rows["list"].to_list() == [[1], [2, 3], [], [4], [], [5]]
    assert is_row.numpy().tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shuffle_buffer", [1, 100])
def test_every_part_holds_whole_groups_and_every_pass_each_group_once(parts, shuffle_buffer):
    data = make(shuffle_buffer=shuffle_buffer)
    sizes, seen, padded = sizes_of(data), [], 0
    for given, labels in read(data, 60, parts):
        assert given["x"].shape == labels["y"].shape == (16,)
        is_row = labels["y"] >= 0
        np.testing.assert_array_equal(labels["y"][is_row], given["x"][is_row] % 3)
        # All fields of a row stay together, and padding is marked as missing.
        for x, tags, lists, real in zip(
            given["x"], map(list, given["tags"]), map(list, labels["lists"]), is_row, strict=True
        ):
            assert tags == [b"a"] * (x % 3)
            assert lists == ([1] * (x % 2) if real else [spec.MISSING["int64"]])
        for part in np.array_split(np.arange(16), parts):
            rows = part[is_row[part]]
            padded += len(part) - len(rows)
            keys = labels["query"][rows].astype(str)
            found = list(dict.fromkeys(keys))
            assert [(keys == key).sum() for key in found] == [sizes[key] for key in found]
            assert (np.diff(rows) == 1).all()
            seen += found
    assert padded
    assert len(seen) >= 160
    assert len(set(seen[:80])) == 80
    assert (seen[:80] == list(sizes)) is False or shuffle_buffer == 1
    assert seen[:80] != seen[80:160] or shuffle_buffer == 1


def test_seeds_do_not_share_the_order_of_an_epoch():
    def list_orders(seed):
        seen: list[str] = []
        for _, labels in read(make(), 90, seed=seed):
            seen += dict.fromkeys(labels["query"][labels["y"] >= 0].astype(str))
        return [tuple(seen[start : start + 80]) for start in (0, 80, 160)]

    assert len({*list_orders(1), *list_orders(2)}) == 6


def test_no_group_is_twice_in_a_part():
    # Two passes fit into a part; before the second, it is padded.
    data, times = make(sizes=[3, 4, 2]), []
    for _, labels in read(data, 12):
        keys = labels["query"][labels["y"] >= 0].astype(str)
        counts = dict(zip(*np.unique(keys, return_counts=True), strict=True))
        assert all(counts[key] == {"q0": 3, "q1": 4, "q2": 2}[key] for key in counts)
        times += counts
    assert {key: times.count(key) for key in times} == {"q0": 12, "q1": 12, "q2": 12}


def test_evaluation_reads_all_rows_in_order():
    data = make()
    batches = data.dataset("train", training=False, seed=0).as_numpy_iterator()
    rows = np.concatenate([given["x"] for given, _ in batches])
    np.testing.assert_array_equal(rows, np.arange(len(rows)))


def fit(data, tmp_path):
    batches = data.one_pass("train")
    column = features.Numeric(names=["x"])
    features.fit_columns([column], batches, str(tmp_path), [data.sampler])
    return features.load_statistics(str(tmp_path))


def test_a_group_that_comes_again_is_one_clear_line(tmp_path):
    data = make(sizes=[3, 2, 4], batch_size=4)
    fitted = fit(data, tmp_path / "good")
    found = fitted.for_column("group/query")
    assert (found["groups"], found["largest"]) == (3, 4)
    data.dataset("train", training=True, seed=0, statistics=fitted)
    with pytest.raises(checks.UserError, match=r"largest group of 'query', 4 rows.* got 2"):
        data.dataset("train", training=True, seed=0, statistics=fitted, parts=2)
    rows = data.source.splits["train"]
    rows["query"][8] = rows["query"][1]
    with pytest.raises(checks.UserError, match="other rows between rows 1 and 9 of one group"):
        fit(data, tmp_path / "again")
    rows["query"][7:] = ""
    with pytest.raises(checks.UserError, match="'query' of row 8 of the training split must name"):
        fit(data, tmp_path / "missing")


def test_a_group_that_is_too_large_ends_the_stream():
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than the 4 rows"):
        read(make(sizes=[3, 5, 4], batch_size=4), 3)


def test_a_head_that_ranks_needs_whole_groups_and_the_field_has_to_be_there():
    made = tiny.make()
    ranking = dataclasses.replace(made.model, heads=[heads.Ranking(name="kind", group="sign")])
    with pytest.raises(checks.UserError, match="Pipeline.sampler must keep all rows of a 'sign'"):
        experiment.Experiment(data=made.data, model=ranking, run=made.run)
    sampler = whole_groups.WholeGroups(group="sign")
    data = dataclasses.replace(made.data, sampler=sampler)
    experiment.Experiment(data=data, model=ranking, run=made.run)
    for group, message in (("sing", "Did you mean 'sign'"), ("size", "be one int64 or string")):
        with pytest.raises(checks.UserError, match=message):
            dataclasses.replace(made.data, sampler=whole_groups.WholeGroups(group=group))


def test_a_feature_can_be_the_key():
    made = make()
    keyed = spec.Spec(
        features={"x": "int64", "query": "string"}, labels={"y": "int64"}, keys=["query"]
    )
    data = dataclasses.replace(made, spec=keyed)
    given, labels = read(data, 1)[0]
    np.testing.assert_array_equal(given["query"], labels["query"])
    with pytest.raises(checks.UserError, match=r"Spec.keys must be one of x, got 'y'"):
        spec.Spec(features={"x": "int64"}, labels={"y": "int64"}, keys=["y"])
