"""Streaming metrics: what is summed over a split, and what is read off the sums.

sums = {"weight": tf.reduce_sum(weights), "loss": tf.reduce_sum(weights * losses)}
metrics.stream(sums, lambda sums: {"average_loss": metrics.ratio(sums["loss"], sums["weight"])})
metrics.auc(positives, negatives)        # from two score histograms: metrics.histogram(...)

A metric that the split leaves undefined (a task without labelled rows, AUC with one class) is NaN:
a 0 would pass for a perfect loss or a useless model.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import types

tf1 = tf.compat.v1

SCORE_BINS = 2**15
CALIBRATION_BINS = 15
# Scores are binned by asinh, which is even near 0 and relative far from it, up to |logit| = 11013.
_MAX_ASINH = 10.0


def declared(head: Any, names: Sequence[str]) -> list[tuple[str, bool]]:
    """Those of a head's metrics whose order it declares, with whether higher is better.

    They come as in `head.directions`, the one that tells most first.
    """
    directions = getattr(head, "directions", {"average_loss": False})
    return [
        (name, higher)
        for pattern, higher in directions.items()
        for name in names
        if fnmatch.fnmatchcase(name, pattern)
    ]


def stream(
    sums: types.Tensors, summarize: Callable[[types.Tensors], Mapping[str, tf.Tensor]]
) -> types.Metrics:
    """Adds up `sums` over batches and replicas in float64; the metrics are `summarize(totals)`.

    Args:
      sums: {name: tensor of static shape} that add up over the rows of a split.
      summarize: {name: float64 totals} -> {metric: scalar}.
    """
    names = sorted(sums)
    totals = [_accumulator(name, sums[name].shape) for name in names]
    updates = [
        total.assign_add(tf.cast(sums[name], tf.float64), read_value=False)
        for name, total in zip(names, totals, strict=True)
    ]
    update = tf.group(updates)

    def read(strategy, *variables):
        values = map(strategy.extended.read_var, variables)
        return {
            metric: tf.cast(value, tf.float32)
            for metric, value in summarize(dict(zip(names, values, strict=True))).items()
        }

    values = tf.distribute.get_replica_context().merge_call(read, args=totals)
    return {metric: (value, update) for metric, value in values.items()}


def _accumulator(name: str, shape: tf.TensorShape) -> tf.Variable:
    """A local variable that starts at zero and is summed over the replicas where it is read."""
    return tf1.Variable(
        lambda: tf.zeros(shape, tf.float64),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
        name=name,
        use_resource=True,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def total(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """sum(values * weights) in float64."""
    return tf.reduce_sum(tf.cast(values, tf.float64) * tf.cast(weights, tf.float64))


def ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """The quotient; NaN where the denominator is 0."""
    return tf.where(
        tf.equal(denominator, 0),
        tf.constant(float("nan"), denominator.dtype),
        tf.math.divide_no_nan(numerator, denominator),
    )


def mean_defined(values: tf.Tensor) -> tf.Tensor:
    """The mean of the values that are not NaN."""
    defined = ~tf.math.is_nan(values)
    kept = tf.where(defined, values, 0)
    return ratio(tf.reduce_sum(kept), tf.reduce_sum(tf.cast(defined, values.dtype)))


def histogram(logits: tf.Tensor, weights: tf.Tensor, num_bins: int = SCORE_BINS) -> tf.Tensor:
    """[B] -> [num_bins], or [B, C] -> [C, num_bins]: the weight in every bin of scores."""
    position = (tf.asinh(logits) / _MAX_ASINH + 1) / 2 * num_bins
    return binned(tf.cast(position, tf.int32), weights, num_bins)


def binned(bins: tf.Tensor, weights: tf.Tensor, num_bins: int) -> tf.Tensor:
    """Sums [B] weights by bin into [num_bins], or [B, C] into [C, num_bins], in float64.

    Bins below 0 or beyond the end count as the first or the last.
    """
    bins = tf.clip_by_value(bins, 0, num_bins - 1)
    columns = 1 if bins.shape.rank == 1 else bins.shape[-1]
    if bins.shape.rank == 2:
        bins += num_bins * tf.range(columns)
    counts = tf.math.unsorted_segment_sum(tf.cast(weights, tf.float64), bins, columns * num_bins)
    return tf.reshape(counts, [num_bins] if bins.shape.rank == 1 else [columns, num_bins])


def auc(positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
    """The share of (positive, negative) pairs in the right order; pairs within a bin count half.

    Args:
      positives: [..., N] weight of the positives by score, ascending.
      negatives: [..., N] the same of the negatives.

    Returns:
      [...]; NaN where a class is absent.
    """
    below = tf.cumsum(negatives, axis=-1, exclusive=True)
    ordered = tf.reduce_sum(positives * (below + negatives / 2), axis=-1)
    pairs = tf.reduce_sum(positives, axis=-1) * tf.reduce_sum(negatives, axis=-1)
    return ratio(ordered, pairs)


def average_precision(positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
    """The area under the precision-recall curve as a sum of recall steps times precision.

    Args:
      positives: [..., N] weight of the positives by score, ascending.
      negatives: [..., N] the same of the negatives.

    Returns:
      [...]; NaN where there are no positives.
    """
    hits = tf.cumsum(positives, axis=-1, reverse=True)
    flagged = hits + tf.cumsum(negatives, axis=-1, reverse=True)
    precision = tf.math.divide_no_nan(hits, flagged)
    return ratio(tf.reduce_sum(positives * precision, axis=-1), tf.reduce_sum(positives, axis=-1))


def calibration_sums(probabilities: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """[B] x 3 -> [15]: the weight by which probabilities exceed targets, by probability."""
    bins = tf.cast(probabilities * CALIBRATION_BINS, tf.int32)
    return binned(bins, weights * (probabilities - targets), CALIBRATION_BINS)


def calibration_error(excess: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Expected calibration error: the mean over 15 equal bins of |mean probability - share|.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", 2017,
    arXiv:1706.04599; here of the positive class's probability.
    """
    return ratio(tf.reduce_sum(tf.abs(excess)), weight)
