"""Ranking within groups as loops over plain NumPy, written from the formulas of the papers.

Metrics of tied scores are means over all orders, which are tried one by one where that is feasible.
"""

import itertools
import math

import numpy as np


def groups(keys, weights):
    """The rows of each group that count."""
    for key in dict.fromkeys(keys.tolist()):
        yield np.flatnonzero((keys == key) & (weights > 0))


def gain(label, kind="exponential"):
    return 2.0**label - 1 if kind == "exponential" else label


def dcg(labels, kind, k=None):
    """Return the discounted cumulative gain of labels in the order of their ranks."""
    return sum(gain(y, kind) / math.log2(2 + i) for i, y in enumerate(labels[:k]))


def orders(scores):
    """All orders of rows by descending score that ties allow."""
    blocks = [np.flatnonzero(scores == s) for s in sorted(set(scores.tolist()), reverse=True)]
    for chosen in itertools.product(*(itertools.permutations(block) for block in blocks)):
        yield np.concatenate(chosen)


def auc(labels, scores, weights):
    hits = total = 0.0
    for i, j in itertools.product(np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0)):
        pair = weights[i] * weights[j]
        total += pair
        hits += pair * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
    return hits / total


def metrics(keys, scores, labels, weights, k, kind="exponential"):
    """All metrics of the whole split."""
    found, impressions = {}, []
    weights = weights.astype("d")
    for rows in groups(keys, weights):
        y, s, w = labels[rows], scores[rows], weights[rows]
        if 0 < (y > 0).sum() < len(y):
            impressions.append((w.sum(), auc(y, s, w)))
        if not (y > 0).any():
            continue
        best = sorted(y, reverse=True)
        each = []
        for order in orders(s):
            ranked = y[order]
            hits = (ranked[:k] > 0).sum()
            each.append(
                {
                    "ndcg": dcg(ranked, kind) / dcg(best, kind),
                    f"ndcg_at_{k}": dcg(ranked, kind, k) / dcg(best, kind, k),
                    f"recall_at_{k}": hits / (y > 0).sum(),
                    f"precision_at_{k}": hits / k,
                    "mrr": 1 / (1 + np.argmax(ranked > 0)),
                }
            )
        for name in each[0]:
            value = np.mean([one[name] for one in each])
            found.setdefault(name, []).append((w.mean(), value))
    found["gauc"] = impressions
    return {
        name: np.average([v for _, v in pairs], weights=[w for w, _ in pairs])
        for name, pairs in found.items()
    }


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def loss(kind, keys, scores, labels, weights, gains="exponential", temperature=0.1):
    """The loss of a batch: the mean over the groups in which labels differ."""
    total = count = 0.0
    weights = weights.astype("d")
    for rows in groups(keys, weights):
        y, s, w = labels[rows], scores[rows], weights[rows]
        if len(set(y.tolist())) < 2:
            continue
        n = len(y)
        pairs = [(i, j) for i in range(n) for j in range(n) if y[i] > y[j]]
        ideal = dcg(sorted(y, reverse=True), gains)
        if kind == "ranknet":
            weight = sum(w[i] * w[j] for i, j in pairs)
            own = sum(w[i] * w[j] * softplus(s[j] - s[i]) for i, j in pairs) / weight
        elif kind == "lambdarank":
            # The smaller label first where scores are equal; rows that are equal follow each other.
            order = sorted(range(n), key=lambda row: (-s[row], y[row]))
            rank = [1 + order.index(row) for row in range(n)]
            discount = [1 / math.log2(1 + r) for r in rank]
            own = sum(
                abs((gain(y[i], gains) - gain(y[j], gains)) * (discount[i] - discount[j]))
                / ideal
                * softplus(s[j] - s[i])
                for i, j in pairs
            )
        elif kind == "softmax":
            target = w * y / (w * y).sum()
            own = -sum(
                t * (a - math.log((w * np.exp(s)).sum())) for t, a in zip(target, s, strict=True)
            )
        else:
            smooth = [
                1 + sum(1 / (1 + math.exp((s[i] - s[j]) / temperature)) for j in range(n) if j != i)
                for i in range(n)
            ]
            found = sum(gain(y[i], gains) / math.log2(1 + smooth[i]) for i in range(n))
            own = 1 - found / ideal
        total, count = total + w.mean() * own, count + w.mean()
    return total / count
