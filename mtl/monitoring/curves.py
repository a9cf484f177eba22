"""Sums the rows of an evaluation for curves, histograms and confusion matrices.

hook = curves.Counting(heads, logits, labels, True, True, write)         # of the evaluation
sums.trace_thresholds(0)               # ROC, precision and recall of the first class
sums.bin_shares(0)                     # reliability

The size of the sums does not depend on the number of rows. During its only pass over the split, an
evaluation adds its rows to the sums, with the same weights as in its metrics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mtl import types
from mtl.deferred import tf, tf1

NUM_THRESHOLDS = 201
"""The number of thresholds of `hits` and `misses`, from 0 to 1 in equal steps."""
MOST_CURVES = 32
"""The largest number of classes with curves in a task; further classes get no curves."""
MOST_CLASSES = 200
"""The largest number of classes of a task with a confusion matrix."""

_THRESHOLDS = np.arange(NUM_THRESHOLDS) / (NUM_THRESHOLDS - 1)
# The thresholds of ROC curves have equal distances as logits, because all probabilities of rare
# events are near 0.
_REACH, _PER_LOGIT = 17, 64
_NUM_LOGITS = 2 * _REACH * _PER_LOGIT
_NUM_HISTOGRAM = 50
# The metric calibration_error uses bins of the same edges, so both give the same error.
_NUM_SHARES = 15


class Threshold(NamedTuple):
    """The rates of a classifier at a threshold; NaN if the split lacks positives or negatives.

    Attributes:
      threshold: the smallest probability that counts as positive, in [0, 1].
      recall: the share of positive rows that count as positive.
      false_positive_rate: the share of negative rows that count as positive.
      precision: the share of positive rows among the rows that count as positive.
    """

    threshold: float
    recall: float
    false_positive_rate: float
    precision: float


class Share(NamedTuple):
    """Rows whose predicted probabilities lie between `low` and `high`.

    Attributes:
      low: the lower edge of the bin of predicted probabilities.
      high: the upper edge of the bin.
      weight: the sum of the weights of the rows.
      mean_prediction: the mean probability of the rows.
      share: the sum of the weights of positive rows, divided by `weight`.
    """

    low: float
    high: float
    weight: float
    mean_prediction: float
    share: float


class Bar(NamedTuple):
    """A bar of the histogram of predicted probabilities.

    Attributes:
      low: the lower edge of the bin of probabilities.
      high: the upper edge of the bin.
      positives: the sum of the weights of positive rows in the bin.
      negatives: the sum of the weights of negative rows in the bin.
    """

    low: float
    high: float
    positives: float
    negatives: float


@dataclasses.dataclass
class Counted:
    """Sums over the rows of a task, with the weights of its metrics.

    Attributes:
      names: the names of the K classes with curves.
      confusion: [C, C], sums of weights by the true class and the predicted class; None for tasks
        whose rows have several classes.
      hits: [K, N + 1], sums of weights of the rows of each class; the index is the number of
        thresholds, 0 to N, that the score of a row reaches.
      misses: [K, N + 1], sums of weights as in `hits`, but over the rows of other classes.
      by_logit: [2, K, M], sums of weights in M bins of the logit; the first index is 0 for rows of
        other classes, and 1 for rows of the class.
      by_share: [3, K, 15], sums of weights, predictions and positives in 15 bins of probability.
    """

    names: Sequence[str]
    confusion: np.ndarray | None

    def __post_init__(self):
        count = len(self.names)
        self.hits, self.misses = np.zeros([2, count, NUM_THRESHOLDS + 1])
        self.by_logit = np.zeros([2, count, _NUM_LOGITS])
        self.by_share = np.zeros([3, count, _NUM_SHARES])

    def add(self, said: Mapping[str, np.ndarray]) -> None:
        """Add the predictions and targets of a batch to the sums.

        Args:
          said: {name: [B, ...]}, predictions with targets and weights, as from `watch_head`.
        """
        targets, weights = said["targets"], said["weights"]
        if self.confusion is not None:
            np.add.at(self.confusion, (targets.astype(int), said["class_id"]), weights)
        for number in range(len(self.names)):
            if "probability" in said:
                self._add_class(number, said["probability"], targets > 0.5, weights)
                continue
            scores = said["probabilities"][:, number]
            if targets.ndim == 2:
                self._add_class(number, scores, targets[:, number] > 0.5, weights[:, number])
            else:
                self._add_class(number, scores, targets == number, weights)

    def _add_class(
        self, number: int, scores: np.ndarray, is_hit: np.ndarray, weights: np.ndarray
    ) -> None:
        plain_scores = np.nan_to_num(scores, nan=-1.0)  # A NaN reaches no threshold.
        # side="right", because a score that is equal to a threshold reaches the threshold.
        num_reached = np.searchsorted(_THRESHOLDS, plain_scores, side="right")
        for sums, mask in ((self.hits, is_hit), (self.misses, ~is_hit)):
            np.add.at(sums[number], num_reached, np.where(mask, weights, 0))
        with np.errstate(divide="ignore"):
            shares = np.clip(plain_scores, 0, 1).astype(np.float64)
            logits = np.log(shares) - np.log1p(-shares)
        # A probability of 0 or 1, whose logit is infinite, is counted in the first or last bin.
        places = np.clip((logits + _REACH) * _PER_LOGIT, 0, _NUM_LOGITS - 1).astype(int)
        np.add.at(self.by_logit[:, number].swapaxes(0, 1), (places, is_hit.astype(int)), weights)
        # Compute in float32 like `metrics.calibration_sums`: other rounding may give other bins.
        bins = (plain_scores * np.float32(_NUM_SHARES)).astype(int)
        bins = np.clip(bins, 0, _NUM_SHARES - 1)
        counts = np.where(plain_scores < 0, 0, weights)
        for sums, values in zip(self.by_share, (1, plain_scores, is_hit), strict=True):
            np.add.at(sums[number], bins, counts * values)

    def trace_thresholds(self, number: int) -> list[Threshold]:
        """Return ROC, precision and recall of a class, from the highest threshold to the lowest.

        The distance between thresholds is 1/64 of a logit. A threshold is left out if no row lies
        between this threshold and the next higher threshold.

        Args:
          number: the index of the class in the attribute `names`.

        Returns:
          A `Threshold` for each threshold; [] if no row has a weight.
        """
        misses, hits = self.by_logit[:, number]
        used_bins = np.flatnonzero(hits + misses)[::-1]
        true, false = (np.cumsum(sums[used_bins]) for sums in (hits, misses))
        # The threshold of a bin is its lower edge as a probability, which all rows of the bin
        # reach.
        shares = 1 / (1 + np.exp(_REACH - used_bins / _PER_LOGIT))
        with np.errstate(invalid="ignore"):
            # Without rows, `[-1:].sum()` is 0, but `[-1]` would fail.
            recall, fall_out = (sums / sums[-1:].sum() for sums in (true, false))
        columns = (shares, recall, fall_out, true / (true + false))
        return [Threshold(*row) for row in np.transpose(columns).tolist()]

    def trace_roc(self, number: int) -> list[tuple[float, float]]:
        """Return the ROC curve of a class, from (0, 0) on.

        Args:
          number: the index of the class in `names`.

        Returns:
          (false positive rate, recall) for each threshold, from the highest threshold to the
          lowest.
        """
        points = self.trace_thresholds(number)
        return [(0.0, 0.0), *((point.false_positive_rate, point.recall) for point in points)]

    def trace_reliability(self, number: int) -> list[tuple[float, float]]:
        """Return the reliability of a class as points of a curve.

        Args:
          number: the index of the class in the attribute `names`.

        Returns:
          (mean prediction, share of positives) for each bin of `bin_shares`.
        """
        return [(share.mean_prediction, share.share) for share in self.bin_shares(number)]

    def bin_shares(self, number: int) -> list[Share]:
        """Return the reliability of a class in 15 equal bins of probability, without empty bins.

        Args:
          number: the index of the class in the attribute `names`.
        """
        count = _NUM_SHARES
        return [
            Share(at / count, (at + 1) / count, weight, predicted / weight, positive / weight)
            for at, (weight, predicted, positive) in enumerate(self.by_share[:, number].T.tolist())
            if weight > 0
        ]

    def count_predictions(self, number: int) -> list[Bar]:
        """Return the histogram of the probabilities of a class, in 50 equal bins.

        Args:
          number: the index of the class in `names`.

        Returns:
          All 50 bars of the histogram, from low to high probabilities; NaN is not counted.
        """
        bars = []
        for sums in (self.hits, self.misses):
            weights = sums[number, 1:].copy()  # The first entry of `sums` counts NaN.
            weights[-2] += weights[-1]  # Probabilities of exactly 1 join the last bar.
            bars.append(weights[:-1].reshape(_NUM_HISTOGRAM, -1).sum(1))
        return [
            Bar(at / _NUM_HISTOGRAM, (at + 1) / _NUM_HISTOGRAM, positives, negatives)
            for at, (positives, negatives) in enumerate(np.transpose(bars).tolist())
        ]


class Counting(tf.compat.v1.train.SessionRunHook):
    """Adds up the rows of an evaluation for curves, and passes the sums to `write` at the end.

    Args:
      heads: fitted heads; heads that do not predict classes are ignored.
      logits: {task: its logits, [B, C]}.
      labels: {field: its labels, [B, ...]}.
      has_curves: True to add up the sums for ROC curves, reliability and histograms.
      has_matrices: True to add up the confusion matrices.
      write: called with the global step and {task: its sums}.
    """

    def __init__(
        self,
        heads: Sequence[types.Head],
        logits: types.Tensors,
        labels: types.Tensors,
        has_curves: bool,
        has_matrices: bool,
        write: Callable[[int, Mapping[str, Counted]], None],
    ):
        self._write = write
        self._tensors: dict[str, dict[str, tf.Tensor]] = {}
        self._counted: dict[str, Counted] = {}
        for head in heads:
            tensors = watch_head(head, logits[head.name], labels)
            if tensors is not None and has_shares(head, tensors):
                self._watch_task(head, tensors, has_curves, has_matrices)

    def _watch_task(
        self, head: types.Head, tensors: types.Tensors, has_curves: bool, has_matrices: bool
    ) -> None:
        """Choose the tensors that the curves and the confusion matrix of a task need."""
        names = types.read_member(head, types.ClassHead, "class_names")
        has_one_class = tensors["targets"].shape.rank == 1 and "class_id" in tensors
        has_matrix = has_matrices and has_one_class and len(names) <= MOST_CLASSES
        if not (has_matrix or has_curves):
            return
        fetches = {"targets": tensors["targets"], "weights": tensors["weights"]}
        curve_names, matrix = list[str](), None
        if has_matrix:
            fetches["class_id"], matrix = tensors["class_id"], np.zeros([len(names)] * 2)
        if has_curves and "probability" in tensors:
            fetches["probability"], curve_names = tensors["probability"], [names[-1]]
        elif has_curves:
            # Slice in the graph, so that `Session.run` does not fetch the probabilities of all
            # classes.
            fetches["probabilities"] = tensors["probabilities"][:, :MOST_CURVES]
            curve_names = list(names[:MOST_CURVES])
        self._counted[head.name] = Counted(curve_names, matrix)
        self._tensors[head.name] = fetches

    def after_create_session(self, session, coord):
        self._step = int(session.run(tf1.train.get_global_step()))

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context, run_values):
        for task, counted in self._counted.items():
            counted.add(run_values.results[task])

    def end(self, session):
        self._write(self._step, self._counted)


def has_shares(head: types.Head, said: types.Tensors) -> bool:
    """Return True if a task predicts a probability for each of its classes.

    Args:
      head: the head of the task.
      said: {name: [B, ...]}, the tensors of the task from `watch_head`.
    """
    names = types.read_member(head, types.ClassHead, "class_names")
    shares = said.get("probabilities")
    is_binary = said["targets"].shape.rank == 1 and {"class_id", "probability"} <= said.keys()
    return is_binary or (shares is not None and shares.shape[-1] == len(names))


_SHOWN = ("class_id", "probability", "probabilities", "value")


def watch_head(
    head: types.Head, logits: tf.Tensor, labels: types.Tensors
) -> dict[str, tf.Tensor] | None:
    """Return the predictions of a task for each row, with targets and weights.

    Args:
      head: a fitted head.
      logits: the logits of the head, [B, C].
      labels: {field: its labels, [B, ...]}.

    Returns:
      {name: [B] or [B, C]} with "targets", "weights", and classes, numbers or probabilities; None
      for a task without such predictions.
    """
    if not isinstance(head, types.ExampleHead) or head.field not in labels:
        return None
    predictions = dict(head.predictions(logits))
    examples = head.examples(logits, labels)
    tensors = {name: predictions[name] for name in _SHOWN if name in predictions}
    if not tensors or any(value.shape.rank > 2 for value in tensors.values()):
        return None
    return {**tensors, "targets": examples.targets, "weights": examples.weights}
