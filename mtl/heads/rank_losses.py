"""Ranking losses within groups, as pure functions of the rows of whole groups.

lists = rank_losses.of_batch(keys, scores, labels, weights)
lists = rank_losses.of_split(ranked)                     # for a split, without gradients
losses = rank_losses.ranknet(lists)                      # [G], one for each group
rank_losses.weigh_groups(lists)                          # [G], the weights of the groups
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mtl.deferred import tf
from mtl.heads import group_metrics, groups

Pairs = Callable[[Callable[..., "tf.Tensor"], Sequence["tf.Tensor"]], "tf.Tensor"]
"""A function (f, fields [N]) -> [N] that sums `f(row, other)` over other rows of the group."""


class Lists(NamedTuple):
    """The rows of whole groups, with functions that reduce the rows of each group to a value.

    Attributes:
      scores, labels, weights: [N] floats of the same type. Rows of weight 0 are ignored, but must
        have finite scores and labels.
      groups: [N] int32, the index of each row's group, from 0 to G - 1.
      num_groups: G, the number of groups, an int32 scalar.
      sum_pairs: a function that sums values over the pairs of rows of each group; see `Pairs`.
      index: [N] int32, a different number for each row, which breaks ties between equal labels.
    """

    scores: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    groups: tf.Tensor
    num_groups: tf.Tensor
    sum_pairs: Pairs
    index: tf.Tensor  # type: ignore[assignment]  # Hides tuple.index, which is not used.

    @property
    def counts(self) -> tf.Tensor:
        """True for each row with a weight above 0, [N]."""
        return self.weights > 0

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Sum the values of each group, without rows of weight 0.

        Args:
          values: a value of each row, [N].

        Returns:
          The sums, [G]; 0 for a group in which all rows weigh 0.
        """
        row_values = tf.where(self.counts, values, tf.zeros_like(values))
        return tf.math.unsorted_segment_sum(row_values, self.groups, self.num_groups)

    def max(self, values: tf.Tensor) -> tf.Tensor:
        """Find the greatest value of each group, without rows of weight 0.

        Args:
          values: a value of each row, floats [N].

        Returns:
          The greatest values, [G]; the lowest float for a group in which all rows weigh 0.
        """
        row_values = tf.where(self.counts, values, values.dtype.min)
        return tf.math.unsorted_segment_max(row_values, self.groups, self.num_groups)

    def spread(self, values: tf.Tensor) -> tf.Tensor:
        """Give each row the value of its group, [G] -> [N]."""
        return tf.gather(values, self.groups)


