"""Cuts weights of a trained dense layer, and changes the other weights to compensate (SparseGPT).

kept, weights = sparse_gpt.prune_layer(weights, gramian, sparsity=0.5)

The method is algorithm 1 of Frantar and Alistarh, "SparseGPT: Massive Language Models Can Be
Accurately Pruned in One-Shot", 2023, arXiv:2301.00774. Let w be the weights of a unit, and x_1,
x_2, ... its inputs in some rows. If the weight w_j is cut and all later weights of the unit change
in the best way, the squared change of the unit's output grows by `w_j^2 / [H^-1]_jj`, where H is
the Gramian (the matrix of the inner products) of the inputs x_j, x_(j+1), ... The score `w_j^2 /
[H^-1]_jj` is the saliency of Optimal Brain Surgeon (Hassibi and Stork, 1992). The algorithm visits
the inputs of a layer in the same order for all units, so all units share the inverses of the
Gramians. Unlike in the paper, a layer loses exactly the requested share of its weights. If an input
is 0 in all rows, its weights are cut first. If weights of an input that is 0 in all rows remain,
they keep their values, because the input may differ from 0 in other rows.
"""

import numpy as np


def prune_layer(
    weights: np.ndarray,
    gramian: np.ndarray,
    sparsity: float,
    n_of_m: tuple[int, int] | None = None,
    kept: np.ndarray | None = None,
    block: int = 128,
    damping: float = 0.01,
) -> tuple[np.ndarray, np.ndarray]:
    """Cut weights of a dense layer, and return a mask and the changed weights.

    Args:
      weights: the kernel of D inputs and U units, [D, U].
      gramian: the inner products of the inputs over the rows, [D, D].
      sparsity: the share of weights to cut, in [0, 1).
      n_of_m: (n, m) keeps n of every m neighbouring inputs of a unit; `sparsity` is then ignored.
      kept: a bool array [D, U] that is False for the weights that earlier cuts have removed, which
        stay cut and count towards `sparsity`.
      block: the number of neighbouring inputs whose weights are ranked together to choose the
        weights to cut.
      damping: the share of the mean of the Gramian's diagonal that is added to each entry of the
        diagonal.

    Returns:
      A mask [D, U] bool, False for cut weights, and the new weights [D, U] float64, 0 if cut.
    """
    # Copy the weights, because the loop below changes them.
    weights, is_silent = np.array(weights, np.float64), np.diag(gramian) == 0
    before = np.ones(weights.shape, bool) if kept is None else np.asarray(kept, bool)
    inverse = _factor_inverse(np.array(gramian, np.float64), damping)
    is_kept = np.zeros(weights.shape, bool)
    num_inputs, num_units = weights.shape
    # With `n_of_m`, a block is a group of m inputs.
    block = block if n_of_m is None else n_of_m[1]
    for start in range(0, num_inputs, block):
        end = min(start + block, num_inputs)
        # With H^-1 = U'U and an upper triangular U, [H^-1]_jj of the inputs from j on is U_jj^2.
        scores = (weights[start:end] / np.diag(inverse)[start:end, np.newaxis]) ** 2
        scores = np.where(is_silent[start:end, np.newaxis], 0.0, scores)
        # -1 is below all squares, so weights that were cut before are cut first.
        scores = np.where(before[start:end], scores, -1.0)
        if n_of_m is None:
            # Count the remaining weights of all blocks so far, so that
            # rounding errors do not add up.
            upto = round((1 - sparsity) * end * num_units)
            count = min(max(upto - int(is_kept.sum()), 0), scores.size)
            is_kept[start:end] = _keep_largest(scores.reshape([1, -1]), count).reshape(scores.shape)
        else:
            is_kept[start:end] = _keep_largest(scores.T, n_of_m[0]).T
        # A weight that was cut before stays cut, even if the sparsity is lower now.
        is_kept[start:end] &= before[start:end]
        errors = np.empty([end - start, num_units])  # [block, U]
        for j in range(start, end):
            errors[j - start] = np.where(is_kept[j], 0, weights[j]) / inverse[j, j]
            # Let later inputs of the block compensate for the cut at once.
            weights[j:end] -= np.outer(inverse[j, j:end], errors[j - start])
        # Let the inputs after the block compensate by a single product, as in the paper.
        weights[end:] -= inverse[start:end, end:].T @ errors
    return is_kept, np.where(is_kept, weights, 0.0)


def _factor_inverse(gramian: np.ndarray, damping: float) -> np.ndarray:
    """Return the upper triangular matrix U whose product U'U is the inverse of a damped Gramian."""
    diagonal = np.diag(gramian).copy()
    diagonal[diagonal == 0] = 1.0  # An input that is always 0 must not make H singular.
    np.fill_diagonal(gramian, diagonal + damping * diagonal.mean())
    # NumPy returns the lower factor L = U', because L L' = U' U.
    return np.linalg.cholesky(np.linalg.inv(gramian)).T


def _keep_largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the `count` largest scores in each row; of equal scores, take the first."""
    # `argsort` of `argsort` gives the rank of each score.
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return ranks < count
