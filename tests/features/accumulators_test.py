import numpy as np
import pytest

from mtl import checks
from mtl.features import accumulators


def _moments(batches):
    gathered = accumulators.Moments(source="x", read=lambda values: values)
    for batch in batches:
        gathered.update(batch)
    return gathered.save("", "x")


def test_moments_merge_batches_as_numpy_does_over_all_rows():
    values = np.random.default_rng(1).normal([1e6, -3, 0], [1, 10, 1e-3], (1003, 3))
    result = _moments(np.array_split(values, 17))
    np.testing.assert_allclose(result["mean"], values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result["stddev"], values.std(0), rtol=1e-9)
    np.testing.assert_array_equal(result["least"], values.min(0))
    np.testing.assert_array_equal(result["greatest"], values.max(0))


def test_moments_leave_out_what_is_not_finite_in_any_batch():
    values = np.array([[np.nan, 1.0], [np.inf, 2.0], [3.0, np.nan], [5.0, -np.inf]])
    result = _moments([values[:2], values[2:]])
    assert result["mean"] == [4.0, 1.5]
    assert result["stddev"] == [1.0, 0.5]
    assert (result["least"], result["greatest"]) == ([3.0, 1.0], [5.0, 2.0])


def test_equal_values_have_no_deviation():
    """The logarithms of a field of integers, whose float64 sums are rounded."""
    batch = np.tile(np.log1p(np.arange(1.0, 40.0)), (100, 1))
    assert _moments([batch] * 10)["stddev"] == [0.0] * 39


def test_moments_of_nothing_are_refused():
    with pytest.raises(checks.UserError, match="must be fitted on a finite number"):
        _moments([np.full([3, 1], np.nan)])


def test_quantiles_split_into_equal_shares():
    values = np.random.default_rng(2).exponential(size=10_000)
    boundaries = accumulators.quantile_boundaries(values, 8)
    shares = np.bincount(np.searchsorted(boundaries, values, side="right")) / len(values)
    np.testing.assert_allclose(shares, np.full(8, 1 / 8), atol=1e-3)


def test_a_frequent_value_gets_a_bucket_of_its_own_and_the_rest_is_even():
    values = np.concatenate([np.arange(30), np.full(50, 40), np.arange(41, 61)])
    buckets = np.searchsorted(accumulators.quantile_boundaries(values, 11), values, side="right")
    assert set(values[buckets == buckets[values == 40][0]]) == {40}
    assert np.bincount(buckets).tolist() == [5] * 6 + [50] + [5] * 4


@pytest.mark.parametrize(
    "values, num_buckets, expected",
    [
        ([0] * 90 + list(range(1, 11)), 3, [1, 6]),
        ([0] * 90 + list(range(1, 11)), 50, list(range(1, 11))),
        ([7] * 5, 10, []),
        ([0, 1], 2, [1]),
        ([0] + [1] * 99, 10, [1]),
        ([0] * 900 + [3] * 90 + [5] * 8 + [8, 9], 4, [3, 5, 8]),
    ],
)
def test_frequent_values_are_set_apart_before_the_rest_is_split(values, num_buckets, expected):
    assert accumulators.quantile_boundaries(np.array(values), num_buckets).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_bucket_is_empty_and_none_but_a_single_value_is_much_too_full(seed):
    random = np.random.default_rng(seed)
    values = random.zipf(1.0 + random.random() * 2 + 0.1, 1000).clip(max=500)
    num_buckets = int(random.integers(2, 40))
    boundaries = accumulators.quantile_boundaries(values, num_buckets)
    buckets = np.searchsorted(boundaries, values, side="right")
    sizes = np.bincount(buckets)
    assert (sizes > 0).all()
    for bucket, size in enumerate(sizes):
        assert size <= 2 * 1000 / num_buckets or len(set(values[buckets == bucket])) == 1


def test_quantiles_of_many_values_come_from_a_bounded_sample(monkeypatch):
    monkeypatch.setattr(accumulators, "_SAMPLE_SIZE", 5000)
    gathered = accumulators.Quantiles(source="x", read=lambda values: values, num_buckets=4)
    values = np.random.default_rng(3).normal(size=100_000)
    for batch in np.split(values, 100):
        gathered.update(batch)
        assert len(gathered._sample._values) <= 2 * 5000
    np.testing.assert_allclose(
        gathered.save("", "x")["boundaries"], np.quantile(values, [0.25, 0.5, 0.75]), atol=0.05
    )


