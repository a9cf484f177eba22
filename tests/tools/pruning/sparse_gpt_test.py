"""SparseGPT: what is cut, and how the others make up for it, beside slow and exact computations."""

import numpy as np
import pytest

from mtl.tools.pruning import sparse_gpt

INPUTS, UNITS, ROWS = 12, 5, 200


@pytest.fixture
def layer():
    """Weights, and rows whose inputs are correlated."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, INPUTS)) @ rng.normal(size=(INPUTS, INPUTS))
    return rng.normal(size=(INPUTS, UNITS)), rows


def _error(rows, weights, new):
    return np.square(rows @ (weights - new)).sum()


def test_the_others_make_up_for_one_weight_as_least_squares_do(layer):
    weights, rows = layer
    before = np.ones((INPUTS, UNITS), bool)
    before[0] = False  # The first input goes, and all others come behind it.
    gramian = rows.T @ rows
    kept, new = sparse_gpt.prune_layer(weights, gramian, 1 / INPUTS, kept=before, damping=1e-13)
    assert (kept == before).all()
    best = np.linalg.lstsq(rows[:, 1:], rows @ weights, rcond=None)[0]
    np.testing.assert_allclose(new[1:], best, rtol=1e-8)
    # The saliency of Optimal Brain Surgeon: what cutting it costs at the best.
    saliency = weights[0] ** 2 / np.linalg.inv(gramian)[0, 0]
    np.testing.assert_allclose(np.square(rows @ (weights - new)).sum(0), saliency, rtol=1e-8)


def _prune_slowly(weights, gramian, count_of, block, damping):
    """The definition: of each unit, an inverse for each input."""
    weights = weights.copy()
    hessian = gramian + damping * np.diag(gramian).mean() * np.eye(len(gramian))
    kept = np.zeros(weights.shape, bool)
    for start in range(0, len(weights), block):
        inside = range(start, min(start + block, len(weights)))
        inverses = {j: np.linalg.inv(hessian[j:, j:]) for j in inside}
        scores = np.array([weights[j] ** 2 / inverses[j][0, 0] for j in inside])
        least = np.sort(scores.ravel())[::-1][: count_of(inside, kept)]
        kept[list(inside)] = scores >= least.min() if least.size else False
        for j in inside:
            for unit in np.flatnonzero(~kept[j]):
                column = inverses[j][:, 0]
                weights[j:, unit] -= weights[j, unit] / column[0] * column
    return kept, weights


@pytest.mark.parametrize("block", [1, 3, 5, 12, 128])
def test_equals_the_definition(layer, block):
    weights, rows = layer
    gramian = rows.T @ rows

    def count_of(inside, kept):
        return round(0.4 * (inside[-1] + 1) * UNITS) - kept.sum()

    kept, new = sparse_gpt.prune_layer(weights, gramian, 0.6, block=block)
    slow_kept, slow = _prune_slowly(weights, gramian, count_of, block, 0.01)
    assert (kept == slow_kept).all() and kept.sum() == round(0.4 * INPUTS * UNITS)
    np.testing.assert_allclose(new, np.where(kept, slow, 0), rtol=1e-7, atol=1e-9)
    assert (new[~kept] == 0).all()


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.8])
def test_others_make_up_for_a_part_of_what_is_cut(layer, sparsity):
    weights, rows = layer
    kept, new = sparse_gpt.prune_layer(weights, rows.T @ rows, sparsity)
    assert _error(rows, weights, new) < 0.9 * _error(rows, weights, np.where(kept, weights, 0))


def test_n_of_m_and_what_is_cut_already(layer):
    weights, rows = layer
    before = np.random.default_rng(1).random((INPUTS, UNITS)) < 0.8
    kept, new = sparse_gpt.prune_layer(weights, rows.T @ rows, 0.5, n_of_m=(2, 4))
    assert (kept.reshape(INPUTS // 4, 4, UNITS).sum(1) == 2).all() and (new[~kept] == 0).all()
    kept, new = sparse_gpt.prune_layer(weights, rows.T @ rows, 0.5, kept=before)
    assert not (kept & ~before).any() and kept.sum() == 30 and (new[~kept] == 0).all()


def test_inputs_that_are_always_0_go_first_and_else_keep_their_weights(layer):
    weights, rows = layer
    rows[:, [2, 7]] = 0
    kept, _ = sparse_gpt.prune_layer(weights, rows.T @ rows, 0.5)
    assert not kept[[2, 7]].any() and np.isfinite(weights).all()
    kept, new = sparse_gpt.prune_layer(weights, rows.T @ rows, 0.05)
    assert kept.sum() == 57 and (new[[2, 7]][kept[[2, 7]]] == weights[[2, 7]][kept[[2, 7]]]).all()


def test_nothing_changes_where_nothing_is_cut(layer):
    weights, rows = layer
    kept, new = sparse_gpt.prune_layer(weights, rows.T @ rows, 0.0)
    assert kept.all() and (new == weights).all()
