"""Rows are drawn over the whole split, each with the same chance, and groups stay whole."""

import numpy as np
import pytest

from mtl import spec
from mtl.data import pipeline
from mtl.tools.explaining import drawn_rows
from tests import tiny

SPEC = spec.Spec(features={"x": "int64"}, labels={"user": "string"})
NUM = 5000
USERS = np.array([b"user %d" % (i // 7 % 300) for i in range(NUM)], object)


def make(num=NUM):
    rows = {"x": np.arange(num), "user": USERS[:num]}
    source = tiny.Rows(splits={"train": rows, "test": rows})
    return pipeline.Pipeline(source=source, spec=SPEC, batch_size=64)


def read(data, split="test"):
    batches = data.dataset(split, training=False, seed=0).as_numpy_iterator()
    return np.concatenate([features["x"] for features, _ in batches])


@pytest.mark.medium
def test_the_rows_that_are_read_are_those_that_were_drawn():
    data = make()
    drawn = drawn_rows.draw(data, "test", 500, seed=3)
    kept = drawn_rows.keep(data, "test", drawn)
    assert len(drawn.places) == 500 and drawn.total == NUM and not drawn.is_whole
    assert read(kept).tolist() == drawn.places.tolist()
    scanned = [values["x"] for _, values in kept.source.scan("test", SPEC)]
    assert scanned == drawn.places.tolist()
    assert len(read(kept, "train")) == NUM


def test_each_row_is_drawn_with_the_same_chance():
    counts = np.zeros(200)
    for seed in range(300):
        counts[drawn_rows._choose(np.arange(200), 50, seed)] += 1
    # 300 draws of a quarter each have a variance of 300 * 1/4 * 3/4.
    chi_square = ((counts - 75) ** 2).sum() / (300 * 0.25 * 0.75)
    assert abs(chi_square - 199) < 4 * np.sqrt(2 * 199)


def test_all_rows_of_a_split_that_has_no_more():
    data = make(50)
    drawn = drawn_rows.draw(data, "test", 50, seed=3)
    assert drawn.is_whole and drawn_rows.keep(data, "test", drawn) is data


def test_seeds_decide():
    data = make()
    one, same, other = (drawn_rows.draw(data, "test", 500, seed=s).places for s in (1, 1, 2))
    assert one.tolist() == same.tolist() and len(set(one) & set(other)) < 100


@pytest.mark.parametrize("most", [1, 500])
def test_groups_stay_whole(most):
    drawn = drawn_rows.draw(make(), "test", most, seed=3, group="user")
    chosen, counts = np.unique(USERS[drawn.places], return_counts=True)
    sizes = dict(zip(*np.unique(USERS, return_counts=True), strict=True))
    assert [sizes[user] for user in chosen] == counts.tolist()
    assert most <= len(drawn.places) < most + max(sizes.values())
