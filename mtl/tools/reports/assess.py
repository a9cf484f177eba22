"""Assesses the predictions of a head: confusion matrix, reliability, ROC curve, slices of rows.

matrix = assess.count_confusion(rows, 10)               # [true, predicted], sums of weights
wrong = assess.count_confusions(rows)                    # {(true, predicted): sum of weights}
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
# The largest number of values of a field that become slices. Of a text field with more values, only
# the most frequent values are compared. Numbers with more than `_MOST_VALUES` values are divided
# into quarters.
_MOST_VALUES = 12
# Slices with fewer rows are not compared, because the mean error of few rows varies too much.
_FEWEST_ROWS = 30


class Bin(NamedTuple):
    """A bin of rows with similar scores.

    Attributes:
      weight: the sum of the weights of the rows.
      score: the mean score of the rows.
      true: the mean label of the rows, the share of rows with class 1, or the share of rows that
        are predicted correctly; see `bin_scores`.
    """

    weight: float
    score: float
    true: float


class Slice(NamedTuple):
    """Compares the rows with one value of a feature to all other rows.

    Attributes:
      field: the name of the feature.
      value: the value that the rows of the slice have in common, as text.
      rows: the number of labelled rows in the slice.
      error: the mean error of the rows in the slice.
      others: the mean error of all other rows.
      deviations: `error` minus `others`, divided by the standard error of this difference.
    """

    field: str
    value: str
    rows: int
    error: float
    others: float
    deviations: float


def count_confusion(rows: held_out.Rows, num_classes: int) -> np.ndarray:
    """Count rows by true and predicted class, as a matrix.

    Args:
      rows: labels and predictions of N rows.
      num_classes: the number of classes C. C must be small, because the matrix holds C * C numbers.

    Returns:
      The sum of the weights of rows for each [true class, predicted class], [C, C].
    """
    rows = _keep_counted(rows)
    # Encode each pair of classes as one number, because `bincount` counts in one dimension.
    places = rows.target.astype(np.int64) * num_classes + rows.predicted.astype(np.int64)
    counts = np.bincount(places, rows.weight, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def count_confusions(rows: held_out.Rows) -> dict[tuple[int, int], float]:
    """Count wrong predictions for each pair of a true and a predicted class that occurs.

    Args:
      rows: labels and predictions of N rows.

    Returns:
      {(true class, predicted class): the sum of the weights of rows}, with the most frequent pair
      first.
    """
    rows = _keep_counted(rows)
    classes = np.stack([rows.target, rows.predicted], 1).astype(np.int64)
    pairs, places = np.unique(classes, axis=0, return_inverse=True)
    # The shape of `places` is [N, 1] in NumPy 2.0, but [N] in other versions.
    weights = np.bincount(places.reshape(-1), rows.weight, minlength=len(pairs))
    order = np.argsort(-weights, kind="stable")
    weight_of_pair = {
        (int(a), int(b)): float(w) for (a, b), w in zip(pairs[order], weights[order], strict=True)
    }
    return {(a, b): weight for (a, b), weight in weight_of_pair.items() if a != b}


def bin_scores(rows: held_out.Rows) -> list[Bin]:
    """Group rows by score into bins, which show how reliable the scores are.

    If scores are probabilities, the bins have equal widths; if scores are predicted numbers, the
    bins are deciles. Empty bins are left out. `Bin.true` is the share of class 1 for a binary task,
    the share of correct rows for several classes, and the mean label for numbers.

    Args:
      rows: labels and predictions of N rows.

    Returns:
      At most 10 bins, from the lowest scores to the highest.
    """
    rows = _keep_counted(rows)
    if rows.kind == held_out.NUMBER:
        places = _find_tenths(rows)
    else:
        # Put the probability 1 into the last bin.
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
    """Return the rows with a label weight above 0 and a finite score."""
    is_counted = (rows.weight > 0) & np.isfinite(rows.score)
    return held_out.Rows(rows.kind, *(column[is_counted] for column in rows[1:]))


def _find_tenths(rows: held_out.Rows) -> np.ndarray:
    """Return the decile of the score of each row."""
    if not len(rows.score):
        return np.zeros(0, np.int64)
    # With many equal scores, several deciles are equal. `unique` drops duplicate edges, so there
    # are fewer bins.
    edges = np.unique(np.quantile(rows.score, np.linspace(0, 1, _BINS + 1)))
    return np.clip(np.searchsorted(edges, rows.score, "right") - 1, 0, max(len(edges) - 2, 0))


def trace_roc(rows: held_out.Rows) -> list[tuple[float, float]]:
    """Return the corners of the ROC curve of a binary task.

    Rows with equal scores share a corner of the curve. The area below the ROC curve therefore
    equals the metric AUC in the evaluation.

    Args:
      rows: labels and predictions of N rows.

    Returns:
      [(false positive rate, recall)], both in [0, 1] and ascending; [] if all rows have the same
      class.
    """
    rows = _keep_counted(rows)
    order = np.argsort(-rows.score, kind="stable")
    score, weight = rows.score[order], rows.weight[order].astype(np.float64)
    positive = np.cumsum(weight * rows.target[order])
    negative = np.cumsum(weight * (1 - rows.target[order]))
    if not len(score) or not positive[-1] or not negative[-1]:
        return []
    # True for the last row of each group of equal scores.
    ends = np.append(score[1:] != score[:-1], True)
    x, y = negative[ends] / negative[-1], positive[ends] / positive[-1]
    return [(0.0, 0.0), *zip(x.tolist(), y.tolist(), strict=True)]


def compare_slices(
    errors: np.ndarray, weights: np.ndarray, fields: Mapping[str, np.ndarray]
) -> tuple[list[Slice], int]:
    """Compare the mean error of each slice of rows with the mean error of all other rows.

    A slice holds the rows with one value of a field, or the rows between two quartiles of a field
    of numbers. If a field has only two slices, only the slice with the higher error is returned,
    because both slices give the same comparison.

    Args:
      errors: the error of each row, [N]; rows whose error is NaN are left out.
      weights: the weight of each row's label, [N]; rows whose weight is 0 are left out.
      fields: {field: the value in each row, [N]}.

    Returns:
      The slices in descending order of `deviations`, so the worst slice comes first, and the number
      of slices.
    """
    # The error of a row is undefined without a label, or if the prediction is NaN.
    labelled = (weights > 0) & np.isfinite(errors)
    result = []
    for field, values in fields.items():
        error, weight = errors[labelled], weights[labelled]
        slices = [
            _compare_slice(field, *entry, error, weight) for entry in _slice_rows(values[labelled])
        ]
        compared_slices = sorted(
            (entry for entry in slices if entry), key=lambda entry: -entry.deviations
        )
        result += compared_slices[:1] if len(slices) == 2 else compared_slices
    return sorted(result, key=lambda entry: -entry.deviations), len(result)


def _compare_slice(
    field: str, value: str, members: np.ndarray, error: np.ndarray, weight: np.ndarray
) -> Slice | None:
    sizes = int(members.sum()), int((~members).sum())
    # If nearly all rows have the value, too few other rows remain for a comparison.
    if min(sizes) < _FEWEST_ROWS:
        return None
    means, squares = [], []
    for mask in (members, ~members):
        share = weight[mask] / weight[mask].sum()
        mean = float(np.sum(share * error[mask]))
        means.append(mean)
        # Estimate the variance of the weighted mean.
        squares.append(float(np.sum(share**2 * (error[mask] - mean) ** 2)))
    spread = math.sqrt(sum(squares))
    # If all rows have the same error, the standard error is 0, and the comparison is undefined.
    if not spread > 0:
        return None
    mean, others = means
    return Slice(field, value, sizes[0], mean, others, (mean - others) / spread)


def _slice_rows(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the value of each slice as text, and a mask of its rows, [N].

    Rows with a missing number (NaN) form a separate slice.
    """
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
    # If quartiles are equal because of a frequent number, there are fewer than four slices.
    edges = np.unique(np.quantile(finite, _QUARTERS))
    yield f"up to {edges[0]:g}", values <= edges[0]
    for low, high in itertools.pairwise(edges):
        yield f"above {low:g}, up to {high:g}", (values > low) & (values <= high)
    yield f"above {edges[-1]:g}", values > edges[-1]


def show_value(value: object) -> str:
    """Return a value of a field as text.

    Args:
      value: bytes, a number, or another object of a field. Bytes are decoded as UTF-8, and empty
        bytes become "(empty)". Floats get at most six significant digits.
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace") or "(empty)"
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
