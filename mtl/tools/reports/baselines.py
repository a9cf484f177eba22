"""Compares a model with trivial models, such as one that always predicts the most frequent class.

verdict = baselines.judge(head, metrics, rows)
verdict.metric, verdict.value, verdict.baseline, verdict.skill    # "auc", 0.91, 0.5, 0.82
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from mtl import types
from mtl.heads import metrics as metrics_lib
from mtl.tools.reports import held_out

# The number of standard errors above which an advantage is rarely due to chance.
_CLEAR = 2.0


class Verdict(NamedTuple):
    """Compares a metric of a task between the model and a trivial model.

    Attributes:
      task: the name of the task.
      metric: the name of the task's most informative metric that has a baseline, or of the most
        informative metric if no metric has a baseline.
      higher: True if higher values of the metric are better.
      value: the metric of the model; NaN if the metric is undefined.
      baseline: the metric of the trivial model; None if no metric of the task has a baseline.
      what: a text that describes the predictions of the trivial model.
      deviations: the advantage of the model in standard errors, negative if the model is worse;
        None if the advantage is unknown, for example without rows.
    """

    task: str
    metric: str
    higher: bool
    value: float
    baseline: float | None
    what: str
    deviations: float | None = None

    @property
    def skill(self) -> float | None:
        """The skill score: 1 for a perfect model, 0 for the trivial model, below 0 if worse.

        The skill score is None if the baseline is unknown or perfect, or the metric is undefined.
        """
        if self.baseline is None or not math.isfinite(self.value):
            return None
        perfect = 1.0 if self.higher else 0.0
        way = perfect - self.baseline
        # If the trivial model is already perfect, the skill score is undefined.
        return (self.value - self.baseline) / way if way else None

    @property
    def is_better(self) -> bool | None:
        """True if the model beats the trivial model; None if the baseline is unknown.

        If the metric of the model is undefined (`is_undefined`), the model counts as not better.
        """
        if self.baseline is None or math.isnan(self.baseline):
            return None
        if math.isnan(self.value):
            return False
        return self.value > self.baseline if self.higher else self.value < self.baseline

    @property
    def is_undefined(self) -> bool:
        """True if the metric is undefined: without labels, with one class only, or with NaN."""
        return math.isnan(self.value)

    @property
    def is_clear(self) -> bool:
        """True if the model's advantage is too large for chance, or has no known standard error."""
        return self.deviations is None or self.deviations > _CLEAR

    @property
    def rank(self) -> float:
        """A sort key that puts undefined metrics first, and then tasks with low skill scores."""
        if math.isnan(self.value):
            return -math.inf
        # Tasks without a skill score come last, because nothing shows that their models are bad.
        return math.inf if self.skill is None else self.skill


def judge(
    head: types.Head, metrics: Mapping[str, float], rows: held_out.Rows | None
) -> Verdict | None:
    """Compare a metric of a head with the same metric of a trivial model.

    The comparison uses the most informative metric whose value is known for the trivial model. The
    value of the trivial model is called the baseline.

    Args:
      head: the head of the task.
      metrics: {"<task>/<metric>": value}, the metrics of the whole evaluation.
      rows: held-out rows of the task; None if there are no rows, so that some baselines are
        unknown.

    Returns:
      The comparison, whose baseline is None if no metric has a baseline. If it is unknown for all
      metrics whether higher or lower values are better, `judge` returns None.
    """
    prefix = f"{head.name}/"
    values = {
        name.removeprefix(prefix): v for name, v in metrics.items() if name.startswith(prefix)
    }
    order = metrics_lib.find_directions(head, list(values))
    # `order` begins with the most informative metric.
    for metric, higher in order:
        for names, find, prediction in _BASELINES:
            if metric in names:
                baseline = find(values, rows, head)
                if baseline is not None:
                    lead = _measure_lead(metric, rows)
                    return Verdict(
                        head.name, metric, higher, values[metric], baseline, prediction, lead
                    )
    return Verdict(head.name, *order[0], values[order[0][0]], None, "") if order else None


def _of_accuracy(values: Mapping[str, float], rows: held_out.Rows | None, head: types.Head):
    return values.get("accuracy_baseline")


def _of_auc(values: Mapping[str, float], rows: held_out.Rows | None, head: types.Head):
    return 0.5


def _of_balanced(values: Mapping[str, float], rows: held_out.Rows | None, head: types.Head):
    names = types.read_member(head, types.ClassHead, "class_names")
    # If a model always predicts the same class, the class has recall 1, and all other classes have
    # recall 0.
    return 1 / len(names) if names else None


def _of_rmse(values: Mapping[str, float], rows: held_out.Rows | None, head: types.Head):
    """Return the standard deviation of the labels, from the metrics R2 and RMSE if possible."""
    if "r2" in values:
        # R2 = 1 - MSE / variance, so the standard deviation is RMSE / sqrt(1 - R2).
        unexplained = 1 - values["r2"]
        return values["rmse"] / math.sqrt(unexplained) if unexplained > 0 else None
    return _from_labels(rows, lambda labels: labels.mean(), lambda errors: errors**2, math.sqrt)


