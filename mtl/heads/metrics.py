"""Streaming metrics: sums over the batches of a split, and metrics from the sums.

sums = {"weight": tf.reduce_sum(weights), "loss": tf.reduce_sum(weights * losses)}
metrics.stream_sums(sums, lambda sums: {"average_loss": sums["loss"] / sums["weight"]})

If sums do not suffice, as for a variance or an AUC, use a `Total` such as `metrics.Moments`. A
metric is NaN if it is undefined for the split, such as AUC with a single class, or any metric
without labelled rows. With 0 instead of NaN, an undefined loss would look perfect, and an undefined
AUC would look like a useless model.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mtl import checks, types
from mtl.deferred import tf, tf1

# The number of bins of the calibration error, as in C. Guo et al., "On Calibration of Modern Neural
# Networks", 2017.
CALIBRATION_BINS = 15

SLICE = "@"
"""The separator between a metric and a slice of rows, as in `income/auc@country=DE`."""


# Every head may report these warning metrics; lower is better.
_OF_ALL_HEADS = {"nan_predictions": False, "*_error_bound": False}


class Total(Protocol):
    """A state that every batch of a split updates, and a value that is computed at the end."""

    @property
    def state(self) -> Sequence[tf.TensorSpec]:
        """The shapes and types of the state's local variables.

        Every variable of the state is 0 at first. If the size of an axis is unknown, the variable
        is empty at first.
        """

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Update the state with the current batch.

        Args:
          state: the variables, in the order of the property `state`.

        Returns:
          The op that updates the variables.
        """

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Join the states of all replicas, and return the value.

        Args:
          replicas: for each replica, the values of its variables.
        """


def find_directions(head: types.Head, names: Sequence[str]) -> list[tuple[str, bool]]:
    """Find the metrics of a head for which either higher or lower values are better.

    The metrics are in the order of `head.directions`, the most important metric first. Metrics over
    a slice of rows come last; for them, higher values are better if this holds for the same metric
    over all rows.

    Args:
      head: the head that has the metrics.
      names: the names of the head's metrics, without the name of the task.

    Returns:
      Pairs (name, True if a higher value is better).
    """
    directions = {**types.read_member(head, types.Head, "directions"), **_OF_ALL_HEADS}
    directed = [
        (name, higher)
        for pattern, higher in directions.items()
        for name in names
        if fnmatch.fnmatchcase(split_slice(name)[0], pattern)
    ]
    return sorted(directed, key=lambda pair: bool(split_slice(pair[0])[1]))


def split_slice(name: str) -> tuple[str, str]:
    """Split the name of a metric into metric and slice.

    Args:
      name: the name of a metric, such as `auc@country=DE`.

    Returns:
      The metric and the slice, such as `auc` and `country=DE`. The slice is "" for a metric over
      all rows.
    """
    metric, _, rows = name.partition(SLICE)
    return metric, rows


def stream_sums(
    sums: Mapping[str, tf.Tensor | Total], summarize: Callable[[Any], Mapping[str, tf.Tensor]]
) -> types.Metrics:
    """Add up sums over batches and replicas in float64, and compute metrics from the totals.

    Args:
      sums: {name: tensor or `Total`}. Tensors have a static shape and are summed over batches.
      summarize: a function of {name: float64 total, or the value of a `Total`} that returns
        {metric: scalar}.

    Returns:
      {metric: (value, update)}, with float32 values.
    """
    totals: dict[tuple[str, ...], Total] = {}
    plain: dict[tuple[int, ...], list[str]] = {}
    # Sort names, so that variables have the same order in every process.
    for name in sorted(sums):
        value = sums[name]
        if isinstance(value, tf.Tensor):
            plain.setdefault(tuple(value.shape), []).append(name)
        else:
            totals[(name,)] = value
    for names in plain.values():
        totals[tuple(names)] = _Sums([sums[name] for name in names])
    states = [
        [_create_variable(names[0], spec) for spec in total.state]
        for names, total in totals.items()
    ]
    updates = [total.add(state) for total, state in zip(totals.values(), states, strict=True)]
    update = tf.group(updates)

    def read(strategy, *states):
        values = {}
        for (names, total), state in zip(totals.items(), states, strict=True):
            by_variable = [strategy.experimental_local_results(variable) for variable in state]
            replicas = zip(*by_variable, strict=True)
            result = total.read([[v.read_value() for v in replica] for replica in replicas])
            values |= zip(names, result if isinstance(total, _Sums) else [result], strict=True)
        return {name: tf.cast(value, tf.float32) for name, value in summarize(values).items()}

    values = tf.distribute.get_replica_context().merge_call(read, args=states)
    return {metric: (value, update) for metric, value in values.items()}


def _create_variable(name: str, spec: tf.TensorSpec) -> tf.Variable:
    """Create a variable that is local to each replica."""
    return tf1.Variable(
        lambda: tf.zeros([size or 0 for size in spec.shape], spec.dtype),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
        name=name,
        use_resource=True,
        shape=spec.shape,
        validate_shape=spec.shape.is_fully_defined(),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )


class _Sums:
    """Float64 sums of equal shape in a single variable, which keeps graphs small."""

    def __init__(self, values: Sequence[tf.Tensor]):
        self._values = tf.stack([tf.cast(value, tf.float64) for value in values])
        self.state = [tf.TensorSpec(self._values.shape, tf.float64)]

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        return state[0].assign_add(self._values, read_value=False)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        totals = [total for (total,) in replicas]
        return tf.unstack(tf.add_n(totals) if len(totals) > 1 else totals[0])


class Spread(NamedTuple):
    """The mean and the spread of weighted values, float64 scalars.

    Attributes:
      mean: the weighted mean; NaN if all weights are 0.
      squares: the weighted sum of squared distances from the mean; 0 if all weights are 0.
    """

    mean: tf.Tensor
    squares: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Moments:
    """A `Total` of mean and variance, which is precise even if the mean is far from 0.

    The moments of batches are joined by the formulas of Chan, Golub and LeVeque, "Updating formulae
    and a pairwise algorithm for computing sample variances", 1979. Plain sums of squares would lose
    a standard deviation that is a millionth of the mean. The variance of equal values is exactly 0.

    Attributes:
      values: the values, in any shape; a value with a weight above 0 must be finite.
      weights: the weights, in the shape of `values`.
    """

    values: tf.Tensor
    weights: tf.Tensor

    @property
    def state(self) -> Sequence[tf.TensorSpec]:
        """The state: the weight, the mean, and the sum of squared distances from the mean."""
        return [tf.TensorSpec([3], tf.float64)]

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Join the moments of the batch with the moments of the earlier batches."""
        values, weights = tf.cast(self.values, tf.float64), tf.cast(self.weights, tf.float64)
        # Subtract a value of the batch first, so the variance of equal values is exactly 0.
        origin = tf.reduce_max(tf.where(weights > 0, values, values.dtype.min))
        distances = tf.where(weights > 0, values - origin, 0)
        weight = tf.reduce_sum(weights)
        mean = tf.math.divide_no_nan(tf.reduce_sum(weights * distances), weight)
        squares = tf.reduce_sum(weights * (distances - mean) ** 2)
        batch = tf.where(weight > 0, tf.stack([weight, origin + mean, squares]), 0)
        return state[0].assign(_join_moments(state[0].read_value(), batch), read_value=False)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Spread:
        """Return the mean (NaN without rows), and the sum of squared distances from the mean."""
        weight, mean, squares = tf.unstack(
            functools.reduce(_join_moments, [s for (s,) in replicas])
        )
        return Spread(tf.where(weight > 0, mean, float("nan")), squares)


