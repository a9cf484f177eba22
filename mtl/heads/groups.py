"""Groups of rows, such as the results of one query: their keys, and all rows of a split.

keys = groups.read_keys(head, "query", labels, counts)         # [B] int64
groups.GroupedRows(keys, scores, targets, weights)      # a `metrics.Total` with the value `Ranked`

Metrics rank whole groups at the end of an evaluation. So batches, replicas and the order of rows do
not change them. A loss sees only the rows of a slice, and ranks the groups in it; see
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
      where: the name of the setting, for errors.
      cutoffs: the ranks k.

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
    """Return the key of each row's group, [B] int64. Rows with equal keys form a group.

    A string becomes a fingerprint of 64 bits. Among a million different strings, two collide with a
    probability of 3e-8.

    Args:
      head: the head, for its name in errors.
      field: the label field that holds the keys, int64 or string.
      labels: {field: [B, ...]}.
      counts: [B] bool, True for rows that count. Other rows may lack a key.

    Raises:
      InvalidArgumentError: when run, if a row that counts lacks a key.
    """
    keys = head.read_field(labels, field, (tf.int64, tf.string), ())
    valid = values.are_ids_present(keys) | ~counts
    keys = head.checked(keys, valid, keys, _RULE, field)
    if keys.dtype == tf.int64:
        return keys
    return tf.bitcast(tf.raw_ops.Fingerprint(data=keys, method="farmhash64"), tf.int64)


def check_key(head: base.Labelled, field: str, labels: Mapping[str, Any]) -> str | None:
    """Check the key of a record's group.

    Args:
      head: the head, for its name in errors, and to see if the label of the record counts.
      field: the label field that holds the keys.
      labels: {field: its value in plain Python}.

    Returns:
      An error, or None. A record whose label does not count may lack a key.
    """
    if not head.has_weight(labels):
        return None
    for key in values.flatten_values(labels.get(field, [])):
        if values.is_id_missing(key):
            return f"{head.message(field, _RULE)} {values.show(key)}"
    return None


class Ranked(NamedTuple):
    """The rows of a split by group, and within each group by descending score.

    Attributes:
      groups: [N] int32, ascending, from 0 on.
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
        """Return row indices by descending float32 values within each group, [N] int32."""
        return _order_rows(self.groups, values)


class GroupedRows:
    """A total of all rows that count, with their groups: 20 bytes a row, in a growing buffer.

    Args:
      keys: [B] int64, the keys of the groups.
      scores: [B] float32.
      labels: [B] float32.
      weights: [B] float32; the total drops rows of weight 0.
    """

    def __init__(self, keys: tf.Tensor, scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor):
        self.state = buffers.rows_state(3)  # Scores, labels, weights.
        counts = weights > 0
        self._keys = tf.boolean_mask(keys, counts)
        rows = [tf.cast(value, tf.float32) for value in (scores, labels, weights)]
        self._rows = tf.boolean_mask(tf.stack(rows, axis=-1), counts)

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Append the batch."""
        return buffers.append(state, self._keys, self._rows)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> Ranked:
        """Return the sorted rows of all replicas."""
        keys, rows = buffers.read_all(replicas)
        distinct_keys, groups = tf.unique(keys)
        order = _order_rows(groups, rows[:, 0])
        scores, labels, weights = tf.unstack(tf.cast(tf.gather(rows, order), tf.float64), axis=1)
        return Ranked(tf.gather(groups, order), scores, labels, weights, tf.size(distinct_keys))


def _order_rows(groups: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return row indices by group, and within it by descending float32 values."""
    places = 2**_KEY_BITS - 1 - ranking.order_bits(values)
    # A single sort orders rows by group, in the high bits, and by falling score, in the low bits.
    return tf.argsort(tf.cast(groups, tf.int64) * 2**_KEY_BITS + places)
