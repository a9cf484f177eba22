"""How often items come, estimated as batches go by.

clicked/heads.Retrieval.frequency = @heads.StreamedFrequency()
heads.StreamedFrequency.rate = 0.01
"""

import dataclasses

import numpy as np
import tensorflow as tf

from mtl import checks
from mtl.step import replicas, step_state

tf1 = tf.compat.v1

# Odd numbers and shifts that mix the bits of a key; each hash adds a number of its own before.
_MIX = ((0x5851F42D4C957F2D, 32), (0x14057B7EF767814F, 29))
_APART = 0x1E3779B97F4A7C15


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamedFrequency:
    """The probability that an item is in a batch: 1 / the steps between two batches that have it.

    At step t, for each item y of the batch and each of the hashes h:

        B[h(y)] = (1 - rate) B[h(y)] + rate (t - A[h(y)]), A[h(y)] = t, Q(y) = 1 / max_h B[h(y)]

    X. Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
    RecSys 2019, algorithms 2 and 3. Differs from it where an item is new: when it comes for the
    n-th time, 1/n takes the place of a smaller rate, so that B is the mean of its gaps so far. With
    one rate, an initial B, or the first gap, would tell most of it for as long as 1 / rate batches
    that have the item. An item that is in every batch, however often, has a Q of 1.

    A, B and n are the same on all replicas, which see the items of each other's rows.

    Attributes:
      rate: in (0, 1]; a smaller one averages over more batches, about 1 / rate of those that have
        the item, and follows later what changes.
      buckets: entries of A, B and n for each hash, 16 bytes together; many more than items, so that
        few meet in one.
      hashes: how many; items that meet in one bucket rarely meet in all.
    """

    rate: float = 0.01
    buckets: int = 2**18
    hashes: int = 2

    def __post_init__(self):
        checks.positive("StreamedFrequency.rate", self.rate)
        checks.require(self.rate <= 1, "StreamedFrequency.rate", "be at most 1", self.rate)
        checks.whole("StreamedFrequency.buckets", self.buckets, 2)
        checks.whole("StreamedFrequency.hashes", self.hashes, 1)
        rule = f"be at most {2**31 - 2} for all hashes together"
        fits = self.buckets * self.hashes < 2**31 - 1
        checks.require(fits, "StreamedFrequency.buckets", rule, self.buckets * self.hashes)

    def update(self, keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Take in the items of a batch, and return log Q of each row, [B].

        Args:
          keys: [B] int64, of this replica.
          counts: [B] bool; the other rows leave no trace, and their Q tells nothing.
        """
        size = self.buckets * self.hashes
        # One more entry, for the rows that do not count.
        seen = step_state.create_variable("frequency/step", np.zeros([size + 1], np.int64))
        comes = step_state.create_variable("frequency/times", np.zeros([size + 1], np.float32))
        gaps = step_state.create_variable("frequency/gap", np.zeros([size + 1], np.float32))
        places = tf.where(counts, self._find_places(keys), size)
        used, own = tf.unique(tf.reshape(_of_all_replicas(places), [-1]))
        own = _of_this_replica(tf.reshape(own, [self.hashes, -1]), tf.size(keys))
        step = tf.cast(tf1.train.get_or_create_global_step(), tf.int64) + 1
        # The handles act alike in every replica, and write the rows that are named alone.
        before = tf.raw_ops.ResourceGather(resource=seen.handle, indices=used, dtype=tf.int64)
        times = 1 + tf.raw_ops.ResourceGather(resource=comes.handle, indices=used, dtype=tf.float32)
        gap = tf.raw_ops.ResourceGather(resource=gaps.handle, indices=used, dtype=tf.float32)
        rate = tf.maximum(self.rate, 1 / times)
        gap += rate * (tf.cast(step - before, tf.float32) - gap)
        steps = tf.fill(tf.shape(used), step)
        with tf.control_dependencies([gap]):  # Nothing else has the old state read before the new.
            for variable, value in ((seen, steps), (comes, times), (gaps, gap)):
                written = tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=used, updates=value
                )
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, written)
        return -tf.math.log(tf.reduce_max(tf.gather(gap, own), 0))

    def _find_places(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the entry of each key for each hash, [hashes, B] int32."""
        keys += _APART * tf.range(1, self.hashes + 1, dtype=tf.int64)[:, tf.newaxis]
        for factor, shift in _MIX:
            keys *= factor
            shifted = tf.bitwise.right_shift(
                tf.bitcast(keys, tf.uint64), tf.constant(shift, tf.uint64)
            )
            keys = tf.bitwise.bitwise_xor(keys, tf.bitcast(shifted, tf.int64))
        own = tf.range(self.hashes, dtype=tf.int64)[:, tf.newaxis] * self.buckets
        return tf.cast(tf.math.floormod(keys, self.buckets) + own, tf.int32)


def _of_all_replicas(places: tf.Tensor) -> tf.Tensor:
    """Return those of all replicas beside each other, [N, B] -> [N, R B]."""
    count = replicas.count()
    if count == 1:
        return places
    own = tf.one_hot(replicas.replica_index(), count, dtype=places.dtype)
    apart = places[:, tf.newaxis] * own[:, tf.newaxis]
    return tf.reshape(replicas.sum_over_replicas(apart), [places.shape[0], -1])


def _of_this_replica(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return this replica's part of what `_of_all_replicas` gave, [N, R B] -> [N, B]."""
    first = rows * replicas.replica_index() if replicas.count() > 1 else 0
    return values[:, first : first + rows]
