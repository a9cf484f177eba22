"""Assesses the predictions of a head: confusion, reliability, ROC, and slices of the rows.

matrix = assess.count_confusion(rows, 10)               # [true, predicted], weights of rows
wrong = assess.count_confusions(rows)                    # {(true, predicted): weight}
points = assess.trace_roc(rows)                          # [(false positive rate, recall), ...]
worst = assess.compare_slices(rows.error, rows.weight, {"job": jobs})
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mtl.tools.reports import held_out

_BINS = 10
_QUARTERS = (0.25, 0.5, 0.75)
# So many frequent values of a text field are slices. A field with more numbers gets quarters.
_MOST_VALUES = 12
# A slice with fewer rows tells little.
_FEWEST_ROWS = 30


class Bin(NamedTuple):
    """Rows with similar scores: weight, mean score, and the true share or mean."""

    weight: float
    score: float
    true: float


class Slice(NamedTuple):
    """The rows that share a value.

    Attributes:
      field: the feature.
      value: the common value.
      rows: how many of the rows are labelled.
      error: the mean error of the rows.
      others: the mean error of all other rows.
      deviations: the difference of both errors in standard errors.
    """

    field: str
    value: str
    rows: int
    error: float
    others: float
    deviations: float


def count_confusion(rows: held_out.Rows, num_classes: int) -> np.ndarray:
    """Return the weight of rows by true and predicted class, [C, C], for few classes.

    Args:
      rows: labels and predictions of N rows.
      num_classes: C; the matrix takes C * C numbers of memory.
    """
    rows = _keep_counted(rows)
    # A pair of classes as one number: `bincount` counts in one dimension.
    places = rows.target.astype(np.int64) * num_classes + rows.predicted.astype(np.int64)
    counts = np.bincount(places, rows.weight, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def count_confusions(rows: held_out.Rows) -> dict[tuple[int, int], float]:
    """Return the weight of wrong rows by (true, predicted) class, the most frequent pair first.

    Only pairs that occur take memory.
    """
    rows = _keep_counted(rows)
    both = np.stack([rows.target, rows.predicted], 1).astype(np.int64)
    pairs, places = np.unique(both, axis=0, return_inverse=True)
    # NumPy 2.0 returns `places` with a further axis, other versions return it flat.
    weights = np.bincount(places.reshape(-1), rows.weight, minlength=len(pairs))
    order = np.argsort(-weights, kind="stable")
    found = {
        (int(a), int(b)): float(w) for (a, b), w in zip(pairs[order], weights[order], strict=True)
    }
    return {(a, b): weight for (a, b), weight in found.items() if a != b}


def bin_scores(rows: held_out.Rows) -> list[Bin]:
    """Return the reliability of scores: bins of equal width of probabilities, deciles of numbers.

    The true value is the share of class 1 for a binary task, the share of correct rows for several
    classes, and the mean label for numbers. Empty bins are left out.
    """
    rows = _keep_counted(rows)
    if rows.kind == held_out.NUMBER:
        places = _find_tenths(rows)
    else:
        # The probability 1 belongs to the last bin.
        places = np.minimum((rows.score * _BINS).astype(np.int64), _BINS - 1)
    true = rows.target == rows.predicted if rows.kind == held_out.CLASSES else rows.target
    weights, scores, trues = (
        np.bincount(places, rows.weight * values, minlength=_BINS)
        for values in (np.ones(len(places)), rows.score, true.astype(np.float64))
    )
    return [
        Bin(float(w), float(s / w), float(t / w))
        for w, s, t in zip(weights, scores, trues, strict=True)
        if w > 0
    ]


def _keep_counted(rows: held_out.Rows) -> held_out.Rows:
    """Return the rows with a label weight above 0 and a prediction other than NaN."""
    counted = (rows.weight > 0) & np.isfinite(rows.score)
    return held_out.Rows(rows.kind, *(column[counted] for column in rows[1:]))


def _find_tenths(rows: held_out.Rows) -> np.ndarray:
    """Return the decile of the score of each row."""
    if not len(rows.score):
        return np.zeros(0, np.int64)
    # Equal scores make several deciles equal: these become one bin.
    edges = np.unique(np.quantile(rows.score, np.linspace(0, 1, _BINS + 1)))
    return np.clip(np.searchsorted(edges, rows.score, "right") - 1, 0, max(len(edges) - 2, 0))


def trace_roc(rows: held_out.Rows) -> list[tuple[float, float]]:
    """Return the corners of the curve, (share of negatives, share of positives) above a score.

    Rows with equal scores make one step: the area below equals the AUC of the evaluation. The
    result is empty if all rows have the same class.
    """
    rows = _keep_counted(rows)
    order = np.argsort(-rows.score, kind="stable")
    score, weight = rows.score[order], rows.weight[order].astype(np.float64)
    positive = np.cumsum(weight * rows.target[order])
    negative = np.cumsum(weight * (1 - rows.target[order]))
    if not len(score) or not positive[-1] or not negative[-1]:
        return []
    # The last row of each group of equal scores.
    ends = np.append(score[1:] != score[:-1], True)
    x, y = negative[ends] / negative[-1], positive[ends] / positive[-1]
    return [(0.0, 0.0), *zip(x.tolist(), y.tolist(), strict=True)]


def compare_slices(
    errors: np.ndarray, weights: np.ndarray, fields: Mapping[str, np.ndarray]
) -> tuple[list[Slice], int]:
    """Return slices, the one furthest above all other rows first, and how many there are.

    A slice holds the rows with the same value of a field, or a quarter of its numbers. If a field
    has two slices, only the worse is returned: the other says the same.

    Args:
      errors: the error of each row, [N]; NaN is left out.
      weights: the weight of each label, [N]; 0 is left out.
      fields: {field: its value in each row, [N]}.
    """
    # Rows without a label, or with a prediction of NaN, have no error.
    labelled = (weights > 0) & np.isfinite(errors)
    found = []
    for field, values in fields.items():
        error, weight = errors[labelled], weights[labelled]
        slices = [
            _compare_slice(field, *one, error, weight) for one in _slice_rows(values[labelled])
        ]
        known = sorted((one for one in slices if one), key=lambda one: -one.deviations)
        found += known[:1] if len(slices) == 2 else known
    return sorted(found, key=lambda one: -one.deviations), len(found)


def _compare_slice(
    field: str, value: str, members: np.ndarray, error: np.ndarray, weight: np.ndarray
) -> Slice | None:
    sizes = int(members.sum()), int((~members).sum())
    # The others count too: a field with nearly one value has no comparison.
    if min(sizes) < _FEWEST_ROWS:
        return None
    means, squares = [], []
    for mask in (members, ~members):
        share = weight[mask] / weight[mask].sum()
        mean = float(np.sum(share * error[mask]))
        means.append(mean)
        # The variance of a weighted mean.
        squares.append(float(np.sum(share**2 * (error[mask] - mean) ** 2)))
    spread = math.sqrt(sum(squares))
    # All rows have the same error: a difference in standard errors is undefined.
    if not spread > 0:
        return None
    mean, others = means
    return Slice(field, value, sizes[0], mean, others, (mean - others) / spread)


def _slice_rows(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (common value, mask of its rows). Missing numbers are a separate slice."""
    is_missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if is_missing.any():
        yield "missing", is_missing
    distinct, counts = np.unique(values[~is_missing], return_counts=True)
    if values.dtype.kind in "OSU" or len(distinct) <= _MOST_VALUES:
        for place in np.argsort(-counts, kind="stable")[:_MOST_VALUES]:
            yield show_value(distinct[place]), values == distinct[place]
        return
    finite = values[np.isfinite(values)]
    if not len(finite):
        return
    # A frequent number may be several quartiles at once: then there are fewer slices.
    edges = np.unique(np.quantile(finite, _QUARTERS))
    yield f"up to {edges[0]:g}", values <= edges[0]
    for low, high in itertools.pairwise(edges):
        yield f"above {low:g}, up to {high:g}", (values > low) & (values <= high)
    yield f"above {edges[-1]:g}", values > edges[-1]


def show_value(value: object) -> str:
    """Return a value of a field as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace") or "(empty)"
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
