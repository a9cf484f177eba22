"""AUC and PR-AUC of scores over all rows of a split, with bounds of their errors.

sums = {"scores": ranking.stream_scores(logits, weights * targets, weights * (1 - targets))}
metrics.stream_sums(sums, lambda sums: {"auc": ranking.compute_auc(sums["scores"])[0]})

AUC and PR-AUC are exact for up to `MAX_CELLS` different scores and `MAX_EXACT_CLASSES` classes.
With more than `MAX_CELLS` scores or `MAX_EXACT_CLASSES` classes, similar scores are merged. The
metrics `auc_error_bound` and `pr_auc_error_bound` are upper bounds of the errors of the two areas,
and are 0 if the areas are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mtl.deferred import tf
from mtl.heads import buffers, metrics

MAX_CELLS = 2**20
"""AUC and PR-AUC are exact up to this number of different scores, each of up to 48 bytes."""

MAX_EXACT_CLASSES = 128
"""AUC and PR-AUC, which need a sort of all scores, are exact up to this number of classes."""

BOUND = "_error_bound"
"""The end of the names of metrics that bound the error of another metric."""

# The number of histogram bins for all classes of a head together.
_HISTOGRAM_BINS = 2**20
# Bins are equally wide in asinh(score): linear near 0 and logarithmic beyond, up to 11013.
_MAX_ASINH = 10.0
# A score is a float32 of 32 bits, which `order_bits` maps to an integer of the same order.
_SCORE_BITS = 32


class Cells(NamedTuple):
    """The weights of positives and negatives for each score, or for each range of scores.

    A cell is a single score of a class, or a range of similar scores of a class.

    Attributes:
      classes: [N] ints, the class of each cell, ascending.
      positives: [N] the weight of the positive rows in each cell, by ascending score within each
        class.
      negatives: [N] the weight of the negative rows in each cell, in the same order.
      num_classes: C, the number of classes.
      is_merged: a bool scalar, True if a cell may be a range of several scores.
    """

    classes: tf.Tensor
    positives: tf.Tensor
    negatives: tf.Tensor
    num_classes: int
    is_merged: tf.Tensor


def stream_scores(
    logits: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor, are_tasks: bool = False
) -> metrics.Total:
    """Return a `metrics.Total` of scores, from which areas under curves are computed.

    Args:
      logits: the scores, float32 [B] or [B, C].
      positives: the weights of the positives, and 0 for negatives, in the shape of `logits`.
      negatives: the weights of the negatives, and 0 for positives, in the shape of `logits`.
      are_tasks: True if the C columns are tasks; `MAX_CELLS` then limits the number of different
        scores of each task, not of all columns together.

    Returns:
      A `metrics.Total` whose value is a `Cells`.
    """
    if logits.shape.rank == 2 and are_tasks:
        return _Different(logits, positives, negatives, MAX_CELLS * logits.shape[-1])
    if logits.shape.rank == 2 and logits.shape[-1] > MAX_EXACT_CLASSES:
        return _Histogram(logits, positives, negatives)
    return _Different(logits, positives, negatives)


class _Different:
    """A total that collects the different scores and their weights, in a growing buffer.

    A full buffer merges equal scores. A key of the buffer is an integer with the class in the high
    bits and the score in the low bits, so keys sort by class and score. If there are more different
    keys than the limit, the last bits of all scores are dropped, so that scores of early and late
    batches are rounded alike.
    """

    @property
    def state(self) -> Sequence[tf.TensorSpec]:
        """The specifications of the variables of the buffer."""
        return (
            tf.TensorSpec([None], tf.int64),  # Keys.
            tf.TensorSpec([None, 2], tf.float64),  # Weights of the positives, of the negatives.
            tf.TensorSpec([], tf.int64),  # The number of keys.
            tf.TensorSpec([], tf.int64),  # The number of dropped bits of scores.
        )

    def __init__(
        self,
        logits: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        max_cells: int | None = None,
    ):
        self._max_keys = max_cells or MAX_CELLS
        self._num_classes = 1 if logits.shape.rank == 1 else logits.shape[-1]
        classes = 0 if logits.shape.rank == 1 else tf.range(self._num_classes, dtype=tf.int64)
        self._keys = tf.reshape(order_bits(logits) + classes * 2**_SCORE_BITS, [-1])
        weights = [tf.reshape(weight, [-1]) for weight in (positives, negatives)]
        self._weights = tf.cast(tf.stack(weights, axis=-1), tf.float64)

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Append the scores of a batch. If the buffer is full, merge equal scores first."""
        keys, weights, size, dropped_bits = (variable.handle for variable in state)
        start = buffers.read(size, tf.int64)
        end = start + tf.size(self._keys, tf.int64)

        def append() -> tf.Tensor:
            with tf.control_dependencies(
                [
                    buffers.put(keys, start, end, self._keys),
                    buffers.put(weights, start, end, self._weights),
                ]
            ):
                return tf.identity(end)

        def compact() -> tf.Tensor:
            all_keys = tf.concat([buffers.read(keys, tf.int64)[:start], self._keys], 0)
            all_weights = tf.concat([buffers.read(weights, tf.float64)[:start], self._weights], 0)
            distinct_keys, total, bits = _compact_keys(
                all_keys, all_weights, buffers.read(dropped_bits, tf.int64), self._max_keys
            )
            count = tf.size(distinct_keys)
            # Double the buffer, so that sorting takes constant time per row on average.
            spare = [[0, tf.maximum(count, buffers.LEAST_CAPACITY)]]
            with tf.control_dependencies(
                [
                    buffers.assign(keys, tf.pad(distinct_keys, spare)),
                    buffers.assign(weights, tf.pad(total, [*spare, [0, 0]])),
                    buffers.assign(dropped_bits, bits),
                ]
            ):
                return tf.cast(count, tf.int64)

        return buffers.assign(size, tf.cond(end <= buffers.capacity(keys), append, compact))

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Cells:
        """Return the scores and weights of all replicas as cells."""
        keys = tf.concat([keys[:size] for keys, _, size, _ in replicas], 0)
        weights = tf.concat([weights[:size] for _, weights, size, _ in replicas], 0)
        dropped_bits = tf.reduce_max(tf.stack([dropped_bits for *_, dropped_bits in replicas]))
        keys, weights, dropped_bits = _compact_keys(keys, weights, dropped_bits, self._max_keys)
        classes = tf.bitwise.right_shift(keys, tf.constant(_SCORE_BITS, tf.int64))
        return Cells(classes, weights[:, 0], weights[:, 1], self._num_classes, dropped_bits > 0)


