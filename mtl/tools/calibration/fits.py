"""Calibrates the probabilities of a trained network: fits them to the labels of a split.

from mtl.tools import calibration
experiment.Experiment.refit = @calibration.Platt()
calibration.Platt.source = "runs/clicks"
calibration.Platt.tasks = ["click", "buy"]
calibration.Platt.split = "calibration"

`Temperature` and `Platt` change the kernel and the bias of a head, so the result is a plain
checkpoint of the same network. `Isotonic` sets the knots of a `Binary` head. If the head has
`calibration_slices`, the rows of each slice get a separate calibration. `verbs.train` writes,
evaluates and exports the calibrated network like any other network.
"""

import abc
import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from mtl import checks, heads, types
from mtl.heads import calibrated as calibrated_lib
from mtl.heads import slices
from mtl.transfer import refit

_log = logging.getLogger(__name__)

# The largest factor for logits. If logits separate the classes, the best factor is infinite.
_LARGEST_SCALE = 100.0
_BISECTIONS = 60
_MOST_STEPS = 100
# The smallest distance between two knots of `Isotonic`, in logits.
_LEAST_WIDTH = 1e-3
# A slice with fewer labelled rows gets the calibration of all rows, which is more accurate.
_FEWEST_ROWS = 100


class Scored(NamedTuple):
    """The logits and the labels of the labelled rows of a split, in float64.

    Attributes:
      logits: the logits of the rows, [N] or [N, C].
      targets: the labels: 0 or 1 in the shape of the logits, or class ids [N].
      weights: the weights of the labels. The positive weights have a mean of 1, so a sum of weights
        is comparable to a number of rows.
    """

    logits: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def take(self, is_selected: np.ndarray) -> "Scored":
        """Select rows.

        Args:
          is_selected: True for the rows to select, [N] bool.

        Returns:
          The selected rows, with weights scaled such that the positive weights have a mean of 1.
        """
        rows = Scored(*(part[is_selected] for part in self))
        positive_weights = rows.weights[rows.weights > 0]
        return (
            rows._replace(weights=rows.weights / positive_weights.mean())
            if len(positive_weights)
            else rows
        )


class Fit(NamedTuple):
    """The calibration of a head, fitted to rows.

    Attributes:
      values: the slope and the shift of each of C logits, [2, C]; for `Isotonic`, K knots, each
        with its logit and its calibrated logit, [K, 2].
      description: the calibration as text, for the log.
      logits: the calibrated logits of the rows.
    """

    values: np.ndarray
    description: str
    logits: np.ndarray


