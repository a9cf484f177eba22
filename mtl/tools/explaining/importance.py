"""Permutation importance: how much worse a task gets if a field has values of other rows.

found = importance.measure(model, scores, rows, inputs, importance.draw_orders(rows.size, 5, seed))
found.drop[input, metric], found.low, found.high         # above 0: the model needs the field

The values of a field are permuted among the rows; other fields and labels stay. The importance is
the mean over R permutations of

    score of the original rows - score with the values permuted

with the sign of the metric: important fields are above 0. All fields are permuted by the same R
orders, which makes comparisons paired. L. Breiman, "Random Forests", 2001; A. Fisher, C. Rudin,
F. Dominici, "All Models are Wrong, but Many are Useful", 2019, arXiv:1801.01489.

The interval comes from a jackknife: it leaves out one of G groups of rows at a time, both as rows
and as sources of permuted values. So it covers the choice of held-out rows and of orders.
J. N. Arvesen, "Jackknifing U-statistics", 1969. It holds for any metric of a split, and is rather
too wide than too narrow: if only rows and values vary, by a factor of sqrt(1 + 1 / R).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mtl import checks
from mtl.tools.explaining import inputs as inputs_lib
from mtl.tools.explaining import opened, rows, scores

NUM_GROUPS = 20
# Half of a 95% interval in standard errors: Student's t of NUM_GROUPS - 1 degrees of freedom.
_QUANTILE = 2.093
# Each group that the jackknife leaves out has two rows at least.
FEWEST_ROWS = 2 * NUM_GROUPS

Predictions = Mapping[str, np.ndarray]
"""{task: [N, ...]} of all rows."""

Measure = Callable[[Predictions, np.ndarray], np.ndarray]
"""Measures M metrics of some rows: predictions, places [K] -> [M]."""


class Importance(NamedTuple):
    """The effects of permuting I inputs on M metrics.

    Attributes:
      inputs: I inputs.
      metrics: M metrics.
      base: the metrics of the original rows, [M].
      drop: how much worse the metrics get, [I, M].
      error: the standard error of `drop`, [I, M]; NaN if a metric is undefined without a group.
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
    """Draw R permutations of N rows, [R, N].

    Args:
      num_rows: N.
      repeats: R.
      seed: the seed of the draw.
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
    """Permute each input by each of R orders, and measure all tasks.

    Args:
      model: the model with the metrics.
      measured: the metrics.
      held: N rows.
      inputs: the inputs to permute.
      orders: [R, N].
      progress: called with a line on the current work.

    Raises:
      UserError: there are too few rows.
    """
    require_rows(held)

    def score(logits: Predictions, places: np.ndarray) -> np.ndarray:
        chosen = {task: logits[task][places] for task in measured.logits}
        return measured.measure(model.session, chosen, rows.take(held.labels, places))

    plain = model.predict(held.features)
    base = measured.measure(model.session, plain, held.labels, model.batch_size)
    paired = Paired(score, plain, orders)
    changes, errors = [], []
    for number, one in enumerate(inputs):
        progress(f"permuting {one.name}, {number + 1} of {len(inputs)}")
        change, error = paired.compare(
            [model.predict(held.permute(one.fields, order)) for order in orders]
        )
        changes.append(change)
        errors.append(error)
    shape = [len(inputs), len(measured.metrics)]
    # The sign of each metric turns a change for the worse into a number above 0.
    drop = -np.reshape(changes, shape) * measured.signs
    return Importance(inputs, measured.metrics, base, drop, np.reshape(errors, shape))


def require_rows(held: rows.Rows) -> None:
    """Fail if there are too few rows for an interval."""
    rule = f"give {FEWEST_ROWS} rows or more"
    fix = "--limit says how many are read at most."
    checks.require(held.size >= FEWEST_ROWS, f"split {held.split!r}", rule, held.size, fix)


class Paired:
    """Compares predictions for permuted rows with predictions for the original rows.

    Both scores use the same rows, which cancels the common effect of a row.

    Args:
      score: a function that measures M metrics of some of N rows.
      plain: the predictions for the original rows.
      orders: [R, N].
    """

    def __init__(self, score: Measure, plain: Predictions, orders: np.ndarray):
        self._score, self._everything = score, np.arange(orders.shape[1])
        groups = _deal_rows(orders.shape[1])
        self._kept = [
            # Row i gets values of row order[i]: both must lie outside of the left-out group.
            [np.flatnonzero((groups != g) & (groups[order] != g)) for order in orders]
            for g in range(NUM_GROUPS)
        ]
        self._base = score(plain, self._everything)
        self._before = np.stack([[score(plain, own) for own in kept] for kept in self._kept])

    def compare(self, predicted: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean change of the metrics over R orders, and its standard error, [M] each."""
        found = [self._score(logits, self._everything) - self._base for logits in predicted]
        after = [
            [self._score(logits, own) for logits, own in zip(predicted, kept, strict=True)]
            for kept in self._kept
        ]
        # [G, R, M] -> [G, M]: the mean over orders first, as it is the estimate whose error is
        # wanted.
        return np.mean(found, 0), _find_error((np.stack(after) - self._before).mean(1))


def _find_error(without: np.ndarray) -> np.ndarray:
    """Return the standard errors of M values, from the values without each group, [G, M]."""
    count = len(without)
    # Unlike a plain variance, the jackknife multiplies by G - 1 instead of dividing by it: values
    # without a group share most of their rows, and so differ little.
    return np.sqrt((count - 1) / count * np.sum((without - without.mean(0)) ** 2, 0))


def _deal_rows(num_rows: int) -> np.ndarray:
    """Return the group of each row, [N]: random groups of equal size, as rows may be sorted."""
    groups = np.arange(num_rows) % NUM_GROUPS
    # A fixed seed: two explanations of the same rows have the same intervals.
    return np.random.default_rng(0).permutation(groups)


def rank_inputs(found: Importance) -> list[int]:
    """Return the indices of the inputs, first the input that a task needs most.

    Metrics have different units. So each drop is divided by the task's largest drop in its first
    metric.
    """
    firsts = _find_firsts(found.metrics)
    if not firsts:
        return list(range(len(found.inputs)))
    # A field whose permutation helps is needed as little as one without effect.
    drops = np.nan_to_num(np.maximum(found.drop[:, firsts], 0))
    most = drops.max(0, initial=0)
    shares = drops / np.where(most > 0, most, 1)
    return sorted(range(len(found.inputs)), key=lambda i: (-shares[i].max(), -shares[i].sum()))


def _find_firsts(metrics: Sequence[scores.Metric]) -> list[int]:
    """Return the index of the first metric of each task."""
    tasks = [metric.task for metric in metrics]
    return [place for place, task in enumerate(tasks) if task not in tasks[:place]]


def is_clear(found: Importance, i: int, m: int) -> bool:
    """Return whether the interval of an input and a metric excludes 0."""
    low, high = found.low[i, m], found.high[i, m]
    return math.isfinite(low) and (low > 0 or high < 0)
