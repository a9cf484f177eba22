"""A table whose labels depend on the place of a row is told; one in random order is not."""

import math

import numpy as np

from mtl import spec, types
from mtl.data import mixing

SPEC = spec.Spec(features={"x": "float32"}, labels={"clicked": "int64", "minutes": "float32"})


def _describe(clicked, minutes, window, sizes=(100,) * 20):
    ends = np.cumsum(sizes)

    def read(block, fields):
        own = slice(ends[block] - sizes[block], ends[block])
        return {name: {"clicked": clicked, "minutes": minutes}[name][own] for name in fields}

    return mixing.describe_mixing(types.Blocks(sizes, window, read), SPEC, 128)


def test_a_sorted_label_is_told_and_a_mixed_one_is_not():
    draw = np.random.default_rng(0)
    clicked = np.sort(draw.integers(0, 2, 2000))
    minutes = draw.normal(size=2000).astype(np.float32)
    minutes[::7] = np.nan
    first, second = _describe(clicked, minutes, window=500)
    assert first == "Training mixes 500 of 2,000 rows at a time, about 5 of 20 blocks."
    assert second.startswith("Label 'clicked' depends on the position of a row")
    assert len(_describe(draw.permutation(clicked), minutes, window=500)) == 1
    assert len(_describe(clicked, minutes, window=2000)) == 1


def test_the_variance_of_a_batch_is_that_of_drawn_batches():
    draw = np.random.default_rng(1)
    rates = draw.uniform(0.2, 0.8, 400)
    blocks = [draw.binomial(1, rate, 2000) for rate in rates]
    factor = mixing.measure_batches([block.astype(float) for block in blocks], 8, 256)
    means = []
    for _ in range(3000):
        chosen = draw.choice(400, 8, replace=False)
        means.append(np.mean([draw.choice(blocks[block], 32) for block in chosen]))
    rate = np.mean(blocks)
    expected = np.std(means) / math.sqrt(rate * (1 - rate) / 256)
    assert abs(factor / expected - 1) < 0.1


def test_blocks_of_two_rows_have_the_intraclass_correlation_of_an_analysis_of_variance():
    draw = np.random.default_rng(3)
    blocks = 10 * draw.normal(size=[40, 1]) + draw.normal(size=[40, 2])
    between = 2 * blocks.mean(axis=1).var(ddof=1)
    within = ((blocks[:, 0] - blocks[:, 1]) ** 2 / 2).mean()
    correlation = (between - within) / (between + within)
    factor = mixing.measure_batches(list(blocks), 4, 128)
    np.testing.assert_allclose(factor, math.sqrt(1 + 127 * correlation / 4), rtol=1e-12)


def test_constant_and_missing_labels_are_not_told():
    zeros = np.zeros([2000], np.int64)
    nothing = np.full([2000], np.nan, np.float32)
    assert len(_describe(zeros, nothing, window=500)) == 1


def test_a_sorted_block_larger_than_the_window_is_told():
    """Windows of its rows follow each other in order, also if there are several such blocks."""
    clicked = np.sort(np.random.default_rng(2).integers(0, 2, 2000))
    minutes = np.zeros([2000], np.float32)
    for sizes in ((2000,), (1000, 1000)):
        assert len(_describe(clicked, minutes, window=200, sizes=sizes)) == 2
        mixed = np.random.default_rng(3).permutation(clicked)
        assert len(_describe(mixed, minutes, window=200, sizes=sizes)) == 1
