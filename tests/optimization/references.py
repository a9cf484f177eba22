"""The optimizers once more, in NumPy and float64, from their papers' formulas.

Each is called as `(weights, state, gradient, rate, t)` on a table of rows, t = 1, 2, ..., changes
weights and state in place, and is given the touched rows only.
"""

import numpy as np


def sgd(w, state, g, rate, t):
    del state, t
    w -= rate * g


def momentum(nesterov):
    def step(w, state, g, rate, t):
        del t
        a = state.setdefault("a", np.zeros_like(w))
        a *= 0.9
        a += g
        w -= rate * (g + 0.9 * a if nesterov else a)

    return step


def adagrad(w, state, g, rate, t):
    del t
    a = state.setdefault("a", np.full_like(w, 0.1))
    a += g * g
    w -= rate * g / np.sqrt(a)


def row_wise_adagrad(w, state, g, rate, t):
    del t
    state["a"] = state.get("a", 0.1) + (g * g).mean()
    w -= rate * g / np.sqrt(state["a"])


def ftrl(l1, l2):
    def step(w, state, g, rate, t):
        del t
        n = state.setdefault("n", np.full_like(w, 0.1))
        z = state.setdefault("z", np.zeros_like(w))
        grown = n + g * g
        z += g - (np.sqrt(grown) - np.sqrt(n)) / rate * w
        n[:] = grown
        shrunk = (np.sign(z) * l1 - z) / (np.sqrt(n) / rate + 2 * l2)
        w[:] = np.where(np.abs(z) <= l1, 0, shrunk)

    return step


def rms_prop(centered, momentum):
    def step(w, state, g, rate, t):
        del t
        second = state.setdefault("second", np.ones_like(w))
        first = state.setdefault("first", np.zeros_like(w))
        a = state.setdefault("a", np.zeros_like(w))
        second[:] = 0.9 * second + 0.1 * g * g
        first[:] = 0.9 * first + 0.1 * g
        variance = second - first * first if centered else second
        a[:] = momentum * a + rate * g / np.sqrt(variance + 1e-10)
        w -= a

    return step


def adam(weight_decay=0.0):
    def step(w, state, g, rate, t):
        m = state.setdefault("m", np.zeros_like(w))
        v = state.setdefault("v", np.zeros_like(w))
        m[:] = 0.9 * m + 0.1 * g
        v[:] = 0.999 * v + 0.001 * g * g
        w -= rate * weight_decay * w
        w -= rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)

    return step


def train(step, weights, gradients, rates, sparse_rows):
    """Weights after all steps; `gradients` are (ids, values), duplicates included.

    Args:
      step: one of the above.
      weights: [V, D] at the start.
      gradients: of each step: ids [N] and values [N, D].
      rates: of each step.
      sparse_rows: whether rows without a gradient are left alone, rather than given a zero one.
    """
    weights = np.array(weights, np.float64)
    states = [{} for _ in weights]
    for t, ((ids, values), rate) in enumerate(zip(gradients, rates, strict=True), 1):
        summed = np.zeros_like(weights)
        np.add.at(summed, ids, values)
        for row in sorted(set(ids)) if sparse_rows else range(len(weights)):
            step(weights[row], states[row], summed[row], rate, t)
    return weights