def _join_moments(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Compute the moments of the union of two sets of values."""
    weight = first[0] + second[0]
    distance, share = second[1] - first[1], tf.math.divide_no_nan(second[0], weight)
    squares = first[2] + second[2] + distance**2 * first[0] * share
    return tf.stack([weight, first[1] + distance * share, squares])


def sum_weighted(values: tf.Tensor, weights: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    """Sum `values * weights` in float64.

    Args:
      values: the values to sum, of any shape.
      weights: the weights, in a shape that broadcasts to the shape of `values`.
      axis: the axis to sum over; None sums over all axes.

    Returns:
      The sums in float64, without the summed axis; a scalar by default.

    Raises:
      UserError: the values would be broadcast, such as values [B, 1] with weights [B].
    """
    ranks = values.shape.rank, weights.shape.rank
    if None not in ranks:
        sizes = zip(reversed(values.shape), reversed(weights.shape), strict=False)
        # If values and weights have equal ranks, an axis of unknown size in the weights may have
        # the size 1, which is allowed.
        allowed = (1, None) if ranks[0] == ranks[1] else (1,)
        fits = ranks[0] >= ranks[1] and all(size != 1 or other in allowed for size, other in sizes)
        rule = f"have a shape to which weights {tuple(weights.shape)} can be broadcast"
        checks.require(fits, "the values of a metric", rule, tuple(values.shape))
    return tf.reduce_sum(tf.cast(values, tf.float64) * tf.cast(weights, tf.float64), axis)


def ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """Divide two tensors; the result is NaN if the denominator is 0.

    Args:
      numerator: the dividend, of any shape.
      denominator: the divisor, of the same shape.

    Returns:
      The quotients, in the shape of the two tensors.
    """
    # `denominator / denominator` is NaN for 0 / 0, else 1. `tf.where` would take more ops.
    return numerator / denominator * (denominator / denominator)


def normalized_entropy(cross_entropy: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return a cross-entropy divided by the cross-entropy of always predicting the class shares.

    The metric is from He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook",
    ADKDD 2014. The normalized entropy is 0 for a perfect model, and 1 for a model that always
    predicts the class shares. If all rows have the same class, the result is NaN, as class shares
    are then a perfect prediction.

    Args:
      cross_entropy: the weighted sum of the rows' plain cross-entropies, in nats, [...].
      rows: the sum of the weights of each class's rows, [..., C]; [..., K, C] if a row has K
        labels, whose entropies are added.

    Returns:
      The normalized entropy, [...].
    """
    share = tf.math.divide_no_nan(rows, tf.reduce_sum(rows, -1, keepdims=True))
    # Sum over classes, and over the K labels of a row.
    axes = list(range(cross_entropy.shape.rank, rows.shape.rank))
    return ratio(cross_entropy, -tf.reduce_sum(tf.math.xlogy(rows, share), axes))


def mean_defined(values: tf.Tensor) -> tf.Tensor:
    """Average the values that are not NaN.

    Args:
      values: the values to average, of any shape.

    Returns:
      The average, a scalar; NaN if all of the values are NaN.
    """
    is_defined = ~tf.math.is_nan(values)
    finite_values = tf.where(is_defined, values, 0)
    return ratio(tf.reduce_sum(finite_values), tf.reduce_sum(tf.cast(is_defined, values.dtype)))


def in_top(logits: tf.Tensor, targets: tf.Tensor, k: int) -> tf.Tensor:
    """Compute the probability that the target is in the top k, if ties are broken at random.

    If all C logits are equal, the probability is k / C.

    Args:
      logits: the logits of the classes, [B, C].
      targets: the class ids of the labels, [B].
      k: the number of classes in the top k.

    Returns:
      The probabilities, float32 [B], in [0, 1].
    """
    target_logits = tf.gather(logits, targets, batch_dims=1)[:, tf.newaxis]
    above = tf.reduce_sum(tf.cast(logits > target_logits, tf.float32), axis=-1)
    level = tf.reduce_sum(tf.cast(tf.equal(logits, target_logits), tf.float32), axis=-1)
    return tf.clip_by_value((k - above) / tf.maximum(level, 1), 0, 1)


def count_in_bins(bins: tf.Tensor, weights: tf.Tensor, num_bins: int) -> tf.Tensor:
    """Sum the weights of the values in each bin, in float64.

    Args:
      bins: the index of each value's bin, int32 [B] or [B, C]. Indices below 0 count as the first
        bin, and indices beyond the end as the last.
      weights: the weights, in the shape of the values.
      num_bins: the number of bins.

    Returns:
      The sums, [num_bins], or [C, num_bins] for C columns.
    """
    bins = tf.clip_by_value(bins, 0, num_bins - 1)
    columns = 1 if bins.shape.rank == 1 else bins.shape[-1]
    if bins.shape.rank == 2:
        # Give each column a separate range of bins.
        bins += num_bins * tf.range(columns)
    counts = tf.math.unsorted_segment_sum(tf.cast(weights, tf.float64), bins, columns * num_bins)
    return tf.reshape(counts, [num_bins] if bins.shape.rank == 1 else [columns, num_bins])


def calibration_sums(probabilities: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Sum `weight * (probability - target)` over the rows in each bin of probabilities.

    Args:
      probabilities: [B], or [B, T] for T tasks, in [0, 1].
      targets: 0 or 1, in the shape of `probabilities`.
      weights: in the same shape.

    Returns:
      float64 [15], or [T, 15].
    """
    bins = tf.cast(probabilities * CALIBRATION_BINS, tf.int32)
    return count_in_bins(bins, weights * (probabilities - targets), CALIBRATION_BINS)


def calibration_error(excess: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return the expected calibration error of the positive class.

    The error is the weighted mean over 15 equal bins of |mean probability - share of positives|.
    The expected calibration error is described in Guo, Pleiss, Sun and Weinberger, "On Calibration
    of Modern Neural Networks", 2017, arXiv:1706.04599.

    Args:
      excess: the sums that `calibration_sums` returns, added over all batches, [..., 15].
      weight: the sum of the weights of all rows, [...].

    Returns:
      The errors, [...], in [0, 1]; NaN where the weight is 0.
    """
    return ratio(tf.reduce_sum(tf.abs(excess), -1), weight)
