"""Measures permutation importance: how much worse metrics get if a field's values are permuted.

result = importance.measure(model, scores, rows, inputs, importance.draw_orders(rows.size, 5, seed))
result.drop[input, metric], result.low, result.high      # above 0: the field helps the model

The values of a field are permuted among the rows; other fields and the labels do not change. The
importance of the field for a metric is the mean over R permutations of

    metric of the original rows - metric of the permuted rows

If lower values of the metric are better, the sign is changed, so that important fields have an
importance above 0. All fields are permuted by the same R permutations, so that fields can be
compared in pairs. L. Breiman, "Random Forests", 2001; A. Fisher, C. Rudin, F. Dominici, "All Models
are Wrong, but Many are Useful", 2019, arXiv:1801.01489.

Confidence intervals come from a jackknife: the rows are divided into G groups, and the importance
is computed G times without one of the groups. Rows of the group that is left out are not measured,
and no other row gets values of these rows. So an interval covers the random choice of rows and of
permutations. J. N. Arvesen, "Jackknifing U-statistics", 1969. A jackknife gives such confidence
intervals for any metric of a split. The intervals tend to be too wide. If only the choice of the
rows and of their permuted values is random, R permutations make an interval too wide by a factor of
sqrt(1 + 1 / R).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mtl import checks
from mtl.tools.explaining import inputs as inputs_lib
from mtl.tools.explaining import opened, rows, scores

NUM_GROUPS = 20
# Half the width of a 95% interval in standard errors: Student's t, NUM_GROUPS
# - 1 degrees of freedom.
_QUANTILE = 2.093
# The smallest number of rows for which each group of the jackknife has at least two rows.
FEWEST_ROWS = 2 * NUM_GROUPS

Predictions = Mapping[str, np.ndarray]
"""The predictions for all N rows, {task: [N, ...]}."""

Measure = Callable[[Predictions, np.ndarray], np.ndarray]
"""A function that measures M metrics for some rows: predictions, row indices [K] -> [M]."""


class Importance(NamedTuple):
    """The effect of permuting each of I inputs on M metrics.

    Attributes:
      inputs: the I inputs.
      metrics: the M metrics.
      base: the metrics of the original rows, [M].
      drop: how much worse each metric gets if an input is permuted, [I, M].
      error: the standard error of `drop`, [I, M]; NaN if a metric is undefined without some group
        of the jackknife.
    """

    inputs: Sequence[inputs_lib.Input]
    metrics: Sequence[scores.Metric]
    base: np.ndarray
    drop: np.ndarray
    error: np.ndarray

    @property
    def low(self) -> np.ndarray:
        """The lower end of the 95% interval, [I, M]."""
        return self.drop - _QUANTILE * self.error

    @property
    def high(self) -> np.ndarray:
        """The upper end of the 95% interval, [I, M]."""
        return self.drop + _QUANTILE * self.error


def draw_orders(num_rows: int, repeats: int, seed: int) -> np.ndarray:
    """Draw R permutations of N rows.

    Args:
      num_rows: the number of rows, N.
      repeats: the number of permutations, R.
      seed: the seed of the draw.

    Returns:
      The permutations, [R, N].
    """
    drawing = np.random.default_rng(seed)
    return np.stack([drawing.permutation(num_rows) for _ in range(repeats)])


def measure(
    model: opened.Opened,
    measured: scores.Scores,
    held: rows.Rows,
    inputs: Sequence[inputs_lib.Input],
    orders: np.ndarray,
    progress: Callable[[str], None] = lambda _: None,
) -> Importance:
    """Permute each input by each of R permutations, and measure the metrics of all tasks.

    Args:
      model: the opened model, which predicts the rows.
      measured: the tensors that compute the metrics.
      held: the N rows on which metrics are measured.
      inputs: the inputs to permute.
      orders: R permutations of the rows, [R, N].
      progress: called with a line of text about the current work.

    Raises:
      UserError: there are fewer than `FEWEST_ROWS` rows, too few to compute intervals.
    """
    require_rows(held)

    def score(logits: Predictions, places: np.ndarray) -> np.ndarray:
        selected = {task: logits[task][places] for task in measured.logits}
        return measured.measure(model.session, selected, rows.take(held.labels, places))

    plain = model.predict(held.features)
    base = measured.measure(model.session, plain, held.labels, model.batch_size)
    comparison = Paired(score, plain, orders)
    changes, errors = [], []
    for number, entry in enumerate(inputs):
        progress(f"permuting {entry.name}, {number + 1} of {len(inputs)}")
        change, error = comparison.compare(
            [model.predict(held.permute(entry.fields, order)) for order in orders]
        )
        changes.append(change)
        errors.append(error)
    shape = [len(inputs), len(measured.metrics)]
    # Multiply by the signs of the metrics, so that a change above 0 always means a worse metric.
    drop = -np.reshape(changes, shape) * measured.signs
    return Importance(inputs, measured.metrics, base, drop, np.reshape(errors, shape))


def require_rows(held: rows.Rows) -> None:
    """Fail if there are too few rows to compute intervals.

    Raises:
      UserError: there are fewer than `FEWEST_ROWS` rows.
    """
    rule = f"have at least {FEWEST_ROWS} rows"
    fix = "--limit sets the largest number of rows to read."
    checks.require(held.size >= FEWEST_ROWS, f"split {held.split!r}", rule, held.size, fix)


class Paired:
    """Compares the metrics of permuted rows with the metrics of the original rows.

    A row that is hard to predict makes the metrics of permuted and of original rows worse, so such
    a row has little effect on the difference of the metrics.

    Args:
      score: a function that measures M metrics of some of the N rows.
      plain: the predictions for the original rows.
      orders: R permutations of the rows, [R, N].
    """

    def __init__(self, score: Measure, plain: Predictions, orders: np.ndarray):
        self._score, self._everything = score, np.arange(orders.shape[1])
        groups = _deal_rows(orders.shape[1])
        self._kept = [
            # Row i gets values from row order[i]. To leave out a group, drop row i if row i or row
            # order[i] belongs to the group.
            [np.flatnonzero((groups != g) & (groups[order] != g)) for order in orders]
            for g in range(NUM_GROUPS)
        ]
        self._base = score(plain, self._everything)
        self._before = np.stack(
            [[score(plain, places) for places in orders_rows] for orders_rows in self._kept]
        )

    def compare(self, predicted: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
        """Compare the metrics after each of R permutations with the original metrics.

        Args:
          predicted: for each of R permutations, the predictions for the permuted rows.

        Returns:
          The change of each metric, as the mean over the permutations, [M]; and the standard error
          of this mean, [M].
        """
        changes = [self._score(logits, self._everything) - self._base for logits in predicted]
        after = [
            [
                self._score(logits, places)
                for logits, places in zip(predicted, orders_rows, strict=True)
            ]
            for orders_rows in self._kept
        ]
        # Average over the permutations first, [G, R, M] -> [G, M], because the
        # error is for this mean.
        return np.mean(changes, 0), _find_error((np.stack(after) - self._before).mean(1))


def _find_error(partial: np.ndarray) -> np.ndarray:
    """Return the jackknife's standard errors of M values; row g of [G, M] leaves out group g."""
    count = len(partial)
    # A variance divides by G - 1; the jackknife multiplies by G - 1, because two of these values
    # share most of their rows, and so differ little.
    return np.sqrt((count - 1) / count * np.sum((partial - partial.mean(0)) ** 2, 0))


