"""A hash table that assigns rows to keys, with buckets of 8 rows, and two buckets for each key.

rows, is_known = key_table.find_rows(table, keys)        # in the graph: [N] -> [N], [N]
origins = key_table.place_keys(saved, capacity)          # in NumPy, for a table of another size

A table of R rows has R / 8 buckets. Each key has two candidate buckets, which depend only on the
key, and may take any row of these buckets. The buckets have three advantages: the cost of looking
up and adding keys does not depend on the number of rows, an ordinary variable can hold the keys,
and a key keeps its row while other keys are added and removed. The choice between two buckets fills
all buckets evenly (Azar et al., "Balanced Allocations", 1999).
"""

from __future__ import annotations

import numpy as np

from mtl.deferred import tf

# The number of rows in a bucket. A new key takes a free row in the emptier one of its two buckets.
PLACES = 8
# Keys are numbers from 1 on; 0 marks a free row.
NO_KEY = 0
# The number of hash values, so that a hash plus 1 still fits int64.
_LARGEST = 2**63 - 1


def make_keys(tokens: tf.Tensor) -> tf.Tensor:
    """Hash tokens to keys.

    The probability that two of n different tokens have the same key is about n^2 / 2^64.

    Args:
      tokens: the texts of the tokens, strings [N].

    Returns:
      Keys, int64 [N], at least 1; an empty token has the key `NO_KEY`, which is 0.
    """
    keys = tf.strings.to_hash_bucket_fast(tokens, _LARGEST) + 1
    return tf.where(tf.equal(tokens, ""), tf.constant(NO_KEY, tf.int64), keys)


def list_buckets(keys: tf.Tensor | np.ndarray, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the two candidate buckets of each key.

    Args:
      keys: int64 [N], at least 0.
      count: the number of buckets.

    Returns:
      Two tensors or arrays of bucket numbers like `keys`, [N] each, in [0, count). Both buckets of
      a key may be equal.
    """
    return keys % count, (keys // count) % count


def find_rows(table: tf.Variable, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Look up keys in a table.

    Args:
      table: the key of each of R rows, int64 [R / 8, 8]; `NO_KEY` for free rows.
      keys: the keys to look up, int64 [N].

    Returns:
      The rows of the keys, int64 [N], and a mask, bool [N], that is True for keys in the table.
      Keys that are not in the table get the row 0. The key `NO_KEY`, of empty tokens, is never in
      the table.
    """
    rows = tf.zeros_like(keys)
    # The rows of a bucket are numbered from 1, because the product of `is_here` and `places` is 0
    # for a key that is not in the bucket.
    places = tf.range(1, PLACES + 1, dtype=tf.float32)
    is_known = tf.zeros_like(keys, tf.bool)
    for buckets in list_buckets(keys, table.shape[0]):
        is_here = tf.equal(tf.gather(table, buckets), keys[:, tf.newaxis])
        place = tf.cast(tf.linalg.matvec(tf.cast(is_here, tf.float32), places), tf.int64)
        # If processes that share a table put a key into both buckets, the first bucket counts.
        is_first = (place > 0) & ~is_known & tf.not_equal(keys, NO_KEY)
        rows = tf.where(is_first, buckets * PLACES + place - 1, rows)
        is_known |= is_first
    return rows, is_known


def place_keys(saved: np.ndarray, capacity: int) -> np.ndarray:
    """Assign the keys of a saved table to rows of a table of another size.

    A key is lost if both candidate buckets are full. Hardly any key is lost if the table grows by
    half or more.

    Args:
      saved: the key of each saved row, [R] or [R / 8, 8].
      capacity: the number of rows of the new table, a multiple of 8.

    Returns:
      For each row of the new table, the saved row of its key, int64 [capacity]; -1 for a free row.
    """
    count, keys = capacity // PLACES, saved.reshape(-1)
    origins = np.full([count, PLACES], -1, np.int64)
    num_taken = np.zeros(count, np.int64)
    waiting = np.flatnonzero(keys != NO_KEY)
    # Place few keys at a time, because keys that are placed together see the same bucket counts.
    size = max(count // 4, 1)
    while len(waiting):
        unplaced = []
        for part in np.split(waiting, range(size, len(waiting), size)):
            first, second = list_buckets(keys[part], count)
            buckets = np.where(num_taken[first] <= num_taken[second], first, second)
            order = np.argsort(buckets, kind="stable")
            buckets, rows = buckets[order], part[order]
            place = num_taken[buckets] + _rank_equals(buckets)
            fits = place < PLACES
            origins[buckets[fits], place[fits]] = rows[fits]
            num_taken += np.bincount(buckets[fits], minlength=count)
            unplaced.append(rows[~fits])
        if sum(map(len, unplaced)) == len(waiting):
            break
        waiting = np.concatenate(unplaced)
    return origins.reshape(-1)


def _rank_equals(ascending: np.ndarray) -> np.ndarray:
    """Return the number of equal values before each value of a sorted array."""
    return np.arange(len(ascending)) - np.searchsorted(ascending, ascending)