def _of_mae(values: Mapping[str, float], rows: held_out.Rows | None, head: types.Head):
    return _from_labels(rows, np.median, np.abs, float)


def _from_labels(
    rows: held_out.Rows | None,
    predict: Callable[[np.ndarray], float],
    penalise: Callable[[np.ndarray], np.ndarray],
    finish: Callable[[float], float],
) -> float | None:
    """Return the error of a constant prediction; None without labels or if label weights differ."""
    if rows is None:
        return None
    labels = rows.target[rows.weight > 0].astype(np.float64)
    # Labels of different weights would need a weighted median, which this function does not
    # compute.
    if not len(labels) or len(np.unique(rows.weight[rows.weight > 0])) > 1:
        return None
    return finish(float(np.mean(penalise(labels - predict(labels)))))


def _measure_lead(metric: str, rows: held_out.Rows | None) -> float | None:
    """Return the advantage over a trivial model in standard errors; None without a standard error.

    Accuracy, RMSE and MAE are compared row by row. The AUC of the model is compared with the AUC of
    random scores.
    """
    if rows is None:
        return None
    is_counted = (rows.weight > 0) & np.isfinite(rows.score)  # [N]
    target, weight = rows.target[is_counted].astype(np.float64), rows.weight[is_counted]
    predicted = rows.predicted[is_counted].astype(np.float64)
    if len(target) < 2:
        return None
    # An AUC compares pairs of rows, so single rows have no advantage in AUC.
    if metric == "auc" and rows.kind == held_out.BINARY:
        return _rank_lead(rows.score[is_counted], target, weight)
    if metric not in _LEADS or (metric == "accuracy" and rows.kind == held_out.NUMBER):
        return None
    lead = _LEADS[metric](target, predicted, weight)
    share = weight / weight.sum()
    mean = float(np.sum(share * lead))
    spread = math.sqrt(float(np.sum(share**2 * (lead - mean) ** 2)))
    # If all rows have the same advantage, the standard error is 0, and the result is infinite or 0.
    return mean / spread if spread > 0 else math.copysign(math.inf, mean) if mean else 0.0


def _lead_in_accuracy(target: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> np.ndarray:
    values, places = np.unique(target, return_inverse=True)
    most_frequent = values[np.argmax(np.bincount(places, weight))]
    return (target == predicted).astype(np.float64) - (target == most_frequent)


def _lead_in_rmse(target: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> np.ndarray:
    # Compare squared errors, because the root of a mean over rows cannot be split into rows.
    return (target - np.average(target, weights=weight)) ** 2 - (target - predicted) ** 2


def _lead_in_mae(target: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.abs(target - np.median(target)) - np.abs(target - predicted)


# {metric: a function that returns the advantage over a trivial model in each row, [N]}.
_LEADS = {"accuracy": _lead_in_accuracy, "rmse": _lead_in_rmse, "mae": _lead_in_mae}


def _rank_lead(score: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float | None:
    """Return the difference between an AUC and 0.5, in standard errors of the AUC of random scores.

    Let p be the weight of a positive row divided by the weight of all positive rows, and let q be
    the weight of a negative row divided by the weight of all negative rows. The variance of the AUC
    of random scores is (P + Q + P Q) / 12, where P is the sum of p^2 over the positive rows, and Q
    is the sum of q^2 over the negative rows. If n1 positive and n0 negative rows have equal
    weights, the variance of the AUC is (n1 + n0 + 1) / (12 n1 n0), as in Mann and Whitney, "On a
    test of whether one of two random variables is stochastically larger than the other", 1947.
    """
    is_positive = target > 0
    sums = float(weight[is_positive].sum()), float(weight[~is_positive].sum())
    if not min(sums) > 0:
        return None
    positive = np.where(is_positive, weight, 0.0) / sums[0]
    negative = np.where(is_positive, 0.0, weight) / sums[1]
    distinct, places = np.unique(score, return_inverse=True)
    # The share of negatives with each distinct score, from the lowest score to the highest.
    shares = np.bincount(places, negative, len(distinct))
    below = np.cumsum(shares) - shares / 2  # Negatives with an equal score count half.
    # The AUC is the share of negatives with a lower score than a positive, averaged over all
    # positives.
    area = float(np.sum(positive * below[places]))
    positive_squares, negative_squares = float(np.sum(positive**2)), float(np.sum(negative**2))
    return (area - 0.5) / math.sqrt(
        (positive_squares + negative_squares + positive_squares * negative_squares) / 12
    )


_Find = Callable[[Mapping[str, float], held_out.Rows | None, types.Head], float | None]
_BASELINES: tuple[tuple[tuple[str, ...], _Find, str], ...] = (
    (("accuracy", "pixel_accuracy"), _of_accuracy, "always the most frequent class"),
    (("auc",), _of_auc, "scores at random"),
    (("balanced_accuracy",), _of_balanced, "always the same class"),
    (("rmse",), _of_rmse, "always the mean of the labels"),
    (("mae",), _of_mae, "always the median of the labels"),
)