def of_batch(keys: tf.Tensor, scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> Lists:
    """Group the rows of a batch. Sums over pairs of rows take memory for [B, B] numbers.

    Args:
      keys: the group of each row, [B].
      scores: the scores of the rows, [B].
      labels: the labels of the rows, [B].
      weights: [B]; rows with a weight of 0 are ignored.

    Returns:
      The rows and their groups.
    """
    names, ids = tf.unique(keys)
    counts = weights > 0
    index = tf.range(tf.size(ids))
    pairs = tf.equal(ids[:, tf.newaxis], ids) & counts[:, tf.newaxis] & counts
    # A row does not form a pair with itself.
    pairs &= tf.not_equal(index[:, tf.newaxis], index)

    def sum_pairs(function: Callable[..., tf.Tensor], fields: Sequence[tf.Tensor]) -> tf.Tensor:
        row, other = ([tf.expand_dims(field, axis) for field in fields] for axis in (1, 0))
        pair_values = function(row, other)
        return tf.reduce_sum(tf.where(pairs, pair_values, tf.zeros_like(pair_values)), axis=1)

    return Lists(scores, labels, weights, ids, tf.size(names), sum_pairs, index)


def of_split(rows: groups.Ranked) -> Lists:
    """Group the rows of a split, with memory for N rows, not for all pairs of rows.

    Each pass over the rows handles all pairs of rows with the same distance in the sorted order. So
    the number of passes over the rows is about the number of rows in the largest group.

    Args:
      rows: N rows, sorted by group.

    Returns:
      The rows and their groups, in the order of `rows`; scores, labels and weights are float64.
    """
    sizes = rows.sum(tf.ones_like(rows.groups))
    index = tf.range(tf.size(rows.groups))

    def sum_pairs(function: Callable[..., tf.Tensor], fields: Sequence[tf.Tensor]) -> tf.Tensor:
        def add(distance: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            first, second = ([f[:-distance] for f in fields], [f[distance:] for f in fields])
            are_pairs = tf.equal(rows.groups[:-distance], rows.groups[distance:])
            for row, other, before, after in (
                (first, second, 0, distance),
                (second, first, distance, 0),
            ):
                pair_values = function(row, other)
                total += tf.pad(
                    tf.where(are_pairs, pair_values, tf.zeros_like(pair_values)), [[before, after]]
                )
            return distance + 1, total

        # Without groups, `reduce_max` returns the lowest int32.
        largest = tf.maximum(tf.reduce_max(sizes), 0)
        shape = [tf.TensorShape([]), rows.scores.shape]
        start = [tf.constant(1), tf.zeros_like(rows.scores)]
        _, total = tf.while_loop(
            lambda distance, _: distance < largest,
            add,
            start,
            shape_invariants=shape,
            # Run one pass at a time, because each pass takes memory for all rows.
            parallel_iterations=1,
        )
        return total

    return Lists(
        rows.scores, rows.labels, rows.weights, rows.groups, rows.num_groups, sum_pairs, index
    )


def weigh_groups(lists: Lists) -> tf.Tensor:
    """Compute the mean weight of the rows of each group, without rows of weight 0.

    Args:
      lists: the rows of all G groups.

    Returns:
      The weights of the groups, [G]; 0 for a group in which all labels are equal, as every order of
      its rows is equally good.
    """
    differ = lists.max(lists.labels) > -lists.max(-lists.labels)
    mean = tf.math.divide_no_nan(lists.sum(lists.weights), lists.sum(tf.ones_like(lists.weights)))
    return tf.where(differ, mean, tf.zeros_like(mean))


def ranknet(lists: Lists) -> tf.Tensor:
    """Compute the RankNet loss: the mean of `log(1 + exp(s_j - s_i))` over pairs with y_i > y_j.

    The weight of a pair of rows i and j is w_i w_j. RankNet is from Burges et al., "Learning to
    Rank using Gradient Descent", ICML 2005. As in the paper, the row with the greater label of a
    pair ranks first with a target probability of 1.

    Args:
      lists: the rows of all G groups.

    Returns:
      The loss of each group, [G]; 0 for a group without pairs.
    """
    fields = [lists.scores, lists.labels, lists.weights]

    def weigh_pair(row: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.cast(row[1] > other[1], row[2].dtype) * row[2] * other[2]

    def compute_loss(row: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
        return weigh_pair(row, other) * tf.nn.softplus(other[0] - row[0])

    total, weights = (
        lists.sum(lists.sum_pairs(function, fields)) for function in (compute_loss, weigh_pair)
    )
    return tf.math.divide_no_nan(total, weights)


def lambdarank(lists: Lists, gain: str = "exponential") -> tf.Tensor:
    """Compute LambdaRank: sum `|dNDCG_ij| log(1 + exp(s_j - s_i))` over pairs with y_i > y_j.

    `dNDCG_ij = (g_i - g_j) (D_i - D_j) / ideal DCG` is the change of NDCG if rows i and j swap
    places; gradients treat it as a constant. LambdaRank is described in Burges, "From RankNet to
    LambdaRank to LambdaMART: An Overview", MSR-TR-2010-82. If two scores are equal, the row with
    the smaller label ranks first, so even a model with constant scores gets a gradient.

    Args:
      lists: the rows of all G groups.
      gain: a name in `group_metrics.GAINS`.

    Returns:
      The loss of each group, [G]; 0 for a group in which all labels are equal.
    """
    gains = group_metrics.gains(lists.labels, gain)
    # The second field, `-label_ranks`, breaks ties: if scores are equal, the row with the smaller
    # label ranks first. The rows of a group differ in `label_ranks`, so no two rows have the same
    # rank.
    label_ranks = _rank_labels(lists)
    ranks = 1 + lists.sum_pairs(_is_before, [tf.stop_gradient(lists.scores), -label_ranks])
    discounts = group_metrics.discounts(ranks)
    share = lists.spread(tf.math.reciprocal_no_nan(_ideal_dcg(lists, gains, label_ranks)))

    def compute_loss(row: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
        prefers = tf.cast(row[1] > other[1], row[0].dtype)
        change = tf.abs((row[2] - other[2]) * (row[3] - other[3]))
        return prefers * change * row[4] * tf.nn.softplus(other[0] - row[0])

    constants = [lists.labels, gains, discounts, share]
    return lists.sum(
        lists.sum_pairs(compute_loss, [lists.scores, *map(tf.stop_gradient, constants)])
    )


def softmax(lists: Lists) -> tf.Tensor:
    """Compute `-sum_i t_i log p_i` with `t_i = w_i y_i / sum w y` and `p_i = e^(s_i) / sum w e^s`.

    This loss is described in Bruch et al., "An Analysis of the Softmax Cross Entropy Loss for
    Learning-to-Rank with Binary Relevance", ICTIR 2019. For a group with one relevant row, the loss
    is the first factor of ListMLE (Xia et al., "Listwise Approach to Learning to Rank", 2008).

    Args:
      lists: the rows of all G groups, with labels of at least 0.

    Returns:
      The loss of each group, [G]; 0 for a group in which all labels are 0.
    """
    # Subtract the greatest score of a group from all its scores, so no exponential overflows.
    greatest = lists.max(lists.scores)
    # If all rows of a group have weight 0, `lists.max` returns the lowest float as the greatest
    # score.
    greatest = tf.stop_gradient(tf.where(greatest > lists.scores.dtype.min, greatest, 0))
    shifted_scores = tf.where(lists.counts, lists.scores - lists.spread(greatest), 0)
    total = lists.sum(lists.weights * tf.exp(shifted_scores))
    log_total = tf.math.log(tf.where(total > 0, total, tf.ones_like(total)))
    gains = lists.weights * lists.labels
    losses = lists.sum(gains * (lists.spread(log_total) - shifted_scores))
    return tf.math.divide_no_nan(losses, lists.sum(gains))


def approx_ndcg(lists: Lists, gain: str = "exponential", temperature: float = 0.1) -> tf.Tensor:
    """Compute `1 - DCG / ideal DCG` for the smooth ranks `1 + sum_j sigmoid((s_j - s_i) / t)`.

    The loss is from Qin, Liu and Li, "A General Approximation Framework for Direct Optimization of
    Information Retrieval Measures", 2010.

    Args:
      lists: the rows of all G groups.
      gain: a name in `group_metrics.GAINS`.
      temperature: the temperature t of the smooth ranks, above 0, in the unit of the scores.

    Returns:
      The loss of each group, [G]; 0 for a group in which no label has a gain above 0.
    """

    def is_before(row: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.sigmoid((other[0] - row[0]) / temperature)

    ranks = 1 + lists.sum_pairs(is_before, [lists.scores])
    gains = group_metrics.gains(lists.labels, gain)
    dcg = lists.sum(gains * group_metrics.discounts(ranks))
    ideal = _ideal_dcg(lists, gains, _rank_labels(lists))
    return tf.where(ideal > 0, 1 - tf.math.divide_no_nan(dcg, ideal), tf.zeros_like(ideal))


def _ideal_dcg(lists: Lists, gains: tf.Tensor, label_ranks: tf.Tensor) -> tf.Tensor:
    """Return the DCG of the best order of each group, [G]."""
    # Rows with equal labels have equal gains, so their order does not change the ideal DCG.
    return tf.stop_gradient(lists.sum(gains * group_metrics.discounts(label_ranks)))


def _rank_labels(lists: Lists) -> tf.Tensor:
    """Return the rank of each row in its group by its label, [N]; 1 for the greatest label."""
    index = tf.cast(lists.index, lists.labels.dtype)
    return 1 + lists.sum_pairs(_is_before, [lists.labels, index])


def _is_before(row: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return 1 if `other` ranks first: a greater entry 0, or an equal entry 0 and lower entry 1."""
    is_tie = tf.equal(other[0], row[0]) & (other[1] < row[1])
    return tf.cast((other[0] > row[0]) | is_tie, row[0].dtype)


TYPES = ("ranknet", "lambdarank", "softmax", "approx_ndcg")


def compute(kind: str, lists: Lists, gain: str, temperature: float) -> tf.Tensor:
    """Compute the loss of each group.

    Args:
      kind: a name in `TYPES`.
      lists: the groups of rows.
      gain: the gain of a label for the kinds "lambdarank" and "approx_ndcg": "exponential" or
        "linear".
      temperature: the temperature of "approx_ndcg", above 0.

    Returns:
      The losses of the groups, [G].
    """
    if kind == "lambdarank":
        return lambdarank(lists, gain)
    if kind == "approx_ndcg":
        return approx_ndcg(lists, gain, temperature)
    return ranknet(lists) if kind == "ranknet" else softmax(lists)
