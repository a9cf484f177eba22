import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from mtl import checks, spec, types
from mtl.data import pipeline, subset
from mtl.data import source as source_lib
from tests import tiny

pytestmark = pytest.mark.medium

SPEC = spec.Spec(features={"x": "int64"}, labels={})


def read(share, split="train", **settings):
    rows = {"x": np.arange(20_000)}
    source = tiny.Rows(splits={"train": rows, "test": {"x": np.arange(9)}})
    source = subset.Subset(source=source, share=share, **settings)
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=500)
    batches = data.dataset(split, training=False, seed=0).as_numpy_iterator()
    found = np.concatenate([features["x"] for features, _ in batches])
    assert [values["x"] for _, values in source.scan(split, SPEC)] == found.tolist()
    return found


@pytest.mark.parametrize("seed", [1, 2, 77])
def test_a_share_of_the_rows_drawn_evenly(seed):
    found = read(0.05, seed=seed)
    # 1,000 rows are expected, with a standard deviation of 31.
    assert abs(len(found) - 1000) < 125
    halves = np.histogram(found, bins=4, range=(0, 20_000))[0]
    assert (abs(halves - len(found) / 4) < 60).all()
    assert abs(np.mean(found % 2) - 0.5) < 0.07


def test_seeds_differ_and_shares_are_nested():
    small, large, other = read(0.01), read(0.1), read(0.1, seed=2)
    assert set(small) < set(large)
    assert len(set(large) & set(other)) < 0.2 * len(large)
    assert read(1.0).tolist() == list(range(20_000))


def test_other_splits_are_passed_on():
    assert read(0.01, split="test").tolist() == list(range(9))


def test_what_is_held_out_is_in_no_training_split():
    settings = {"held_out": {"validation": 0.1, "calibration": 0.2}}
    train = read(0.7, **settings)
    held_out = [read(0.01, split, **settings) for split in settings["held_out"]]
    for found, expected in zip(held_out, (2000, 4000), strict=True):
        assert abs(len(found) - expected) < 250
    together = np.concatenate([train, *held_out])
    assert sorted(together) == list(range(20_000))


def _draw(seed, share=0.2, size=100_000, **settings):
    """Return 1.0 for each of the first rows that is held out, and 0.0 for the others."""
    source = tiny.Rows(splits={"train": {"x": np.arange(1)}})
    part = subset.Subset(
        source=source, share=1 - share, held_out={"test": share}, seed=seed, **settings
    )
    return np.asarray(part._takes("test", np.arange(size)), np.float64)


@pytest.mark.parametrize("seed", [1, 2, 77, -3, 2**40])
def test_rows_are_drawn_apart_at_every_distance(seed):
    """Products of rows at any distance are distributed as with independent draws."""
    drawn = _draw(seed)
    size = len(drawn)
    deviation = (drawn - 0.2) / 0.4
    assert abs(deviation.sum()) < 4.5 * size**0.5
    spectrum = np.fft.rfft(deviation, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[1 : size // 2]
    pairs = size - np.arange(1, size // 2)
    # With a probability of .998 all of 50,000 normal draws are below 5.5.
    assert np.abs(products / pairs**0.5).max() < 5.5


@pytest.mark.parametrize("seed", [1, 77])
def test_gaps_are_those_of_draws_and_no_phase_of_a_period_is_left_out(seed):
    drawn = _draw(seed)
    gaps = np.diff(np.flatnonzero(drawn))
    counts = np.bincount(np.minimum(gaps, 30), minlength=31)[1:]
    chances = 0.2 * 0.8 ** np.arange(30)
    chances[-1] = 0.8**29
    assert scipy.stats.chisquare(counts, chances * len(gaps)).pvalue > 1e-4
    for period in (2, 7, 24, 64, 72, 365, 1024):
        whole = drawn[: len(drawn) // period * period].reshape(-1, period)
        found = ((whole.mean(0) - 0.2) ** 2).sum() / (0.16 / len(whole))
        assert scipy.stats.chi2.sf(found, period) > 1e-4


def test_seeds_draw_apart_also_by_the_bits_of_the_rows():
    """No xor of row numbers turns the draw of one seed into the draw of another seed."""
    rows = np.arange(1 << 13)
    draws = [_draw(seed, 0.5, len(rows)) - 0.5 for seed in (1, 2, 3)]
    for one, other in ((0, 1), (0, 2), (1, 2), (0, 0)):
        for bits in range(one == other, 1 << 13, 37):
            alike = (draws[one] * draws[other][rows ^ bits]).sum() * 4
            # If both have the same seed, each pair is counted twice.
            assert abs(alike) < 5.5 * len(rows) ** 0.5 * (2**0.5 if one == other else 1)


def test_runs_of_before_keep_their_rows():
    """As version 0.2 drew them."""
    rows = {1: [63, 129, 138, 166, 204, 232, 241], 77: [43, 52, 80, 118, 155, 359, 425]}
    for seed, expected in rows.items():
        drawn = _draw(seed, 0.02, 1000, draw="lattice")
        assert np.flatnonzero(drawn)[:7].tolist() == expected
    assert read(0.02, draw="lattice").tolist() != read(0.02).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0}, "Subset.share must be above 0"),
        ({"share": 1.5}, "Subset.share must be at most 1, got 1.5"),
        (
            {"share": 0.9, "held_out": {"dev": 0.2}},
            "Subset.share must be at most 1, held_out included, got 1.1",
        ),
        ({"share": 0.5, "held_out": {"dev": 0}}, r"Subset.held_out\['dev'\] must be above 0"),
        ({"share": 0.5, "held_out": {"train": 0.1}}, "Subset.held_out must be new beside 'train'"),
        (
            {"share": 0.5, "draw": "latice"},
            "Subset.draw must be one of hash, lattice, got 'latice'",
        ),
        ({"share": 0.5, "held_out": 0.1}, "Subset.held_out must map splits to shares"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(checks.UserError, match=message):
        read(**settings)


class Counts(types.Source):
    """Lists from 0 up, row n of n entries."""

    def records(self, split):
        @tf.autograph.experimental.do_not_convert
        def count(number):
            return {"list": tf.range(number), "number": number}

        return tf.data.Dataset.range(8).map(count)

    def decode(self, batch, spec, with_labels):
        return batch

    def scan(self, split, spec):
        yield from ()


def test_rows_of_different_lengths_are_chosen_whole():
    half = subset.Subset(source=Counts(), share=0.5, held_out={"test": 0.5})
    found = [
        (row, number)
        for split in ("train", "test")
        for batch in source_lib.read_batches(half, split, 3)
        for row, number in zip(batch["list"].to_list(), batch["number"].numpy(), strict=True)
    ]
    assert sorted(number for _, number in found) == list(range(8))
    assert all(row == list(range(number)) for row, number in found)
    (first, *_) = half.records("train")
    assert first["list"].numpy().tolist() == list(range(first["number"]))
