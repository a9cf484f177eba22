"""How much one column alone tells of a label: what tells nearly all is often known too late.

telling.measure_auc(telling.encode_numbers(age), clicked)                          # 0.71

The rows are cut in two halves at random. Each value of the column predicts the mean label of its
rows in one half, and is judged on the other: an id, whose values do not come back, tells nothing.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Numbers with more values are cut into so many bins of equal share.
_MOST_CODES, _BINS = 1000, 100
# Fewer labelled rows prove nothing.
_FEWEST = 100
# Rows of the mean of all that each value is given beforehand, against chance.
_PRIOR = 1.0


def encode_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return the bin of each number [N], from 1 on; 0 where it is missing."""
    present = np.isfinite(numbers)
    values = np.unique(numbers[present])
    if len(values) > _MOST_CODES:
        values = np.unique(np.quantile(numbers[present], np.linspace(0, 1, _BINS + 1)))
    codes = np.searchsorted(values, numbers, side="right")
    return np.where(present, codes, 0)


def encode_texts(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text [N], from 1 on; 0 where it is missing."""
    encoded = pc.dictionary_encode(texts).combine_chunks()
    indices = encoded.chunk(0).indices if isinstance(encoded, pa.ChunkedArray) else encoded.indices
    return pc.fill_null(pc.add(indices, 1), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def measure_auc(codes: np.ndarray, label: np.ndarray) -> float:
    """Return the AUC of a column's codes [N] for labels of 0 and 1, NaN where missing."""
    scored = _predict(codes, label)
    if scored is None:
        return np.nan
    scores, labels = scored
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives, negatives = labels.sum(), (1 - labels).sum()
    if not positives or not negatives:
        return np.nan
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def measure_r2(codes: np.ndarray, label: np.ndarray) -> float:
    """Return the share of the variance of labels [N], NaN where missing, that a column explains."""
    scored = _predict(codes, label)
    if scored is None:
        return np.nan
    scores, labels = scored
    variance = ((labels - labels.mean()) ** 2).sum()
    return float(1 - ((labels - scores) ** 2).sum() / variance) if variance else np.nan


def measure_skill(codes: np.ndarray, classes: np.ndarray) -> float:
    """Return the share of errors, of always the most frequent class, that a column spares.

    The classes [N] are numbers from 1 on, and 0 where they are missing.
    """
    known = classes > 0
    if known.sum() < _FEWEST:
        return np.nan
    codes, classes = codes[known], classes[known]
    half = _halves(len(codes))
    width = int(classes.max()) + 1
    cells, counts = np.unique(codes[half] * width + classes[half], return_counts=True)
    order = np.argsort(counts, kind="stable")  # So that the most frequent comes last, and stays.
    most = np.full(int(codes.max()) + 1, np.bincount(classes[half]).argmax())
    most[cells[order] // width] = cells[order] % width
    wrong = (most[codes[~half]] != classes[~half]).mean()
    base = (classes[~half] != np.bincount(classes[half]).argmax()).mean()
    return float(1 - wrong / base) if base else np.nan


def _halves(size: int) -> np.ndarray:
    return np.random.default_rng(0).random(size) < 0.5


def _predict(codes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the predictions and labels of one half, by the means of the other."""
    known = np.isfinite(label)
    if known.sum() < _FEWEST:
        return None
    codes, label = codes[known], label[known]
    half = _halves(len(codes))
    size = int(codes.max()) + 1
    counts = np.bincount(codes[half], minlength=size)
    sums = np.bincount(codes[half], label[half], minlength=size)
    means = (sums + _PRIOR * label[half].mean()) / (counts + _PRIOR)
    return means[codes[~half]], label[~half]