@checks.dataclass
class Calibration(refit.Refit):
    """The base class of calibration methods, which hold the logits of a split in memory.

    Attributes:
      source: a checkpoint, or a model_dir whose latest checkpoint is used.
      tasks: the tasks whose heads are calibrated, each separately.
      split: the split whose rows the calibration is fitted to. `split` must differ from the
        training split, whose probabilities are too confident, and from the split of evaluations.
    """

    tasks: Annotated[checks.Names, checks.Filled("name a task")]
    split: Annotated[str, checks.Is(str, "name a split")]

    kinds: ClassVar[tuple[type[types.Head], ...]] = (
        heads.Binary,
        heads.MultiLabel,
        heads.MultiClass,
    )
    setting = "tasks"
    computes: ClassVar[tuple[str, ...]] = ("calibration_slices",)

    kind: ClassVar[str] = calibrated_lib.LINES
    """The name of the variable that holds the calibrations of slices."""

    def list_tasks(self) -> Sequence[str]:
        """Return the names of the tasks to calibrate."""
        return self.tasks

    def split_of(self, train_split: str, eval_split: str) -> str:
        """Return the split whose rows the calibration is fitted to.

        Args:
          train_split: the name of the training split.
          eval_split: the name of the split for evaluations.

        Raises:
          UserError: `split` is the split for training or for evaluations.
        """
        where = f"{type(self).__name__}.split"
        rule = f"be another split than {train_split!r} and {eval_split!r}"
        fix = "On the rows of the fit, calibration looks better than on other rows."
        checks.require(self.split not in (train_split, eval_split), where, rule, self.split, fix)
        return self.split

    @abc.abstractmethod
    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Fit the calibration of a head to labelled rows.

        Args:
          head: the head to calibrate.
          rows: labelled rows.
          others: the `Fit.values` of the calibration of all rows, if `rows` are only the rows of a
            slice. A class that cannot be calibrated on the slice gets the values of the calibration
            of all rows. `others` is None if `rows` are all labelled rows.

        Returns:
          The fitted calibration, whose `values` are [2, C], or [K, 2] for `Isotonic`.

        Raises:
          UserError: the calibration cannot be fitted to the rows.
        """

    def place(self, old: refit.Classifier, values: np.ndarray) -> refit.Classifier:
        """Change the last layer of a head so that it computes calibrated logits.

        Args:
          old: the last layer, with a kernel [H, C] and a bias [C].
          values: the `Fit.values` of all rows: in this class the slope and the shift of each logit,
            [2, C].

        Returns:
          The calibrated layer; this class changes only the kernel and the bias.
        """
        slopes, shifts = values
        return old._replace(kernel=old.kernel * slopes, bias=old.bias * slopes + shifts)

    def fit(
        self, head: types.Head, old: refit.Classifier, rows: Iterable[refit.Rows]
    ) -> refit.Classifier:
        """Calibrate the last layer of a head, and log the cross-entropy before and after.

        Args:
          head: the head to calibrate.
          old: the last layer of the head.
          rows: the rows of the split that the calibration is fitted to, in batches.

        Returns:
          The calibrated layer.

        Raises:
          UserError: the split has no label of the head, a logit is not finite, or the fit fails.
        """
        all_rows, places = self._score_rows(head.name, old, rows)
        overall_fit = self.calibrate(head, all_rows)
        self._tell(head.name, all_rows, overall_fit)
        names = [part.name for part in slices.list_slices(getattr(head, "calibration_slices", {}))]
        if not names:
            return self.place(old, overall_fit.values)
        fits, doubts = [], []
        # `places` holds the index of the slice of each row in `names`.
        for number, name in enumerate(names):
            rows_of, task = all_rows.take(places == number), f"{head.name} where {name}"
            try:
                slice_fit = self._fit_slice(head, task, rows_of, overall_fit)
            except checks.UserError as error:
                doubts.append(f"{task} uses the calibration of all rows: {error}")
                slice_fit = overall_fit
            else:
                self._tell(task, rows_of, slice_fit)
            fits.append(slice_fit.values)
        behind = {self.kind: np.stack([*fits, overall_fit.values])}
        return old._replace(behind=behind, doubts=doubts)

    def _fit_slice(self, head: types.Head, task: str, rows: Scored, overall_fit: Fit) -> Fit:
        """Fit the calibration of a slice; fail if its rows are too few, or have equal labels."""
        where, count = f"split {self.split!r}", len(rows.logits)
        rule = f"hold {_FEWEST_ROWS} labels of {task}"
        checks.require(count >= _FEWEST_ROWS, where, rule, count)
        has_both = len(np.unique(rows.targets[rows.weights > 0])) > 1
        rule = f"hold different labels of {task}"
        checks.require(has_both, where, rule, rows.targets.flat[0])
        return self.calibrate(head, rows, overall_fit.values)

    def _tell(self, subject: str, rows: Scored, fit: Fit) -> None:
        before, after = mean_loss(rows), mean_loss(rows._replace(logits=fit.logits))
        line = "Calibrated %s on %d rows of %r: %s; cross-entropy %.4f, before %.4f"
        _log.info(line, subject, len(rows.logits), self.split, fit.description, after, before)

    def _score_rows(
        self, task: str, old: refit.Classifier, rows: Iterable[refit.Rows]
    ) -> tuple[Scored, np.ndarray]:
        """Return the labelled rows of a split, and the index of the slice of each row."""
        batches = []
        for towers, targets, weights, places in rows:
            has_label = weights > 0 if weights.ndim == 1 else (weights > 0).any(1)
            logits = old.compute_logits(np.float64(towers))
            logits = logits[:, 0] if weights.ndim == 1 and logits.shape[1] == 1 else logits
            parts = (*map(np.float64, (logits, targets, weights)), places)
            batches.append([part[has_label] for part in parts])
        *columns, places = (np.concatenate(part) for part in zip(*batches, strict=True))
        all_rows = Scored(*columns)
        where = f"{type(self).__name__}.split"
        rule = f"hold a label of task {task!r}"
        checks.require(len(all_rows.logits) > 0, where, rule, self.split)
        all_rows = all_rows.take(np.ones(len(places), bool))
        is_finite = bool(np.isfinite(all_rows.logits).all())
        rule = f"have finite logits for task {task!r}"
        checks.require(is_finite, where, rule, "a NaN or an infinity")
        return all_rows, places


@dataclasses.dataclass(frozen=True, kw_only=True)
class Temperature(Calibration):
    """Divides the logits of a head by the temperature T that minimizes the cross-entropy.

    C. Guo, G. Pleiss, Y. Sun and K. Weinberger, "On Calibration of Modern Neural Networks", 2017,
    arXiv:1706.04599. Division by T changes neither the ranking of rows by probability, nor classes
    that are predicted by comparing a probability with 0.5. All classes of a `MultiLabel` head share
    one temperature T.
    """

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Fit a temperature T: the slope of all classes is 1 / T, and the shift is 0.

        Raises:
          UserError: predictions are wrong more often than right, so no T above 0 minimizes the
            loss.
        """
        scale, num_logits = find_scale(rows), rows.logits[:1].size
        rule = "be right more often than wrong on the split for a temperature to exist"
        checks.require(scale > 0, f"head {head.name!r}", rule, f"1 / T = {scale:.3g}")
        lines = np.stack([np.full(num_logits, scale), np.zeros(num_logits)])
        return Fit(lines, f"temperature {1 / scale:.4g}", rows.logits * scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platt(Calibration):
    """Replaces each logit z with `a z + b`, with a and b of each class that minimize cross-entropy.

    J. Platt, "Probabilistic Outputs for Support Vector Machines", 1999. As in the paper, the
    targets are `1 / (n_0 + 2)` in place of 0, and `(n_1 + 1) / (n_1 + 2)` in place of 1, for n_0
    rows with the label 0 and n_1 rows with the label 1. With targets of 0 and 1, a and b would
    become infinite if a threshold on the logits separates the labels. If all labels of a class are
    equal, its logits do not change. Use `Temperature` for `MultiClass` heads.
    """

    kinds: ClassVar[tuple[type[types.Head], ...]] = (heads.Binary, heads.MultiLabel)

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Fit a slope and a shift for each class of a head.

        Raises:
          UserError: a slope is not above 0, because the logits rank the rows in the wrong order.
        """
        parts = [part if part.ndim == 2 else part[:, np.newaxis] for part in rows]
        unfit = np.repeat([[1.0], [0.0]], parts[0].shape[1], 1) if others is None else others
        classes = np.stack(parts).transpose(2, 0, 1)
        lines = [
            fit_line(z, y, w, start) for (z, y, w), start in zip(classes, unfit.T, strict=True)
        ]
        slopes, shifts = np.transpose(lines)
        rule = "rank rows of the split in the right order"
        checks.require(bool((slopes > 0).all()), f"head {head.name!r}", rule, float(slopes.min()))
        text = ", ".join(f"{slope:.4g} z {shift:+.4g}" for slope, shift in lines[:5])
        text += f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        logits = parts[0] * slopes + shifts
        return Fit(np.stack([slopes, shifts]), text, logits.reshape(rows.logits.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isotonic(Calibration):
    """Maps logits by a rising piecewise linear function, for `Binary` heads with `knots`.

    The method is isotonic regression by the algorithm "pool adjacent violators". B. Zadrozny and C.
    Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates", 2002.
    The method sorts the rows by logit, and pools neighbouring rows into blocks of equal
    probability. Each block of rows becomes a knot of the function, at the mean logit of the rows.
    If the head has too few knots for all blocks, the most similar neighbouring blocks are joined.
    The function is constant from the smallest logit to the first knot, and from the last knot to
    the largest logit. Logits between two knots are interpolated; the paper uses a step function. A
    block whose labels are all equal counts half a row of the other label in addition, to avoid
    probabilities of 0 and 1.
    """

    kinds: ClassVar[tuple[type[types.Head], ...]] = (heads.Binary,)

    computes = ("knots", "calibration_slices")
    kind = calibrated_lib.KNOTS

    def check_computed(self, head: types.Head) -> None:
        """Fail unless the head has knots that the calibration can set.

        Raises:
          UserError: the head has no knots.
        """
        super().check_computed(head)
        assert isinstance(head, heads.Binary)
        where = f"Binary.knots of task {head.name!r}"
        fix = "Set the number of knots, such as 32."
        checks.require(head.knots > 0, where, "be above 0 with Isotonic", head.knots, fix)

    def place(self, old: refit.Classifier, values: np.ndarray) -> refit.Classifier:
        """Return the last layer of a head, followed by the function whose knots are `values`."""
        return old._replace(behind={self.kind: values})

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Fit the knots of a piecewise linear function from logits to calibrated logits."""
        assert isinstance(head, heads.Binary)
        inputs, outputs = fit_knots(rows, head.knots)
        bent = np.interp(rows.logits, inputs, outputs)
        bent += np.minimum(rows.logits - inputs[0], 0) + np.maximum(rows.logits - inputs[-1], 0)
        text = f"{len(inputs)} knots from {inputs[0]:.3g} to {inputs[-1]:.3g}"
        return Fit(np.stack([inputs, outputs], axis=1), text, bent)


def mean_loss(rows: Scored) -> float:
    """Return the weighted mean of the cross-entropy of rows, in nats."""
    logits, targets, weights = rows
    if logits.ndim == targets.ndim:
        losses = np.logaddexp(0, logits) - targets * logits
    else:
        target_logits = np.take_along_axis(logits, targets.astype(int)[:, np.newaxis], 1)[:, 0]
        losses = np.logaddexp.reduce(logits, axis=1) - target_logits
    return float((weights * losses).sum() / weights.sum())


def find_scale(rows: Scored) -> float:
    """Find the factor of the logits that minimizes the cross-entropy, by bisection.

    Args:
      rows: labelled rows with their logits.

    Returns:
      The factor 1 / T of the logits, in [0, 100]; 0 if every factor above 0 gives a larger
      cross-entropy than 0.
    """
    low, high = 0.0, _LARGEST_SCALE
    if _find_slope(rows, low) >= 0:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_below = _find_slope(rows, middle) < 0
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2


def _find_slope(rows: Scored, scale: float) -> float:
    """Return the derivative of the total cross-entropy with respect to the factor of the logits.

    The derivative of the cross-entropy never decreases when the factor of the logits grows, so
    `find_scale` can find the zero of the derivative by bisection.
    """
    logits, targets, weights = rows
    if logits.ndim == targets.ndim:
        shares = _apply_sigmoid(scale * logits)
        return float((weights * logits * (shares - targets)).sum())
    scaled = scale * logits
    shares = np.exp(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))
    of_target = np.take_along_axis(logits, targets.astype(int)[:, np.newaxis], 1)[:, 0]
    return float((weights * ((shares * logits).sum(1) - of_target)).sum())


