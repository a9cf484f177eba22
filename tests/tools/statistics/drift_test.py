"""Drift beside scipy, and how often chance alone is taken for drift."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from mtl.tools.statistics import columns, drift, facts, gathering


def _describe(table, name="data"):
    limits = columns.Limits()
    made = {}
    for column in table.column_names:
        collected = gathering.start_typed(table[column].type, limits)
        for chunk in table[column].chunks:
            collected.add(chunk)
        made[column] = collected.finish(column)
    return facts.Dataset(name=name, rows=len(table), columns=made)


def _compare(before, after):
    return drift.compare(*(_describe(pa.table(one)) for one in (before, after)))


def _one(before, after):
    (found,) = _compare({"x": before}, {"x": after}).differences
    return found


@pytest.mark.parametrize("size", [30, 3000, 90_000])
def test_numbers_have_the_distance_of_scipy(size):
    draw = np.random.default_rng(0)
    for after in (
        draw.normal(size=size),
        draw.normal(0.3, 2, 500),
        draw.integers(0, 3, size) * 1.0,
    ):
        before = draw.normal(size=50_000)
        found = _one(before, after).values
        true = stats.ks_2samp(before, after).statistic
        bound = 1e-12 if size < 65_536 else 0.002
        assert found.what == "KS" and abs(found.distance - true) <= bound


def test_texts_have_the_largest_difference_of_a_share():
    before, after = ["a"] * 60 + ["b"] * 40, ["a"] * 20 + ["c"] * 20 + ["b"] * 10
    found = _one(before, after)
    assert found.values.what == "L-infinity"
    assert math.isclose(found.values.distance, 0.4)
    assert math.isclose(found.unseen.distance, 0.4)
    lists = _one([["a"], ["a", "b"]], [["b"], None])
    assert math.isclose(lists.values.distance, 2 / 3) and lists.gaps.distance == 0.5


@pytest.mark.parametrize("size", [10, 100, 2000])
def test_a_sample_of_the_same_rows_is_no_drift(size):
    """1 in 100 comparisons may exceed its noise."""
    draw = np.random.default_rng(0)
    before = {
        "normal": draw.normal(size=20_000),
        "whole": draw.integers(0, 4, 20_000),
        "skewed": draw.lognormal(size=20_000),
        "few": draw.choice(["a", "b", "c"], 20_000, p=[0.7, 0.29, 0.01]),
        "many": [f"w{n}" for n in draw.zipf(1.2, 20_000)],
        "ids": [f"i{n}" for n in range(20_000)],
    }
    table = pa.table(
        {name: pa.array(values, mask=draw.random(20_000) < 0.1) for name, values in before.items()}
    )
    old, new = table[:10_000], table[10_000:]
    known, failures = _describe(old), 0
    for _ in range(60):
        some = new.take(draw.choice(len(new), size, replace=False))
        failures += bool(drift.compare(known, _describe(some)).list_failures(0.0))
    assert failures <= 2


@pytest.mark.parametrize("fields", [1, 5])
def test_all_measures_of_all_fields_share_the_chance(fields):
    """Values, gaps, unseen and unknown values of a field may each exceed their noise."""
    draw = np.random.default_rng(0)
    sizes = (4000, 1000)
    tables = [
        {f"x{n}": np.where(draw.random(size) < 0.5, np.nan, 1.0) for n in range(fields)}
        for size in sizes
    ]
    found = _compare(*tables)
    measures = len(found.differences[0].shifts)
    for difference in found.differences:
        rows = (difference.before.count, difference.after.count)
        scale = 1 / rows[0] + 1 / rows[1]
        # The first term of the series bounds the test of Kolmogorov and Smirnov.
        chance = 2 * math.exp(-2 * difference.values.noise**2 / scale)
        assert chance <= 0.01 / (fields * measures) * (1 + 1e-9)


def test_drift_beyond_noise_is_found():
    draw = np.random.default_rng(0)
    before = {"x": draw.normal(size=5000), "t": draw.choice(["a", "b"], 5000), "g": np.ones(5000)}
    gaps = np.where(draw.random(1000) < 0.3, np.nan, 1.0)
    after = {
        "x": draw.normal(0.5, 1, 1000),
        "t": draw.choice(["a", "b"], 1000, p=[0.8, 0.2]),
        "g": gaps,
    }
    found = _compare(before, after)
    told = found.list_failures(0.1)
    assert len(told) == 3
    assert any("'x': KS 0.2" in line for line in told) and any("'t': L-inf" in one for one in told)
    assert any(line.startswith("'g': gaps 0.") for line in told)
    assert found.list_failures(0.9) == []
    assert [one.name for one in found.differences] == sorted(
        before, key=lambda name: -{one.name: one.largest for one in found.differences}[name]
    )


def test_new_values_beyond_those_to_be_expected_are_drift():
    """Each new value alone is rare, so no share of a value changes by much."""
    draw = np.random.default_rng(0)
    before = [f"w{n}" for n in draw.integers(0, 500, 20_000)]
    after = [f"w{n}" for n in draw.integers(0, 500, 1000)]
    after[:300] = [f"new{n}" for n in range(300)]
    found = _one(before, after)
    assert not found.values.exceeds(0.1) and found.unseen.exceeds(0.1)
    assert math.isclose(found.unseen.distance, 0.3)


def test_columns_come_go_and_change():
    before = {"x": [1, 2], "gone": [1, 2], "same": ["a", "b"], "none": [None, None]}
    after = {"x": ["1", "b"], "new": [1, 2], "same": ["a", "b"], "none": [1, 2]}
    found = _compare(before, {**after, "none": pa.array([1, 2])})
    assert (found.lost, found.added) == (["gone"], ["new"])
    told = found.list_failures(0.5)
    assert told[0] == "'gone' is lost" and told[1] == "'x': int, now text"
    assert len(told) == 2
    assert not _one([1, 2, 3] * 50, [1.0, 2.0, 3.0] * 50).changed
    assert _one([1, 2], [[1], [2]]).changed == "int, now list of int"


def test_times_and_empty_columns_have_no_distance():
    days = pa.array([0, 1], pa.date32()), pa.array([500, 600], pa.date32())
    assert math.isnan(_one(*days).values.distance)
    empty = pa.array([None] * 2, pa.float64())
    assert math.isnan(_one(empty, empty).values.distance) and _one(empty, empty).largest == 0
    infinite = _one([1.0, 2.0], [math.inf, math.inf])
    assert math.isnan(infinite.values.distance)


def test_a_tiny_file_cannot_drift_by_chance():
    found = _one(np.random.default_rng(0).normal(size=1000), [3.0])
    assert found.values.distance > 0.9 and not found.values.exceeds(0.1)