def _deal_rows(num_rows: int) -> np.ndarray:
    """Divide the rows into groups of equal size, at random; return the group of each row, [N]."""
    groups = np.arange(num_rows) % NUM_GROUPS
    # Use a fixed seed, so that two explanations of the same rows have the same intervals.
    return np.random.default_rng(0).permutation(groups)


def rank_inputs(result: Importance) -> list[int]:
    """Sort the inputs by importance.

    For each task, only the drop of its first metric counts. Metrics have different units, so each
    drop is divided by the largest drop of its task.

    Args:
      result: the importance of I inputs.

    Returns:
      The I indices of the inputs, the most important input first. If no task has a metric, the
      inputs stay in their order.
    """
    firsts = _find_firsts(result.metrics)
    if not firsts:
        return list(range(len(result.inputs)))
    # If a permutation improves a metric, the input counts as unimportant for the task.
    drops = np.nan_to_num(np.maximum(result.drop[:, firsts], 0))
    most = drops.max(0, initial=0)
    shares = drops / np.where(most > 0, most, 1)
    return sorted(range(len(result.inputs)), key=lambda i: (-shares[i].max(), -shares[i].sum()))


def _find_firsts(metrics: Sequence[scores.Metric]) -> list[int]:
    """Return the index of the first metric of each task."""
    tasks = [metric.task for metric in metrics]
    return [place for place, task in enumerate(tasks) if task not in tasks[:place]]


def is_clear(result: Importance, i: int, m: int) -> bool:
    """Return whether the confidence interval of an input and a metric excludes 0.

    Args:
      result: the importance of the inputs.
      i: the index of the input, in [0, I).
      m: the index of the metric, in [0, M).
    """
    low, high = result.low[i, m], result.high[i, m]
    return math.isfinite(low) and (low > 0 or high < 0)
