"""Groups of rows, such as the results of a query: keys of groups, and sorted rows.

keys = groups.read_keys(head, "query", labels, counts)         # [B] int64
groups.GroupedRows(keys, scores, targets, weights)      # a `metrics.Total` with the value `Ranked`

Metrics rank whole groups at the end of an evaluation, so metrics do not depend on batches, replicas
or the order of rows. A training loss ranks only the rows of a slice of a batch; see
`data.whole_groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, buffers, ranking, values

_RULE = "name the group of a labelled row"
_KEY_BITS = 32


def check_cutoffs(where: str, cutoffs: Sequence[int]) -> None:
    """Check the cutoffs of metrics such as `ndcg_at_<k>`.

    Args:
      where: the name of the setting, for error messages.
      cutoffs: the ranks k of metrics such as `ndcg_at_<k>`.

    Raises:
      UserError: a cutoff is not a whole number of at least 1, or occurs twice.
    """
    checks.is_a(where, cutoffs, (list, tuple), "be a list of ranks")
    for cutoff in cutoffs:
        checks.whole(where, cutoff, 1)
    checks.unique(where, list(map(str, cutoffs)))


def read_keys(
    head: base.Labelled, field: str, labels: types.Tensors, counts: tf.Tensor
) -> tf.Tensor:
    """Return a key for the group of each row.

    The key of a string is a fingerprint of 64 bits. Among a million different strings, two
    fingerprints are equal with a probability of 3e-8.

    Args:
      head: the head, whose name error messages mention.
      field: the label field that holds the keys of groups, int64 or string.
      labels: {field: [B, ...]}.
      counts: [B] bool, True for rows that need a key.

    Returns:
      int64 [B]; rows of the same group have equal keys.

    Raises:
      UserError: the label field is absent, or does not hold one int64 or string for each example.
      InvalidArgumentError: when the op runs, if a row that needs a key has none.
    """
    keys = head.read_field(labels, field, (tf.int64, tf.string), ())
    valid = values.are_ids_present(keys) | ~counts
    keys = head.checked(keys, valid, keys, _RULE, field)
    if keys.dtype == tf.int64:
        return keys
    return tf.bitcast(tf.raw_ops.Fingerprint(data=keys, method="farmhash64"), tf.int64)


def check_key(head: base.Labelled, field: str, labels: Mapping[str, Any]) -> str | None:
    """Return an error message if a record has a label, but not the key of its group.

    Args:
      head: the head that reads the label of the record; error messages mention its name.
      field: the label field that holds the keys of groups.
      labels: {label field: its value in the record, in plain Python}.

    Returns:
      The error message, or None if the record is valid. A record without a label, or with a weight
      of 0, needs no key.
    """
    if not head.has_weight(labels):
        return None
    for key in values.flatten_values(labels.get(field, [])):
        if values.is_id_missing(key):
            return f"{head.message(field, _RULE)} {values.show(key)}"
    return None


class Ranked(NamedTuple):
    """The rows of a split, sorted by group, and within each group by descending score.

    Attributes:
      groups: [N] int32, the index of each row's group, ascending, from 0 to G - 1.
      scores, labels, weights: [N] float64 each.
      num_groups: G, the number of groups, an int32 scalar.
    """

    groups: tf.Tensor
    scores: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    num_groups: tf.Tensor

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Sum the values of each group, [N] -> [G]."""
        return tf.math.unsorted_segment_sum(values, self.groups, self.num_groups)

    def order_by(self, values: tf.Tensor) -> tf.Tensor:
        """Order the rows of each group by descending value.

        Args:
          values: the values by which rows are ordered, float32 [N].

        Returns:
          int32 [N], the indices of the rows; the rows of the first group come first.
        """
        return _order_rows(self.groups, values)


class GroupedRows:
    """A `metrics.Total` of all rows of a split with their groups, in 20 bytes for each row.

    Args:
      keys: the key of each row's group, int64 [B].
      scores: the scores of the rows, float32 [B].
      labels: the labels of the rows, float32 [B].
      weights: the weights of the rows, float32 [B]; the total drops rows of weight 0.
    """

    def __init__(self, keys: tf.Tensor, scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor):
        self.state = buffers.rows_state(3)  # Scores, labels, weights.
        counts = weights > 0
        self._keys = tf.boolean_mask(keys, counts)
        rows = [tf.cast(value, tf.float32) for value in (scores, labels, weights)]
        self._rows = tf.boolean_mask(tf.stack(rows, axis=-1), counts)

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Append the rows of the batch to the variables."""
        return buffers.append(state, self._keys, self._rows)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Ranked:
        """Return the rows of all replicas, sorted by group and score."""
        keys, rows = buffers.read_all(replicas)
        distinct_keys, groups = tf.unique(keys)
        order = _order_rows(groups, rows[:, 0])
        scores, labels, weights = tf.unstack(tf.cast(tf.gather(rows, order), tf.float64), axis=1)
        return Ranked(tf.gather(groups, order), scores, labels, weights, tf.size(distinct_keys))


def _order_rows(groups: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return row indices, sorted by group, and within a group by descending values."""
    places = 2**_KEY_BITS - 1 - ranking.order_bits(values)
    # Sort rows once by an integer, with the group in the high bits and the negated score in the low
    # bits.
    return tf.argsort(tf.cast(groups, tf.int64) * 2**_KEY_BITS + places)
