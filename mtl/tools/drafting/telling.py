"""Measures how well a single column predicts a label, which reveals target leakage.

telling.measure_auc(telling.encode_numbers(age), clicked)                          # 0.71

The labelled rows are split into two random halves. The rows of the first half give each value of
the column a prediction: the mean label of the rows with this value, or the most frequent class
among them. The metric compares the predictions with the labels of the second half of the rows. A
column of ids gets a low metric, because few ids occur in both halves of the rows.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# A column with more than 1000 distinct numbers, or with fewer than 5 rows for each number, is cut
# into bins with equal shares of the rows: at most 100 bins, with at least 10 rows in each bin.
_MOST_CODES, _FEWEST_REPEATS, _MOST_BINS, _ROWS_OF_BIN = 1000, 5, 100, 10
# Only columns with at most this number of distinct values are compared with ranges of a numeric
# label.
_MOST_RANGES = 50
# The smallest number of labelled rows: with fewer rows, the metrics are too noisy.
_FEWEST = 100
# The number of imaginary rows with the mean label that are added to the rows of each value, so that
# the predictions of rare values lie closer to the mean.
_PRIOR = 1.0


def encode_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return the bin of each number, counted from 1 [N]; 0 for NaN and infinite numbers.

    Args:
      numbers: the numbers of a column, float64 [N].

    Returns:
      int64 [N].
    """
    present = np.isfinite(numbers)
    values = np.unique(numbers[present])
    rows = np.count_nonzero(present)
    if len(values) > min(_MOST_CODES, rows / _FEWEST_REPEATS):
        bins = min(max(rows // _ROWS_OF_BIN, 1), _MOST_BINS)
        values = np.unique(np.quantile(numbers[present], np.linspace(0, 1, bins + 1)))
    codes = np.searchsorted(values, numbers, side="right")
    return np.where(present, codes, 0)


def encode_texts(texts: pa.ChunkedArray) -> np.ndarray:
    """Return an integer from 1 for each text [N], the same for equal texts; 0 for a null.

    Args:
      texts: the texts of a column, [N]; null for missing values.

    Returns:
      int64 [N].
    """
    encoded = pc.dictionary_encode(texts).combine_chunks()
    indices = encoded.chunk(0).indices if isinstance(encoded, pa.ChunkedArray) else encoded.indices
    return pc.fill_null(pc.add(indices, 1), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def measure_auc(codes: np.ndarray, label: np.ndarray) -> float:
    """Return the AUC of a column as the only input for a binary label.

    Args:
      codes: the encoded column [N].
      label: the label of each row, 0 or 1 [N]; NaN for missing labels.

    Returns:
      The AUC, in [0, 1]; NaN for fewer than 100 labelled rows, or if the half of the rows on which
      the AUC is measured has a single class.
    """
    scored = _predict(codes, label)
    if scored is None:
        return np.nan
    scores, labels = scored
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives, negatives = labels.sum(), (1 - labels).sum()
    if not positives or not negatives:
        return np.nan
    # The statistic U of Mann-Whitney: the number of pairs in which the positive
    # row has the higher score.
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def measure_r2(codes: np.ndarray, label: np.ndarray) -> float:
    """Return the share of a label's variance that predictions from a single column explain.

    Args:
      codes: the encoded column [N].
      label: the label of each row, a number [N]; NaN for missing labels.

    Returns:
      The share of the variance: at most 1, and negative if the predictions are worse than the mean
      label. The share of the variance is NaN for fewer than 100 labelled rows, or if the label does
      not vary.
    """
    scored = _predict(codes, label)
    if scored is None:
        return np.nan
    scores, labels = scored
    variance = ((labels - labels.mean()) ** 2).sum()
    return float(1 - ((labels - scores) ** 2).sum() / variance) if variance else np.nan


def measure_skill(codes: np.ndarray, classes: np.ndarray) -> float:
    """Return the share of errors that a column avoids, compared with a constant guess.

    A constant guess predicts the most frequent class for every row.

    Args:
      codes: the encoded column [N].
      classes: class numbers from 1 [N]; 0 for missing labels.

    Returns:
      The share of errors: at most 1, and negative if predictions from the column are wrong more
      often than the constant guess. The share of errors is NaN for fewer than 100 labelled rows, or
      if all labels are equal.
    """
    is_labelled = classes > 0
    if is_labelled.sum() < _FEWEST:
        return np.nan
    codes, classes = codes[is_labelled], classes[is_labelled]
    half = _halves(len(codes))
    width = int(classes.max()) + 1
    cells, counts = np.unique(codes[half] * width + classes[half], return_counts=True)
    order = np.argsort(counts, kind="stable")  # The code below writes the most frequent class last.
    most = np.full(int(codes.max()) + 1, np.bincount(classes[half]).argmax())
    most[cells[order] // width] = cells[order] % width
    wrong = (most[codes[~half]] != classes[~half]).mean()
    base = (classes[~half] != np.bincount(classes[half]).argmax()).mean()
    return float(1 - wrong / base) if base else np.nan


def measure_rank(numbers: np.ndarray, label: np.ndarray) -> float:
    """Return the square of Spearman's correlation, which is 1 for a monotone function of the label.

    Args:
      numbers: the numbers of the column [N]; NaN for missing values.
      label: the label of each row, a number [N]; NaN for missing labels.

    Returns:
      The squared correlation, in [0, 1]; NaN if fewer than 100 rows have both a number and a label,
      or if all numbers or all labels are equal.
    """
    is_present = np.isfinite(numbers) & np.isfinite(label)
    if is_present.sum() < _FEWEST:
        return np.nan
    ranks = [_rank(values[is_present]) for values in (numbers, label)]
    spreads = [np.sqrt((values**2).sum()) for values in ranks]
    if not all(spreads):
        return np.nan
    return float((ranks[0] * ranks[1]).sum() / (spreads[0] * spreads[1])) ** 2


def _rank(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values, minus the mean rank [N]; equal values get the same rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks - ranks.mean()


def measure_order(codes: np.ndarray, label: np.ndarray) -> float:
    """Return how well a column's values, such as "late", match ranges of a label, such as a delay.

    The match is perfect if sorting the rows by their labels also groups the rows by the values of
    the column.

    Args:
      codes: the encoded column [N].
      label: the label of each row, a number [N]; NaN for missing labels.

    Returns:
      1 if each value stands for a range of the label; about 0 if the values do not depend on the
      label; NaN for fewer than 100 labelled rows, for more than 50 distinct values, and if fewer
      than 10 rows lack the most frequent value.
    """
    is_labelled = np.isfinite(label)
    _, codes, counts = np.unique(codes[is_labelled], return_inverse=True, return_counts=True)
    rows = len(codes)
    if rows < _FEWEST or len(counts) > _MOST_RANGES or rows - counts.max() < _ROWS_OF_BIN:
        return np.nan
    label = label[is_labelled]
    order = np.argsort(np.bincount(codes, label) / counts, kind="stable")
    place = np.argsort(order)[codes]
    # Shuffle rows with equal labels, so that many equal labels, such as zeros, do not look sorted
    # by the column.
    ties = np.random.default_rng(0).random(rows)
    agreed = (np.sort(place) == place[np.lexsort((ties, label))]).mean()
    chance = ((counts / rows) ** 2).sum()
    return float((agreed - chance) / (1 - chance))


def _halves(size: int) -> np.ndarray:
    return np.random.default_rng(0).random(size) < 0.5


def _predict(codes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return predictions and labels of one half of the rows, from mean labels of the other half.

    The result is None if fewer than 100 rows have a label.
    """
    is_labelled = np.isfinite(label)
    if is_labelled.sum() < _FEWEST:
        return None
    codes, label = codes[is_labelled], label[is_labelled]
    half = _halves(len(codes))
    size = int(codes.max()) + 1
    counts = np.bincount(codes[half], minlength=size)
    sums = np.bincount(codes[half], label[half], minlength=size)
    means = (sums + _PRIOR * label[half].mean()) / (counts + _PRIOR)
    return means[codes[~half]], label[~half]
