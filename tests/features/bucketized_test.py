import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features


def _ids(encoded):
    return encoded[:, 0].tolist()


def test_given_boundaries_are_left_closed_and_nan_has_a_bucket(encode):
    column = features.Bucketized(names=["x"], boundaries=[0, 10])
    values = np.array([-1.0, 0.0, 9.9, 10.0, np.inf, -np.inf, np.nan])
    assert _ids(encode([column], {"x": values})["bucketized_x"]) == [0, 1, 1, 2, 2, 0, 3]


def test_fitted_boundaries_split_the_training_split_evenly(encode):
    values = np.random.default_rng(0).permutation(100).astype(np.float32)
    column = features.Bucketized(names=["x"], boundaries=4)
    ids = np.array(_ids(encode([column], {"x": values})["bucketized_x"]))
    assert np.bincount(ids.astype(int)).tolist() == [25, 25, 25, 25]
    assert values[ids == 0].max() < values[ids == 1].min()


def test_lists_of_numbers_are_pooled(encode):
    column = features.Bucketized(names=["x"], boundaries=[5], dimension=None, pooling="sum")
    encoded = encode([column], {"x": [[1, 9, 7], []]})["bucketized_x"]
    assert encoded.tolist() == [[1, 2, 0], [0, 0, 0]]


def _cross(*values):
    rows = [np.array(value)[:, None] for value in values]
    return tf.ragged.cross_hashed(rows, 1000).flat_values.numpy().tolist()


def test_a_cross_is_the_hash_of_the_combination(encode):
    jobs, places = zip(*itertools.product(["a", "b", "c"], [1, 2]), strict=True)
    column = features.Crossed(crosses=[["job", "place"], ["place", "job"]])
    batch = {"job": np.array(jobs), "place": np.array(places)}
    encoded = encode([column], batch)
    ids = _ids(encoded["crossed_job_x_place"])
    assert ids == _cross(jobs, [str(place) for place in places])
    assert len(set(ids)) == 6
    assert set(encoded) == {"crossed_job_x_place", "crossed_place_x_job"}


def test_fields_can_be_bucketized_in_a_cross(encode):
    column = features.Crossed(
        crosses=[["age", "job"], ["age", "hours"]], boundaries={"age": [30], "hours": 2}
    )
    batch = {
        "age": np.array([20.0, 29.0, 30.0, 60.0]),
        "hours": np.array([1.0, 2.0, 3.0, 4.0]),
        "job": np.array(["a", "a", "a", "b"]),
    }
    encoded = encode([column], batch)
    assert _ids(encoded["crossed_age_x_job"]) == _cross([0, 0, 1, 1], batch["job"])
    assert _ids(encoded["crossed_age_x_hours"]) == _cross([0, 0, 1, 1], [0, 0, 1, 1])


def test_a_cross_with_a_list_pools_every_combination(encode):
    column = features.Crossed(crosses=[["job", "tags"]], dimension=None, num_buckets=1000)
    batch = {"job": np.array(["a", "b"]), "tags": [["x", "y"], []]}
    encoded = encode([column], batch)["crossed_job_x_tags"]
    expected = np.zeros([2, 1000])
    np.add.at(expected[0], _cross(["a", "a"], ["x", "y"]), 0.5)
    np.testing.assert_allclose(encoded, expected)


def test_a_fraction_in_a_cross_needs_boundaries(encode):
    column = features.Crossed(crosses=[["x", "y"]])
    with pytest.raises(checks.UserError, match="Crossed.names must name fields of strings or int"):
        encode([column], {"x": np.array([0.5]), "y": np.array(["a"])})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: features.Bucketized(names=["x"], boundaries=1), "boundaries must be at least 2"),
        (lambda: features.Bucketized(names=["x"], boundaries=[]), "boundaries must ascend"),
        (lambda: features.Bucketized(names=["x"], boundaries=[2, 1]), "boundaries must ascend"),
        (lambda: features.Bucketized(names=["x"], boundaries="x"), "must be a number of buckets"),
        (lambda: features.Crossed(crosses=[["x"]]), "must join at least two fields"),
        (lambda: features.Crossed(crosses=["ab"]), "Crossed.crosses must be a list of fields"),
        (lambda: features.Crossed(crosses=[]), "Crossed.crosses must hold a cross"),
        (
            lambda: features.Crossed(crosses=[["age", "job"]], boundaries={"agee": 3}),
            "Did you mean 'age'?",
        ),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError) as error:
        make()
    assert message in str(error.value)


_LIMITS = np.iinfo(np.int64)


@pytest.mark.parametrize(
    "boundaries",
    [
        [0, 10],
        [-0.5, 0.5, 3.000001],
        [2**24 + 1, 2**24 + 2],
        [2**53, 2**53 + 1, 2**53 + 3],
        [_LIMITS.min, -1, _LIMITS.max],
        [-1e30, -1e19, 0, 1e19, 1e30],
        [-np.inf, 0, np.inf],
    ],
)
def test_integers_meet_their_boundaries_exactly(encode, boundaries):
    around = [int(b) for b in boundaries if abs(b) < 2**62]
    values = sorted({b + d for b in around for d in (-2, -1, 0, 1, 2)})
    values += [_LIMITS.min, _LIMITS.min + 1, _LIMITS.max - 1, _LIMITS.max]
    column = features.Bucketized(names=["x"], boundaries=boundaries)
    ids = _ids(encode([column], {"x": np.array(values, np.int64)})["bucketized_x"])
    assert ids == [sum(value >= b for b in boundaries) for value in values]  # Python's are exact.


@pytest.mark.parametrize("start", [0, 2**24, 1_700_000_000, 2**60])
def test_boundaries_of_integers_are_fitted_exactly(encode, start):
    values = start + np.random.default_rng(0).permutation(1000).astype(np.int64)
    column = features.Bucketized(names=["x"], boundaries=100)
    ids = np.array(_ids(encode([column], {"x": values})["bucketized_x"])).astype(int)
    assert np.bincount(ids).tolist() == [10] * 100
    assert (np.diff(ids[np.argsort(values)]) >= 0).all()


def test_large_integers_of_lists_and_crosses(encode):
    first = 2**24
    list_ = features.Bucketized(
        names=["x"], boundaries=[first + 1], dimension=None, pooling="sum", prefix="list"
    )
    encoded = encode([list_], {"x": [[first, first + 1, first + 2], []]})["list_x"]
    assert encoded.tolist() == [[1, 2, 0], [0, 0, 0]]
    cross = features.Crossed(crosses=[["a", "b"]], boundaries={"a": [first + 1]})
    batch = {"a": np.array([first, first + 1]), "b": np.array(["u", "u"])}
    encoded = encode([cross], batch)
    assert _ids(encoded["crossed_a_x_b"]) == _cross([0, 1], batch["b"])


def test_bools_and_bytes_have_buckets(encode):
    column = features.Bucketized(names=["x"], boundaries=[0.5, 200])
    assert _ids(encode([column], {"x": np.array([True, False])})["bucketized_x"]) == [1, 0]
    bytes_ = np.array([0, 1, 199, 200, 255], np.uint8)
    column = features.Bucketized(names=["x"], boundaries=[0.5, 200], prefix="b")
    assert _ids(encode([column], {"x": bytes_})["b_x"]) == [0, 1, 1, 2, 2]
