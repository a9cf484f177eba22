"""Ranking quality of scores within groups, over all rows of a split.

sums = {"rows": groups.GroupedRows(keys, scores, labels, weights)}
metrics.stream_sums(sums, lambda sums: {"gauc": group_metrics.compute_gauc(sums["rows"])})

Metrics rank whole groups, even if the rows of a group come in several batches or replicas. If
several rows have equal scores, metrics are means over all possible orders of these rows.
"""

from __future__ import annotations

import math

from mtl.deferred import tf
from mtl.heads import groups, metrics

GAINS = ("exponential", "linear")
"""The kinds of gain of a label y: 2^y - 1, or y."""

MAX_EXPONENT = 31.0
"""The greatest label for exponential gains."""


def gains(labels: tf.Tensor, kind: str) -> tf.Tensor:
    """Compute the gain of each label.

    Args:
      labels: numbers of at least 0, in any shape.
      kind: a name in `GAINS`.

    Returns:
      The gains, in the shape of the labels.
    """
    return tf.exp(labels * math.log(2)) - 1 if kind == "exponential" else labels


def discounts(ranks: tf.Tensor) -> tf.Tensor:
    """Compute `1 / log2(1 + rank)`.

    Args:
      ranks: numbers of at least 1, in any shape; the smooth ranks of ApproxNDCG may be fractions.

    Returns:
      The discounts, in the shape of the ranks.
    """
    return math.log(2) / tf.math.log1p(ranks)


def compute_gauc(rows: groups.Ranked) -> tf.Tensor:
    """Compute GAUC: the mean AUC of groups, each weighted by the sum of its rows' weights.

    GAUC is from Zhu et al., "Optimized Cost per Click in Taobao Display Advertising", KDD 2017,
    arXiv:1703.02091. If rows have no weights, the weight of a group is its number of rows. A label
    above 0 is positive. Groups with only positive or only negative labels have no AUC and are
    ignored. A pair of rows with equal scores counts as half a pair in the right order.

    Args:
      rows: the rows of the split, sorted by group, and within a group by score.

    Returns:
      GAUC, a float64 scalar; NaN if every group is ignored.
    """
    blocks = _Blocks(rows)
    positives = tf.where(rows.labels > 0, rows.weights, 0)
    negatives = rows.weights - positives
    all_positives, all_negatives = rows.sum(positives), rows.sum(negatives)
    # Rows with equal scores in a group form a block. The negatives of a group are divided into
    # those above, in, and below the block of a row.
    until = tf.cumsum(blocks.sum(negatives))
    before = tf.cumsum(all_negatives, exclusive=True)
    block_negatives = tf.gather(blocks.sum(negatives), blocks.ids)
    above = tf.gather(until, blocks.ids) - tf.gather(before, rows.groups)
    below = tf.gather(all_negatives, rows.groups) - above
    ordered_pairs = rows.sum(positives * (below + block_negatives / 2))
    auc = tf.math.divide_no_nan(ordered_pairs, all_positives * all_negatives)
    counts = (all_positives > 0) & (all_negatives > 0)
    return _average_groups(auc, tf.where(counts, all_positives + all_negatives, 0))


def compute_ranking(
    rows: groups.Ranked, gain: str, cutoffs: tuple[int, ...]
) -> dict[str, tf.Tensor]:
    """Compute the ranking metrics of a split.

    A row is relevant if its label is above 0. All metrics except `gauc` are means over the groups
    with a relevant row, and the weight of a group is the mean weight of its rows; `compute_gauc`
    describes `gauc`. DCG is the sum of `gain / log2(1 + rank)`, and NDCG is DCG divided by the DCG
    of the best order: Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques",
    2002. `recall_at_<k>` is the share of the relevant rows that are among the first k.
    `precision_at_<k>` is the number of relevant rows among the first k, divided by k even if a
    group has fewer rows. MRR is the mean of 1 / the rank of the first relevant row.

    Args:
      rows: the rows of the split, sorted by group, and within a group by score.
      gain: a name in `GAINS`.
      cutoffs: the ranks k, at least 1, of metrics such as `ndcg_at_<k>`.

    Returns:
      {metric: scalar}: `ndcg`, `mrr`, `gauc`, and for each cutoff `ndcg_at_<k>`, `recall_at_<k>`
      and `precision_at_<k>`. A metric is NaN if no group counts for it.
    """
    blocks = _Blocks(rows)
    row_gains = gains(rows.labels, gain)
    # The gains in the best order, which is by descending label.
    ideal = tf.gather(row_gains, rows.order_by(tf.cast(rows.labels, tf.float32)))
    relevant = tf.cast(rows.labels > 0, tf.float64)
    num_relevant = rows.sum(relevant)
    weights = tf.where(num_relevant > 0, group_weights(rows), 0)

    def ndcg(rank_discounts: tf.Tensor) -> tf.Tensor:
        """Return the mean NDCG of groups; the discounts [N] are in the order of the scores."""
        dcg = rows.sum(row_gains * blocks.mean(rank_discounts))
        share = tf.math.divide_no_nan(dcg, rows.sum(ideal * rank_discounts))
        return _average_groups(share, weights)

    # Rows with equal scores form a block, and get the mean discount of the ranks in the block.
    by_rank = discounts(tf.cast(blocks.places + 1, tf.float64))
    summary = {"ndcg": ndcg(by_rank)}
    for k in cutoffs:
        is_first = tf.cast(blocks.places < k, tf.float64)
        hits = rows.sum(relevant * blocks.mean(is_first))
        recall = tf.math.divide_no_nan(hits, num_relevant)
        summary |= {
            f"ndcg_at_{k}": ndcg(by_rank * is_first),
            f"recall_at_{k}": _average_groups(recall, weights),
            f"precision_at_{k}": _average_groups(hits / k, weights),
        }
    summary["mrr"] = _average_groups(_reciprocal_ranks(rows, blocks, relevant), weights)
    return {**summary, "gauc": compute_gauc(rows)}