def order_bits(logits: tf.Tensor) -> tf.Tensor:
    """Map floats to integers of the same order.

    Args:
      logits: the scores to map, float32 of any shape.

    Returns:
      int64 in [0, 2^32), in the same shape; -0 and 0 are equal.
    """
    bits = tf.cast(tf.bitcast(logits, tf.int32), tf.int64)
    half = 2 ** (_SCORE_BITS - 1)
    # A negative float has the sign bit set, and a larger magnitude has larger other bits.
    return tf.where(bits >= 0, half + bits, -bits)


def _compact_keys(
    keys: tf.Tensor, weights: tf.Tensor, dropped_bits: tf.Tensor, max_keys: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Merge equal scores, and round all scores if more than `max_keys` are different."""
    keys = _drop_bits(keys, dropped_bits)
    order = tf.argsort(keys)
    keys, weights = tf.gather(keys, order), tf.gather(weights, order)
    before = tf.concat([keys[:1], keys[:-1]], 0)
    # The first bit in which two neighbours differ is the exponent of their XOR as a float.
    differing = tf.bitwise.bitwise_xor(keys, before)
    exponent = tf.bitcast(tf.cast(differing, tf.float64), tf.int64) // 2**52 - 1022
    places = tf.cast(tf.clip_by_value(exponent, 0, _SCORE_BITS + 1), tf.int32)
    by_place = tf.math.bincount(places, minlength=_SCORE_BITS + 2)
    # For each number of low bits that are dropped from all keys, the number of different keys.
    remaining_keys = 1 + tf.cumsum(by_place, reverse=True, exclusive=True)
    too_many = tf.reduce_sum(tf.cast(remaining_keys[:_SCORE_BITS] > max_keys, tf.int64))
    dropped_bits = tf.maximum(dropped_bits, too_many)
    keys, before = _drop_bits(keys, dropped_bits), _drop_bits(before, dropped_bits)
    # In sorted keys, each key unequal to the previous key begins a new segment.
    ids = tf.cumsum(tf.cast(tf.not_equal(keys, before), tf.int32))
    return tf.math.segment_max(keys, ids), tf.math.segment_sum(weights, ids), dropped_bits


def _drop_bits(keys: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    ones = tf.constant(-1, tf.int64)
    return tf.bitwise.bitwise_and(keys, tf.bitwise.left_shift(ones, bits))


class _Histogram:
    """A total of scores of many classes, in a histogram of 16 MB."""

    def __init__(self, logits: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor):
        self._shape = [logits.shape[-1], _HISTOGRAM_BINS // logits.shape[-1]]
        self.state = [tf.TensorSpec([2, *self._shape], tf.float64)]
        num_bins = self._shape[1]
        # Bins cover asinh from -10 to 10; scores beyond are in the first or the last bin.
        position = (tf.asinh(logits) / _MAX_ASINH + 1) / 2 * num_bins
        bins = tf.cast(tf.clip_by_value(position, 0, num_bins - 1), tf.int32)
        counts = [
            metrics.count_in_bins(bins, weights, num_bins) for weights in (positives, negatives)
        ]
        self._binned = tf.stack(counts)

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Add the weights of the batch to the histogram."""
        return state[0].assign_add(self._binned, read_value=False)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Cells:
        """Return the weights of positives and negatives in each bin of the histogram."""
        num_classes, num_bins = self._shape
        positives, negatives = tf.unstack(tf.add_n([counts for (counts,) in replicas]))
        classes = tf.repeat(tf.range(num_classes), num_bins)
        positives, negatives = (tf.reshape(weights, [-1]) for weights in (positives, negatives))
        return Cells(classes, positives, negatives, num_classes, tf.constant(True))


def integrate_curves(cells: Cells) -> dict[str, tf.Tensor]:
    """Compute `auc` and `pr_auc` with their error bounds, as means over classes.

    Args:
      cells: the weights of positive and negative rows with each score, for C classes.

    Returns:
      {metric: scalar}: `auc`, `auc_error_bound`, `pr_auc` and `pr_auc_error_bound`. Each value is
      the mean over the classes with a defined area; NaN if no class has a defined area.
    """
    return {name: metrics.mean_defined(value) for name, value in areas_by_class(cells).items()}


def areas_by_class(cells: Cells) -> dict[str, tf.Tensor]:
    """Compute `auc` and `pr_auc` with their error bounds for each class.

    Args:
      cells: the weights of positive and negative rows with each score, for C classes.

    Returns:
      {metric: [C]}: `auc`, `auc_error_bound`, `pr_auc` and `pr_auc_error_bound`. All four metrics
      are NaN for a class without positives; `auc` and `auc_error_bound` are also NaN for a class
      without negatives.
    """
    areas = {"auc": compute_auc(cells), "pr_auc": average_precision(cells)}
    return {
        f"{name}{suffix}": value
        for name, values in areas.items()
        for suffix, value in zip(("", BOUND), values, strict=True)
    }


def compute_auc(cells: Cells) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the AUC: the share of (positive, negative) pairs in the right order.

    Args:
      cells: the weights of positive and negative rows with each score, for C classes.

    Returns:
      The areas [C], NaN for a class without positives or negatives, and upper bounds of their
      errors [C]. If scores were merged, a bound is half of the share of pairs that are in the same
      cell (range of scores); else the bound is 0. A pair with equal scores counts as half a pair in
      the right order.
    """
    positives, negatives = cells.positives, cells.negatives
    all_negatives = _by_class(cells, negatives)
    earlier = tf.gather(tf.cumsum(all_negatives, exclusive=True), cells.classes)
    below = tf.cumsum(negatives, exclusive=True) - earlier
    pairs = _by_class(cells, positives) * all_negatives
    ordered_pairs = _by_class(cells, positives * (below + negatives / 2))
    # Each pair within a cell (a range of scores) counts as half, so the error is at most half of
    # the pairs within cells.
    tied_pairs = _by_class(cells, positives * negatives)
    return metrics.ratio(ordered_pairs, pairs), _bound_error(
        cells, metrics.ratio(tied_pairs / 2, pairs)
    )


def share_ordered(cells: Cells) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the share of all pairs of rows of the same class that are in the right order.

    Args:
      cells: the weights of positive and negative rows with each score.

    Returns:
      The share of pairs in the right order and the bound of its error, scalars; NaN without pairs.
    """
    (areas, bounds) = compute_auc(cells)
    pairs = _by_class(cells, cells.positives) * _by_class(cells, cells.negatives)
    shares = [
        metrics.ratio(tf.reduce_sum(tf.where(pairs > 0, values * pairs, 0)), tf.reduce_sum(pairs))
        for values in (areas, bounds)
    ]
    return shares[0], shares[1]


def average_precision(cells: Cells) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the area under the precision-recall curve, as average precision.

    Args:
      cells: the weights of positive and negative rows with each score, for C classes.

    Returns:
      The areas [C], NaN for a class without positives, and the bounds of their errors [C]. The
      bounds hold for every order of the scores within a merged cell, and are 0 for exact areas.
    """
    hits, flagged_wrongly = _sum_above(cells, cells.positives), _sum_above(cells, cells.negatives)
    cell_hits = cells.positives
    before, other_mistakes = hits - cell_hits, flagged_wrongly - cells.negatives
    precision = tf.math.divide_no_nan(hits, hits + flagged_wrongly)
    best = tf.math.divide_no_nan(hits, hits + other_mistakes)
    worst = tf.math.divide_no_nan(before, before + flagged_wrongly)
    positives = _by_class(cells, cell_hits)
    area = metrics.ratio(_by_class(cells, cell_hits * precision), positives)
    too_low = metrics.ratio(_by_class(cells, cell_hits * (best - precision)), positives)
    too_high = metrics.ratio(_by_class(cells, cell_hits * (precision - worst)), positives)
    return area, _bound_error(cells, tf.maximum(too_low, too_high))


def _by_class(cells: Cells, values: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(values, cells.classes, cells.num_classes)


def _sum_above(cells: Cells, weights: tf.Tensor) -> tf.Tensor:
    """For each cell (range of scores), sum its class's weights at or above its score, [N]."""
    later = tf.cumsum(_by_class(cells, weights), reverse=True, exclusive=True)
    return tf.cumsum(weights, reverse=True) - tf.gather(later, cells.classes)


def _bound_error(cells: Cells, bound: tf.Tensor) -> tf.Tensor:
    return tf.where(cells.is_merged | tf.math.is_nan(bound), bound, 0)