def _apply_sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))


def fit_line(
    logits: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    unfit: np.ndarray,
) -> tuple[float, float]:
    """Fit the slope and the shift of Platt's method by Newton's method with halved steps.

    Args:
      logits: the logits of N rows, [N].
      targets: the labels, 0 or 1, [N].
      weights: the weights of the labels, [N].
      unfit: the slope and the shift that are returned if no line can be fitted, because all labels
        are equal, [2].

    Returns:
      The slope and the shift.
    """
    positive = float((weights * targets).sum())
    negative = float(weights.sum()) - positive
    if not (positive > 0 and negative > 0):
        return float(unfit[0]), float(unfit[1])
    # Use Platt's targets: with targets of 0 and 1, the slope would become infinite if a threshold
    # on the logits separates the labels.
    goals = np.where(targets > 0.5, (positive + 1) / (positive + 2), 1 / (negative + 2))
    inputs = np.stack([logits, np.ones_like(logits)])

    def lose(line: np.ndarray) -> float:
        logits_of_line = line @ inputs
        return float((weights * (np.logaddexp(0, logits_of_line) - goals * logits_of_line)).sum())

    line = np.array([0.0, np.log((positive + 1) / (negative + 1))])
    loss = lose(line)
    for _ in range(_MOST_STEPS):
        shares = _apply_sigmoid(line @ inputs)
        slope = inputs @ (weights * (shares - goals))
        curvature = (inputs * (weights * shares * (1 - shares))) @ inputs.T
        # The small diagonal keeps the equations solvable even if all logits are equal.
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2) * np.trace(curvature), slope)
        size = 1.0
        while size > 1e-10 and lose(line - size * step) > loss:
            size /= 2
        new = line - size * step
        if not lose(new) < loss:
            break
        line, loss = new, lose(new)
    return float(line[0]), float(line[1])