def group_weights(rows: groups.Ranked) -> tf.Tensor:
    """Compute the mean weight of the rows of each group.

    Args:
      rows: the rows of the split, sorted by group.

    Returns:
      The mean weights, float64 [G].
    """
    return tf.math.divide_no_nan(rows.sum(rows.weights), rows.sum(tf.ones_like(rows.weights)))


class _Blocks:
    """Blocks of rows of the same group with equal scores.

    Attributes:
      ids: [N] int32, the index of the block that contains the row, ascending.
      places: [N] int32, the position of the row in its group, from 0.
      starts: [N] int32, the position in the group at which the block of the row starts.
      sizes: [N] float64, the number of rows in the block that contains the row.
    """

    def __init__(self, rows: groups.Ranked):
        new_group = _find_changes(rows.groups)
        self.ids = tf.cumsum(tf.cast(new_group | _find_changes(rows.scores), tf.int32)) - 1
        self._num = tf.maximum(tf.reduce_max(self.ids) + 1, 0)
        index = tf.range(tf.size(self.ids))
        firsts = tf.math.unsorted_segment_min(index, rows.groups, rows.num_groups)
        self.places = index - tf.gather(firsts, rows.groups)
        firsts = tf.math.unsorted_segment_min(self.places, self.ids, self._num)
        self.starts = tf.gather(firsts, self.ids)
        self._counts = self.sum(tf.ones_like(rows.scores))
        self.sizes = tf.gather(self._counts, self.ids)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Sum the values of each block, [N] -> [number of blocks]."""
        return tf.math.unsorted_segment_sum(values, self.ids, self._num)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Return for each row the mean over its block (rows with equal scores), [N] -> [N]."""
        return tf.gather(self.sum(values) / self._counts, self.ids)


def _find_changes(values: tf.Tensor) -> tf.Tensor:
    """Return True for the first value, and for each value unequal to the previous value, [N]."""
    differ = tf.not_equal(values[1:], values[:-1])
    return tf.concat([tf.ones_like(values[:1], tf.bool), differ], 0)


def _reciprocal_ranks(rows: groups.Ranked, blocks: _Blocks, relevant: tf.Tensor) -> tf.Tensor:
    """Return the expected 1 / rank of the first relevant row of each group, [G].

    The rows of a block have equal scores, so their order is taken as random. In a block of n rows,
    of which r are relevant, exactly x rows of the block precede the first relevant row with a
    probability of C(n - x - 1, r - 1) / C(n, r).
    """
    hits = tf.gather(blocks.sum(relevant), blocks.ids)
    # In each group, select the first block (rows with equal scores) that has a relevant row.
    sums = tf.cumsum(blocks.sum(relevant))
    before = tf.cumsum(rows.sum(relevant), exclusive=True)
    until = tf.gather(sums, blocks.ids) - tf.gather(before, rows.groups)
    is_first = (hits > 0) & tf.equal(until, hits)
    ahead = tf.cast(blocks.places - blocks.starts, tf.float64)
    rows_after = blocks.sizes - ahead - 1
    can_be = is_first & (rows_after >= hits - 1)
    rows_after, hits, sizes = (
        tf.where(can_be, value, 1) for value in (rows_after, hits, blocks.sizes)
    )
    chance = tf.exp(_log_choose(rows_after, hits - 1) - _log_choose(sizes, hits))
    ranks = tf.cast(blocks.places + 1, tf.float64)
    # The expectation over all possible ranks of the first relevant row.
    return rows.sum(tf.where(can_be, chance / ranks, 0))


def _log_choose(n: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.math.lgamma(n + 1) - tf.math.lgamma(k + 1) - tf.math.lgamma(n - k + 1)


def _average_groups(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the weighted mean of values of the groups; NaN if all weights are 0."""
    return metrics.ratio(tf.reduce_sum(values * weights), tf.reduce_sum(weights))
