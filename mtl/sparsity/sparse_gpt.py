"""SparseGPT: weights of a trained dense layer are cut, and the others make up for them.

kept, weights = sparse_gpt.prune_layer(weights, gramian, sparsity=0.5)

E. Frantar, D. Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot",
2023, arXiv:2301.00774, algorithm 1. Of a unit with weights w and inputs x over some rows, cutting
w_j and moving the weights behind it as best they can adds `w_j^2 / [H^-1]_jj` to the squares of
what its output changes by, with H the Gramian of the inputs j, j + 1, ...: the saliency of Optimal
Brain Surgeon (B. Hassibi, D. Stork, 1992). Inputs are gone through once, in their order, so that
all units share the inverses. Unlike the paper, a layer loses exactly the share that is asked for;
and weights of inputs that are 0 in all rows are cut first, but keep their values where there are
more of them than are cut, as other rows may tell something.
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
    """Return which weights are kept, bool [D, U], and the weights, float64 [D, U], others 0.

    Args:
      weights: [D, U], of D inputs and U units.
      gramian: [D, D], the inner products of the inputs over the rows.
      sparsity: the share that is cut, in [0, 1).
      n_of_m: how many of how many neighbouring inputs of a unit are kept, in place of `sparsity`.
      kept: [D, U]; what is not kept here is cut first.
      block: of how many inputs the weights are compared with each other at once.
      damping: what is added to the diagonal of the Gramian, as a share of its mean.
    """
    weights, is_silent = np.array(weights, np.float64), np.diag(gramian) == 0
    before = np.ones(weights.shape, bool) if kept is None else np.asarray(kept, bool)
    inverse = _factor_inverse(np.array(gramian, np.float64), damping)
    chosen = np.zeros(weights.shape, bool)
    num_inputs, num_units = weights.shape
    block = block if n_of_m is None else n_of_m[1]
    for start in range(0, num_inputs, block):
        end = min(start + block, num_inputs)
        # With factors U of H^-1 = U'U, [H^-1]_jj of the inputs from j on is U_jj^2.
        scores = (weights[start:end] / np.diag(inverse)[start:end, np.newaxis]) ** 2
        scores = np.where(is_silent[start:end, np.newaxis], 0.0, scores)
        scores = np.where(before[start:end], scores, -1.0)
        if n_of_m is None:
            # Of all up to here, so that what is rounded does not add up.
            upto = round((1 - sparsity) * end * num_units)
            count = min(max(upto - int(chosen.sum()), 0), scores.size)
            chosen[start:end] = _keep(scores.reshape([1, -1]), count).reshape(scores.shape)
        else:
            chosen[start:end] = _keep(scores.T, n_of_m[0]).T
        chosen[start:end] &= before[start:end]
        errors = np.empty([end - start, num_units])
        for j in range(start, end):
            errors[j - start] = np.where(chosen[j], 0, weights[j]) / inverse[j, j]
            weights[j:end] -= np.outer(inverse[j, j:end], errors[j - start])
        weights[end:] -= inverse[start:end, end:].T @ errors
    return chosen, np.where(chosen, weights, 0.0)


def _factor_inverse(gramian: np.ndarray, damping: float) -> np.ndarray:
    """Return the upper factor U of the inverse, U'U, of a Gramian."""
    diagonal = np.diag(gramian).copy()
    diagonal[diagonal == 0] = 1.0  # An input that is always 0 takes no part.
    np.fill_diagonal(gramian, diagonal + damping * diagonal.mean())
    return np.linalg.cholesky(np.linalg.inv(gramian)).T


def _keep(scores: np.ndarray, count: int) -> np.ndarray:
    """Return True if scores are of the `count` largest of their rows, the first of equals."""
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return ranks < count