def fit_knots(rows: Scored, num_knots: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit the knots of an isotonic calibration.

    Args:
      rows: N labelled rows.
      num_knots: the number of knots K, at least 4.

    Returns:
      The logits at the knots, [K] ascending, and the calibrated logits at the knots, [K].
    """
    inputs, shares, sizes = _join(*_pool_violators(rows), num_knots - 2)
    lowest, highest = 0.5 / (sizes[0] + 1), 1 - 0.5 / (sizes[-1] + 1)
    # Shares of 0 and 1 have infinite logits, so count half a row of the other label in addition.
    shares = np.clip(shares, min(lowest, shares[shares > 0].min(initial=1.0)), None)
    shares = np.clip(shares, None, max(highest, shares[shares < 1].max(initial=0.0)))
    outputs = np.log(shares) - np.log1p(-shares)
    low, high = rows.logits.min(), rows.logits.max()
    if len(inputs) == 1 or low < inputs[0] - _LEAST_WIDTH:
        low = min(low, inputs[0] - _LEAST_WIDTH)
        inputs, outputs = np.append(low, inputs), np.append(outputs[0], outputs)
    if high > inputs[-1] + _LEAST_WIDTH:
        inputs, outputs = np.append(inputs, high), np.append(outputs, outputs[-1])
    # The head needs exactly `num_knots` knots: insert the missing knots in the widest gaps.
    while len(inputs) < num_knots:
        place = int(np.argmax(np.diff(inputs)))
        inputs, outputs = (
            np.insert(values, place + 1, values[place : place + 2].mean())
            for values in (inputs, outputs)
        )
    return inputs, outputs


def _pool_violators(rows: Scored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pool neighbouring rows; return mean logit, share of positives and weight of each block."""
    # Round logits, so that logits that differ only by numerical noise count as equal.
    bins = np.round(rows.logits / _LEAST_WIDTH) * _LEAST_WIDTH
    logits, places = np.unique(bins, return_inverse=True)
    sizes = np.bincount(places, rows.weights)
    hits = np.bincount(places, rows.weights * rows.targets)
    blocks: list[list[float]] = []  # For each block: weight, weight of positives, sum of logits.
    for size, hit, logit in zip(sizes, hits, sizes * logits, strict=True):
        blocks.append([size, hit, logit])
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            newest = blocks.pop()
            blocks[-1] = [left + right for left, right in zip(blocks[-1], newest, strict=True)]
    size, hit, logit = np.array(blocks).T
    return logit / size, hit / size, size


def _join(
    logits: np.ndarray, shares: np.ndarray, sizes: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join neighbouring blocks of rows, the most similar first, until at most `most` remain."""
    while len(logits) > most:
        pair_sizes = sizes[:-1] + sizes[1:]
        place = int(np.argmin(np.diff(shares) ** 2 * sizes[:-1] * sizes[1:] / pair_sizes))
        pair = slice(place, place + 2)
        for values in (logits, shares):
            values[place] = np.average(values[pair], weights=sizes[pair])
        sizes[place] = pair_sizes[place]
        logits, shares, sizes = (np.delete(v, place + 1) for v in (logits, shares, sizes))
    return logits, shares, sizes
