"""What is cut at once, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import densities, granularity

RANDOM = np.random.default_rng(0)


def _select(part, scores, sparsity, progress=1.0, density=None):
    density = density or densities.Uniform()
    shares = density.densities([scores.shape], sparsity)
    own = tf.constant(scores, tf.float32)
    (mask,) = part.select([own], density, shares, tf.constant(progress, tf.float64))
    return np.broadcast_to(np.asarray(mask), scores.shape)


@pytest.mark.parametrize("shape", [(8, 3), (2, 2, 8, 3)])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 8)])
def test_n_of_m_keeps_the_largest_of_neighbouring_inputs(shape, n, m):
    scores = RANDOM.random(shape)
    mask = _select(granularity.NOfM(n=n, m=m), scores, 0.5)
    for outer in np.ndindex(*shape[:-2]):
        for unit in range(shape[-1]):
            for first in range(0, shape[-2], m):
                own = (*outer, slice(first, first + m), unit)
                best = np.argsort(-scores[own])[:n]
                expected = np.isin(np.arange(m), best)
                np.testing.assert_array_equal(mask[own], expected)


@pytest.mark.parametrize(
    ("progress", "kept"), [(0.0, 4), (0.4, 4), (0.5, 3), (0.99, 3), (1 - 1e-12, 2), (1.0, 2)]
)
def test_on_the_way_n_is_rounded_up(progress, kept):
    mask = _select(granularity.NOfM(n=2, m=4), RANDOM.random([4, 1]), 0.5, progress)
    assert mask.sum() == kept


def test_blocks_go_by_their_mean():
    scores = RANDOM.random([4, 6])
    mask = _select(granularity.Blocks(shape=(2, 3)), scores, 0.5)
    means = scores.reshape([2, 2, 2, 3]).mean(axis=(1, 3))
    expected = means >= np.sort(means, axis=None)[2]
    np.testing.assert_array_equal(mask, expected.repeat(2, 0).repeat(3, 1))


@pytest.mark.parametrize("shape", [(5, 8), (3, 3, 2, 8)])
def test_units_go_by_their_mean(shape):
    scores = RANDOM.random(shape)
    mask = _select(granularity.Units(), scores, 0.75)
    best = np.argsort(-scores.reshape([-1, 8]).mean(axis=0))[:2]
    assert (mask == np.isin(np.arange(8), best)).all()
    assert granularity.Units().mask_shape(shape) == [*[1] * (len(shape) - 1), 8]


def test_rows_go_by_their_mean():
    scores = RANDOM.random([10, 3])
    mask = _select(granularity.TableRows(), scores, 0.7)
    best = np.argsort(-scores.mean(axis=1))[:3]
    np.testing.assert_array_equal(mask[:, 0], np.isin(np.arange(10), best))
    assert granularity.TableRows().group_shape([10, 3]) == [10, 1]


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        (granularity.NOfM(), (6, 2), "NOfM.m must divide the inputs of 'w', 6, got 4"),
        (
            granularity.Blocks(shape=[4, 4]),
            (8, 6),
            r"Blocks.shape must divide inputs and units of 'w', \(8, 6\), got \(4, 4\)",
        ),
        (granularity.TableRows(), (2, 2, 2), r"a table of 'w' must have rows, got \[2, 2, 2\]"),
    ],
)
def test_shapes_that_do_not_fit(part, shape, message):
    with pytest.raises(checks.UserError, match=message):
        part.check("w", shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: granularity.NOfM(n=4, m=4), "NOfM.n must be below m, 4, got 4"),
        (lambda: granularity.NOfM(n=0), "NOfM.n must be at least 1, got 0"),
        (lambda: granularity.Blocks(shape=4), "Blocks.shape must be two numbers"),
        (lambda: granularity.Blocks(shape=(0, 4)), "Blocks.shape must be at least 1, got 0"),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
