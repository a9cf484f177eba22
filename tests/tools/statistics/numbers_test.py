"""Numbers against NumPy: moments, exact tables, the sketch beyond them, and estimates."""

import math

import numpy as np
import pytest

from mtl.tools.statistics import hashing, numbers


def _gather(values, most=numbers.MOST_VALUES, step=1000):
    made = numbers.Numbers(most)
    for start in range(0, len(values), step):
        made.add(values[start : start + step])
    return made


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e12])
def test_moments_equal_numpy_with_an_offset(offset):
    values = np.random.default_rng(0).normal(size=20_001) + offset
    found = _gather(values)
    assert math.isclose(found.mean, values.mean(), rel_tol=1e-14, abs_tol=1e-14)
    assert math.isclose(found.deviation, (values - offset).std(), rel_tol=1e-11)
    assert (found.least, found.greatest) == (values.min(), values.max())


def test_integers_beyond_2_to_53_are_exact():
    base = 2**63 - 1000
    values = base + np.random.default_rng(0).integers(0, 900, 5000)
    found = _gather(values)
    assert (found.least, found.greatest) == (int(values.min()), int(values.max()))
    assert math.isclose(found.deviation, (values - base).std(), rel_tol=1e-12)
    assert found.count_distinct() == len(np.unique(values))
    assert found.find_quantiles([0.5]) == [
        int(np.quantile(values - base, 0.5, method="inverted_cdf")) + base
    ]
    wide = _gather(np.array([-(2**63), 2**63 - 1, 0]))
    assert math.isclose(wide.deviation, np.array([-(2.0**63), 2.0**63, 0.0]).std())


def test_nan_and_infinity_are_counted_apart():
    found = _gather(np.array([1.0, np.nan, np.inf, -np.inf, 3.0, -0.0, 0.0]), step=2)
    assert (found.count, found.nans, found.infinite, found.zeros) == (4, 1, 2, 2)
    assert (found.mean, found.deviation) == (1.0, np.std([1, 3, 0, 0]))
    assert found.count_distinct() == 3 and found.list_frequent(1) == [(0.0, 2)]


def test_an_empty_column_and_one_number():
    empty, one = _gather(np.array([np.nan])), _gather(np.array([7]))
    assert math.isnan(empty.mean) and math.isnan(empty.deviation) and math.isnan(empty.least)
    assert all(map(math.isnan, empty.find_quantiles([0, 1]))) and empty.count_distinct() == 0
    assert (one.mean, one.deviation, one.find_quantiles([0, 0.5, 1])) == (7.0, 0.0, [7, 7, 7])


@pytest.mark.parametrize("kind", ["normal", "few", "sorted", "int"])
def test_tables_are_exact(kind):
    draw = np.random.default_rng(0)
    values = {
        "normal": draw.normal(size=9999),
        "few": draw.integers(0, 5, 9999) / 2,
        "sorted": np.arange(9999.0)[::-1],
        "int": draw.integers(-1000, 1000, 9999),
    }[kind]
    found = _gather(values, step=777)
    assert found.is_exact and found.rank_error == 0 and found.lost == 0
    shares = np.linspace(0, 1, 33)
    assert (
        found.find_quantiles(shares) == np.quantile(values, shares, method="inverted_cdf").tolist()
    )
    distinct, counts = np.unique(values, return_counts=True)
    assert found.count_distinct() == len(distinct)
    assert found.list_frequent(1) == [(distinct[counts.argmax()], counts.max())]


@pytest.mark.parametrize("kind", ["normal", "sorted", "heavy"])
def test_beyond_the_table_errors_stay_within_the_bounds(kind):
    draw = np.random.default_rng(0)
    values = draw.normal(size=400_000)
    if kind == "sorted":
        values.sort()
    elif kind == "heavy":
        values[draw.random(len(values)) < 0.3] = 5.0
    found = _gather(values, most=5000, step=30_000)
    assert not found.is_exact and 0 < found.rank_error < 0.002
    ordered, shares = np.sort(values), np.linspace(0.01, 0.99, 99)
    for share, value in zip(shares, found.find_quantiles(shares), strict=True):
        low = np.searchsorted(ordered, value, "left") / len(ordered)
        high = np.searchsorted(ordered, value, "right") / len(ordered)
        assert low - found.rank_error <= share <= high + found.rank_error
    distinct = len(np.unique(values))
    assert abs(found.count_distinct() / distinct - 1) < 5 * hashing.ERROR
    if kind == "heavy":
        value, count = found.list_frequent(1)[0]
        true = int((values == 5.0).sum())
        assert value == 5.0 and true - found.lost <= count <= true
    _, weights = found.weigh()
    assert weights.sum() == len(values)


def test_the_rank_error_counts_waiting_numbers():
    """No other method has moved the waiting numbers into the sketch."""
    column = _gather(np.random.default_rng(0).permutation(30_000), most=100, step=30_000)
    first = column.rank_error
    column.weigh()
    assert 0 < first == column.rank_error


def test_blocks_of_whole_and_broken_numbers_are_one_column():
    found = numbers.Numbers()
    for part in (np.array([1, 2]), np.array([2.0, 0.5])):
        found.add(part)
    assert found.count_distinct() == 3 and not found.is_whole
    assert found.list_frequent(1) == [(2.0, 2)]


def test_equal_numbers_have_equal_hashes():
    whole = np.array([0, 5, -7, 2**53])
    hashes = hashing.hash_numbers(whole)
    assert (hashes == hashing.hash_numbers(whole.astype(float))).all()
    assert hashing.hash_numbers(np.array([-0.0])) == hashes[:1]
    assert len(np.unique(hashing.hash_numbers(np.arange(100_000)))) == 100_000
    near = np.array([2**62, 2**62 + 1])
    assert len(np.unique(hashing.hash_numbers(near))) == 2