def test_vocabulary_is_ranked_by_frequency_then_bytes(tmp_path, caplog):
    gathered = accumulators.Vocabulary(reads={"x": lambda values: values}, min_count=2, max_size=3)
    gathered.update(np.array([b"b", b"a", b"c", b"c", b"once"], object))
    gathered.update(np.array([b"a", b"b", b"c", b"d", b"d", b"x\ny", b"x\ny"], object))
    saved = gathered.save(str(tmp_path), "job")
    assert saved == {"file": "vocabulary_job.txt", "size": 3}
    assert (tmp_path / "vocabulary_job.txt").read_bytes() == b"c\na\nb\n"
    assert "1 frequent value(s) of x have a line break, such as 'x\\ny'" in caplog.text


def test_repr_tells_the_settings_and_not_the_state():
    gathered = accumulators.Quantiles(source="age", read=lambda values: values, num_buckets=4)
    before = repr(gathered)
    gathered.update(np.arange(3.0))
    assert repr(gathered) == before == "Quantiles(source='age', num_buckets=4)"


def test_bins_reach_from_the_least_to_the_greatest_value_of_each_element(monkeypatch):
    monkeypatch.setattr(accumulators, "_SAMPLE_SIZE", 500)
    gathered = accumulators.Bins(source="x", read=lambda values: values, num_bins=4)
    values = np.random.default_rng(3).normal([0, 9], size=(10_000, 2))
    values[5000] = [np.nan, np.inf]
    for batch in np.split(values, 100):
        gathered.update(batch)
    saved = gathered.save("", "x")
    finite = np.delete(values, 5000, axis=0)
    for element, boundaries in enumerate(saved["boundaries"]):
        of = finite[:, element]
        assert (boundaries[0], boundaries[-1]) == (of.min(), of.max())
        np.testing.assert_allclose(boundaries[1:-1], np.quantile(of, [0.25, 0.5, 0.75]), atol=0.2)
    assert saved["least"] == finite.min(0).tolist()
    assert saved["greatest"] == finite.max(0).tolist()


def test_bins_of_integers_are_exact_and_of_one_value_none():
    gathered = accumulators.Bins(source="x", read=lambda values: values, num_bins=2)
    first = 2**60 + 1
    gathered.update(np.array([[first, 7], [first + 2, 7], [first + 4, 7], [first + 6, 7]]))
    assert gathered.save("", "x")["boundaries"] == [[first, first + 4, first + 6], [7]]


def test_bins_of_what_is_mostly_missing_reach_to_its_ends(monkeypatch):
    monkeypatch.setattr(accumulators, "_SAMPLE_SIZE", 3)
    gathered = accumulators.Bins(source="x", read=lambda values: values, num_bins=4)
    values = np.full([1000, 1], np.nan)
    values[[17, 400]] = [[5.0], [9.0]]
    for batch in np.split(values, 100):
        gathered.update(batch)
    assert gathered.save("", "x")["boundaries"] == [[5.0, 9.0]]


def test_bins_of_many_elements_are_of_a_sample_of_fewer_rows(monkeypatch):
    monkeypatch.setattr(accumulators, "_SAMPLE_SIZE", 100)
    gathered = accumulators.Bins(source="x", read=lambda values: values, num_bins=2)
    gathered.update(np.random.default_rng(0).normal(size=(1000, 32)))
    assert gathered._sample.take().shape == (50, 32)


def test_bins_of_nothing_are_refused():
    gathered = accumulators.Bins(source="x", read=lambda values: values, num_bins=2)
    gathered.update(np.array([[1, np.nan], [2, np.nan]]))
    with pytest.raises(checks.UserError, match="must be fitted on a finite number"):
        gathered.save("", "x")


def test_quantiles_of_integers_are_integers():
    gathered = accumulators.Quantiles(source="x", read=lambda values: values, num_buckets=2)
    gathered.update(np.array([2**60 + 1, 2**60 + 3], np.int64))
    gathered.update(np.array([2**60 + 5, 2**60 + 7], np.int64))
    assert gathered.save("", "x") == {"boundaries": [2**60 + 5]}


def test_moments_taken_together_are_those_of_each_alone():
    batches = [
        {"a": np.random.default_rng(i).normal(size=(9, 1)), "b": i + np.eye(9)[:, :2]}
        for i in range(4)
    ]
    batches[1]["a"][3] = np.nan

    def gathered(update):
        parts = [
            accumulators.Moments(source=n, read=lambda f, n=n: f[n], by_example=True) for n in "ab"
        ]
        for batch in batches:
            update(parts, batch)
        return [part.save("", part.source) for part in parts]

    updates = {}
    one = gathered(
        lambda parts, batch: [
            update(batch) for update in updates.setdefault(0, accumulators.together(parts))
        ]
    )
    other = gathered(lambda parts, batch: [part.update(batch) for part in parts])
    for mine, theirs in zip(one, other, strict=True):
        for name in mine:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-12)
