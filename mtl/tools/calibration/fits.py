"""Calibrates the probabilities of a trained network: fits them to the labels of a split.

from mtl.tools import calibration
experiment.Experiment.refit = @calibration.Platt()
calibration.Platt.source = "runs/clicks"
calibration.Platt.tasks = ["click", "buy"]
calibration.Platt.split = "calibration"

`Temperature` and `Platt` change the kernel and the bias of a head: the result is a plain checkpoint
of the same network. `Isotonic` sets the knots of a `Binary` head. If the head has
`calibration_slices`, each slice has a separate fit. `verbs.train` writes the result, evaluates it,
and exports it like any other network.
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

# If logits separate all rows, the cross-entropy falls with any larger scale.
_LARGEST_SCALE = 100.0
_BISECTIONS = 60
_MOST_STEPS = 100
# The least distance between knots.
_LEAST_WIDTH = 1e-3
# A smaller slice is calibrated better by the fit of all rows.
_FEWEST_ROWS = 100


class Scored(NamedTuple):
    """All labelled rows of a split, in float64: logits [N] or [N, C], targets and weights.

    The positive weights have a mean of 1: they count rows.
    """

    logits: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def take(self, chosen: np.ndarray) -> "Scored":
        """Return the rows of a mask, [N] bool.

        Args:
          chosen: True for the rows to take, [N] bool.

        Returns:
          The rows, whose positive weights have a mean of 1 again.
        """
        rows = Scored(*(part[chosen] for part in self))
        positive_weights = rows.weights[rows.weights > 0]
        return (
            rows._replace(weights=rows.weights / positive_weights.mean())
            if len(positive_weights)
            else rows
        )


class Fit(NamedTuple):
    """A fit: lines [2, C] or knots [K, 2], a description, and the calibrated logits."""

    values: np.ndarray
    told: str
    logits: np.ndarray


@checks.dataclass
class Calibration(refit.Refit):
    """Base of the methods of calibration. They keep the split's logits in memory.

    Attributes:
      source: a checkpoint, or a model_dir whose latest checkpoint is read.
      tasks: the tasks whose heads are calibrated, each by itself.
      split: the rows to fit. They must not be the training rows, whose probabilities are too sure,
        nor the rows of the report.
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
    """The variable that holds the fits of slices."""

    def list_tasks(self) -> Sequence[str]:
        """Return the tasks."""
        return self.tasks

    def split_of(self, train_split: str, eval_split: str) -> str:
        """Return the split to fit; fail if the run trains on it or evaluates it.

        Args:
          train_split: the split that the run trains on.
          eval_split: the split that it evaluates.

        Raises:
          UserError: the split is one of them.
        """
        where = f"{type(self).__name__}.split"
        rule = f"be another split than {train_split!r} and {eval_split!r}"
        fix = "A fit looks better on its own rows than on others."
        checks.require(self.split not in (train_split, eval_split), where, rule, self.split, fix)
        return self.split

    @abc.abstractmethod
    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Fit the rows; a class that they cannot fit gets its values from `others`.

        Args:
          head: the head whose logits are fitted.
          rows: labelled rows.
          others: the values of the fit of all rows, for a slice; None for this fit itself.

        Returns:
          The fit, with values [2, C] or [K, 2].

        Raises:
          UserError: the rows cannot be fitted.
        """

    def place(self, old: refit.Classifier, values: np.ndarray) -> refit.Classifier:
        """Return the layer with the fit of all rows: here lines, in kernel and bias.

        Args:
          old: the last layer, with a kernel [H, C] and a bias [C].
          values: the values of a fit: here slopes and shifts, [2, C].
        """
        slopes, shifts = values
        return old._replace(kernel=old.kernel * slopes, bias=old.bias * slopes + shifts)

    def fit(
        self, head: types.Head, old: refit.Classifier, rows: Iterable[refit.Rows]
    ) -> refit.Classifier:
        """Return the calibrated layer; log the cross-entropy on the split without and with it.

        Args:
          head: the head.
          old: its last layer.
          rows: the batches of the split.

        Raises:
          UserError: the split has no label of the head, a logit is not finite, or the fit fails.
        """
        all_rows, places = self._score_rows(head.name, old, rows)
        whole = self.calibrate(head, all_rows)
        self._tell(head.name, all_rows, whole)
        names = [part.name for part in slices.list_slices(getattr(head, "calibration_slices", {}))]
        if not names:
            return self.place(old, whole.values)
        fits, doubts = [], []
        # `places` numbers the slices in the order of their names.
        for number, name in enumerate(names):
            rows_of, task = all_rows.take(places == number), f"{head.name} where {name}"
            try:
                slice_fit = self._fit_slice(head, task, rows_of, whole)
            except checks.UserError as error:
                doubts.append(f"{task} has the calibration of all rows: {error}")
                slice_fit = whole
            else:
                self._tell(task, rows_of, slice_fit)
            fits.append(slice_fit.values)
        behind = {self.kind: np.stack([*fits, whole.values])}
        return old._replace(behind=behind, doubts=doubts)

    def _fit_slice(self, head: types.Head, task: str, rows: Scored, whole: Fit) -> Fit:
        """Return the fit of a slice; fail if it has too few rows or labels of only one kind."""
        where, count = f"split {self.split!r}", len(rows.logits)
        rule = f"hold {_FEWEST_ROWS} labels of {task}"
        checks.require(count >= _FEWEST_ROWS, where, rule, count)
        has_both = len(np.unique(rows.targets[rows.weights > 0])) > 1
        rule = f"hold different labels of {task}"
        checks.require(has_both, where, rule, rows.targets.flat[0])
        return self.calibrate(head, rows, whole.values)

    def _tell(self, subject: str, rows: Scored, fit: Fit) -> None:
        before, after = mean_loss(rows), mean_loss(rows._replace(logits=fit.logits))
        line = "Calibrated %s on %d rows of %r: %s; cross-entropy %.4f, before %.4f"
        _log.info(line, subject, len(rows.logits), self.split, fit.told, after, before)

    def _score_rows(
        self, task: str, old: refit.Classifier, rows: Iterable[refit.Rows]
    ) -> tuple[Scored, np.ndarray]:
        """Return the labelled rows, and the number of the slice of each."""
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
        rule = f"have finite logits of task {task!r}"
        checks.require(is_finite, where, rule, "a NaN or an infinity")
        return all_rows, places


@dataclasses.dataclass(frozen=True, kw_only=True)
class Temperature(Calibration):
    """`z / T` of the logits z, with the T of the least cross-entropy: kernel and bias divided by T.

    C. Guo, G. Pleiss, Y. Sun and K. Weinberger, "On Calibration of Modern Neural Networks", 2017,
    arXiv:1706.04599. It keeps the order of rows, and the predicted classes at a threshold of 0.5.
    All classes of a `MultiLabel` head share one T.
    """

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Return lines whose common slope is 1 / T."""
        scale, num_logits = find_scale(rows), rows.logits[:1].size
        rule = "be right more often than wrong on the split, to get a temperature"
        checks.require(scale > 0, f"head {head.name!r}", rule, f"1 / T = {scale:.3g}")
        lines = np.stack([np.full(num_logits, scale), np.zeros(num_logits)])
        return Fit(lines, f"temperature {1 / scale:.4g}", rows.logits * scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platt(Calibration):
    """`a z + b` of the logit z of each class, with the a and b of the least cross-entropy.

    J. Platt, "Probabilistic Outputs for Support Vector Machines", 1999. As in the paper, the labels
    are not 0 and 1 but `1 / (n_0 + 2)` and `(n_1 + 1) / (n_1 + 2)` for n_0 and n_1 rows: a and b
    stay finite even if a threshold separates all rows. A class with rows of only one kind does not
    change. For `MultiClass` heads take `Temperature`.
    """

    kinds: ClassVar[tuple[type[types.Head], ...]] = (heads.Binary, heads.MultiLabel)

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Return the lines of the classes."""
        parts = [part if part.ndim == 2 else part[:, np.newaxis] for part in rows]
        unfit = np.repeat([[1.0], [0.0]], parts[0].shape[1], 1) if others is None else others
        classes = np.stack(parts).transpose(2, 0, 1)
        lines = [
            fit_line(z, y, w, start) for (z, y, w), start in zip(classes, unfit.T, strict=True)
        ]
        slopes, shifts = np.transpose(lines)
        rule = "rank rows of the split in the right order"
        checks.require(bool((slopes > 0).all()), f"head {head.name!r}", rule, slopes.min())
        text = ", ".join(f"{slope:.4g} z {shift:+.4g}" for slope, shift in lines[:5])
        text += f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        logits = parts[0] * slopes + shifts
        return Fit(np.stack([slopes, shifts]), text, logits.reshape(rows.logits.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isotonic(Calibration):
    """The rising line of knots that fits the labels best, for `Binary` heads with `knots`.

    Isotonic regression by pool adjacent violators: B. Zadrozny and C. Elkan, "Transforming
    Classifier Scores into Accurate Multiclass Probability Estimates", 2002. The blocks of equal
    probability become knots at their mean logits. If the head has fewer knots, the most similar
    neighbours are joined. The first and the last block reach to the least and the greatest logit.
    Logits between knots are interpolated; the paper has steps. A block with equal labels also
    counts half a label of the other kind, which avoids probabilities of 0 and 1.
    """

    kinds: ClassVar[tuple[type[types.Head], ...]] = (heads.Binary,)

    computes = ("knots", "calibration_slices")
    kind = calibrated_lib.KNOTS

    def check_computed(self, head: types.Head) -> None:
        """Fail unless the head sets its number of knots."""
        super().check_computed(head)
        assert isinstance(head, heads.Binary)
        where = f"Binary.knots of task {head.name!r}"
        fix = "It says how many knots are computed, such as 32."
        checks.require(head.knots > 0, where, "be above 0 with Isotonic", head.knots, fix)

    def place(self, old: refit.Classifier, values: np.ndarray) -> refit.Classifier:
        """Return the layer, followed by the knots of all rows."""
        return old._replace(behind={self.kind: values})

    def calibrate(self, head: types.Head, rows: Scored, others: np.ndarray | None = None) -> Fit:
        """Return the knots."""
        assert isinstance(head, heads.Binary)
        inputs, outputs = fit_knots(rows, head.knots)
        bent = np.interp(rows.logits, inputs, outputs)
        bent += np.minimum(rows.logits - inputs[0], 0) + np.maximum(rows.logits - inputs[-1], 0)
        text = f"{len(inputs)} knots from {inputs[0]:.3g} to {inputs[-1]:.3g}"
        return Fit(np.stack([inputs, outputs], axis=1), text, bent)


def mean_loss(rows: Scored) -> float:
    """Return the weighted mean cross-entropy, in nats.

    Args:
      rows: logits [N] or [N, C] with targets of the same shape, or logits [N, C] with classes [N].
    """
    logits, targets, weights = rows
    if logits.ndim == targets.ndim:
        losses = np.logaddexp(0, logits) - targets * logits
    else:
        target_logits = np.take_along_axis(logits, targets.astype(int)[:, np.newaxis], 1)[:, 0]
        losses = np.logaddexp.reduce(logits, axis=1) - target_logits
    return float((weights * losses).sum() / weights.sum())


def find_scale(rows: Scored) -> float:
    """Return the factor of the logits in [0, 100] with the least cross-entropy, by bisection.

    Args:
      rows: labelled rows.

    Returns:
      The factor 1 / T; 0 if no scale above 0 lowers the cross-entropy of equal logits.
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
    """Return the derivative of the summed cross-entropy by the factor; it never decreases."""
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
    """Fit Platt's slope and shift, by Newton's method with halved steps.

    Args:
      logits: [N].
      targets: 0 or 1, [N].
      weights: [N].
      unfit: slope and shift if all rows are of one kind, [2].

    Returns:
      The slope and the shift.
    """
    positive = float((weights * targets).sum())
    negative = float(weights.sum()) - positive
    if not (positive > 0 and negative > 0):
        return float(unfit[0]), float(unfit[1])
    # Platt's targets, 1999: with 0 and 1, the slope would grow without bound if logits separate the
    # labels.
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
        # The addition keeps the system regular if all logits are equal.
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
    """Fit knots of an isotonic calibration.

    Args:
      rows: the logits, targets and weights of N rows.
      num_knots: K.

    Returns:
      Rising logits of the knots, [K], and the calibrated logits there, [K].
    """
    inputs, shares, sizes = _join(*_pool_violators(rows), num_knots - 2)
    lowest, highest = 0.5 / (sizes[0] + 1), 1 - 0.5 / (sizes[-1] + 1)
    # A share of 0 or 1 has no finite logit: half of a row takes its place.
    shares = np.clip(shares, min(lowest, shares[shares > 0].min(initial=1.0)), None)
    shares = np.clip(shares, None, max(highest, shares[shares < 1].max(initial=0.0)))
    outputs = np.log(shares) - np.log1p(-shares)
    low, high = rows.logits.min(), rows.logits.max()
    if len(inputs) == 1 or low < inputs[0] - _LEAST_WIDTH:
        low = min(low, inputs[0] - _LEAST_WIDTH)
        inputs, outputs = np.append(low, inputs), np.append(outputs[0], outputs)
    if high > inputs[-1] + _LEAST_WIDTH:
        inputs, outputs = np.append(inputs, high), np.append(outputs, outputs[-1])
    # The head has a fixed number of knots: further knots lie on the line between two others.
    while len(inputs) < num_knots:
        place = int(np.argmax(np.diff(inputs)))
        inputs, outputs = (
            np.insert(values, place + 1, values[place : place + 2].mean())
            for values in (inputs, outputs)
        )
    return inputs, outputs


def _pool_violators(rows: Scored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pool adjacent violators: return mean logit, share of positives and weight of each block."""
    # Logits that differ only by rounding belong to equal rows, and may come in any order.
    bins = np.round(rows.logits / _LEAST_WIDTH) * _LEAST_WIDTH
    logits, places = np.unique(bins, return_inverse=True)
    sizes = np.bincount(places, rows.weights)
    hits = np.bincount(places, rows.weights * rows.targets)
    blocks: list[list[float]] = []  # Weight, weight of positives, sum of logits.
    for size, hit, logit in zip(sizes, hits, sizes * logits, strict=True):
        blocks.append([size, hit, logit])
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            last = blocks.pop()
            blocks[-1] = [first + second for first, second in zip(blocks[-1], last, strict=True)]
    size, hit, logit = np.array(blocks).T
    return logit / size, hit / size, size


def _join(
    logits: np.ndarray, shares: np.ndarray, sizes: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join neighbouring blocks until `most` are left, the most similar ones first."""
    while len(logits) > most:
        pair_sizes = sizes[:-1] + sizes[1:]
        place = int(np.argmin(np.diff(shares) ** 2 * sizes[:-1] * sizes[1:] / pair_sizes))
        pair = slice(place, place + 2)
        for values in (logits, shares):
            values[place] = np.average(values[pair], weights=sizes[pair])
        sizes[place] = pair_sizes[place]
        logits, shares, sizes = (np.delete(v, place + 1) for v in (logits, shares, sizes))
    return logits, shares, sizes
