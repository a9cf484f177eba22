"""The densities of layers equal published values and NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import densities

LENET = [(784, 300), (300, 100), (100, 10)]
RANDOM = np.random.default_rng(0)
SCORES = [RANDOM.random([8, 6]).astype(np.float32), RANDOM.random([6, 5]).astype(np.float32)]


def _select(part, sparsity, progress, scores=SCORES):
    shares = part.densities([own.shape for own in scores], sparsity)
    given = list(map(tf.constant, scores))
    kept = part.select(given, shares, tf.constant(progress, tf.float64))
    assert [own.shape for own in kept] == [own.shape for own in scores]
    return [np.asarray(own) for own in kept]


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        # Computed for these sizes by the formula of RigL's paper, and rounded.
        (0.5, (0.5659, 0, 0)),
        (0.8, (0.83776, 0.53064, 0)),
        (0.9, (0.92043, 0.76981, 0)),
        (0.95, (0.96152, 0.88867, 0.08149)),
        (0.98, (0.98461, 0.95547, 0.63260)),
        (0.99, (0.99230, 0.97773, 0.81630)),
    ],
)
def test_erdos_renyi_kernel_cuts_large_layers_most(sparsity, expected):
    found = densities.ErdosRenyiKernel().densities(LENET, sparsity)
    np.testing.assert_allclose([1 - share for share in found], expected, atol=6e-6)
    sizes = [rows * columns for rows, columns in LENET]
    assert np.dot(found, sizes) / sum(sizes) == pytest.approx(1 - sparsity, abs=1e-9)


def test_layers_that_are_all_too_small_are_kept_whole():
    assert densities.ErdosRenyiKernel().densities([(2, 2)], 0.1) == pytest.approx([0.9])
    found = densities.ErdosRenyiKernel().densities([(2, 2), (2, 2)], 1e-9)
    assert found == pytest.approx([1, 1])


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_uniform_keeps_the_largest_of_each_layer(progress):
    for own, kept in zip(SCORES, _select(densities.Uniform(), 0.75, progress), strict=True):
        count = round((1 - 0.75 * progress) * own.size)
        least = np.sort(own, axis=None)[::-1][count - 1]
        np.testing.assert_array_equal(kept, own >= least)


def test_uniform_by_unit_keeps_as_many_of_each_column():
    kept = _select(densities.Uniform(per_unit=True), 0.5, 1.0)
    for own, mask in zip(SCORES, kept, strict=True):
        count = own.shape[0] // 2
        expected = np.argsort(np.argsort(-own, axis=0), axis=0) < count
        np.testing.assert_array_equal(mask, expected)


def test_global_keeps_the_largest_of_all_and_a_floor_of_each():
    scores = [SCORES[0] + 10, SCORES[1]]
    kept = _select(densities.Global(floor=0), 0.5, 1.0, scores)
    assert [own.sum() for own in kept] == [38, 1]
    kept = _select(densities.Global(floor=0.2), 0.5, 1.0, scores)
    assert [own.sum() for own in kept] == [33, 6]
    assert SCORES[1][kept[1] > 0].min() > SCORES[1][kept[1] == 0].max()
    assert SCORES[0][kept[0] > 0].min() > SCORES[0][kept[0] == 0].max()


@pytest.mark.parametrize("part", [densities.Uniform(), densities.Global(floor=0)])
def test_a_layer_keeps_at_least_one(part):
    kept = _select(part, 1 - 1e-9, 1.0)
    assert [own.sum() for own in kept] == [1, 1]


@pytest.mark.parametrize("count", [1, 7, 500, 999, 1000])
def test_the_largest_of_any_floats_are_kept(count):
    wide = RANDOM.normal(size=1000) * 10.0 ** RANDOM.integers(-30, 31, 1000)
    scores = np.concatenate([wide[:600], RANDOM.integers(-2, 3, 396), [0.0, -0.0, -3.4e38, 3.4e38]])
    scores = scores.astype(np.float32)
    found = np.asarray(densities.keep_largest(tf.constant(scores), tf.constant(count)))
    best = np.argsort(-(scores + 0.0), kind="stable")[:count]
    np.testing.assert_array_equal(found, np.isin(np.arange(1000), best))


def test_of_equal_scores_the_first_are_kept():
    kept = _select(densities.Uniform(), 0.5, 1.0, [np.ones([2, 4], np.float32)])
    np.testing.assert_array_equal(kept[0], [[1, 1, 1, 1], [0, 0, 0, 0]])


def test_settings():
    with pytest.raises(checks.UserError, match=r"Global.floor must be in \[0, 1\), got 1"):
        densities.Global(floor=1)
    with pytest.raises(checks.UserError, match="Global.floor must be at most 1 - sparsity, 0.1"):
        densities.Global(floor=0.2).densities(LENET, 0.9)
    with pytest.raises(checks.UserError, match="Uniform.per_unit must be True or False"):
        densities.Uniform(per_unit=1)


def test_small_layers_keep_their_floor_though_all_floors_exceed_the_share():
    random = np.random.default_rng(0)
    scores = [random.normal(size=size).astype(np.float32) for size in (5017, 205, 32)]
    # Held entries have the largest number of all.
    scores[0][:60] = np.finfo(np.float32).max
    kept = _select(densities.Global(floor=0.01), 0.99, 1.0, scores)
    assert [own.sum() for own in kept] == [51, 3, 1]
