"""Estimate the frequencies of items from the batches of training.

clicked/heads.Retrieval.frequency = @heads.StreamedFrequency()
heads.StreamedFrequency.rate = 0.01
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.step import replicas, step_state

# Factors and shifts that mix the bits of a key. Each hash first adds a different offset.
_MIX = ((0x5851F42D4C957F2D, 32), (0x14057B7EF767814F, 29))
_APART = 0x1E3779B97F4A7C15


@checks.dataclass
class StreamedFrequency:
    """Estimates the probability that a batch has an item, from the steps between occurrences.

    At training step t, the numbers A and B change for each item y of the batch and each hash
    function h:

        B[h(y)] = (1 - rate) B[h(y)] + rate (t - A[h(y)]), A[h(y)] = t, Q(y) = 1 / max_h B[h(y)]

    A is the last step whose batch had the item, B the mean number of steps between two such steps,
    and Q the probability that a batch has the item. The algorithm is from Yi et al.,
    "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019,
    algorithms 2 and 3. Unlike in the paper, the rate is at least 1/n at the n-th batch with an
    item, so B is at first the mean of all gaps between steps with the item. With a constant rate,
    the initial value or the first gap would dominate the mean gap B for about 1 / rate batches with
    the item. An item in every batch has the probability Q = 1, even if several rows of the batch
    have the item.

    The variables A, B and n are equal on all replicas, as each replica gets the items of all
    replicas.

    Attributes:
      rate: the weight of the newest gap in the mean gap B between steps with an item, in (0, 1].
        The mean gap averages over about 1 / rate batches with the item, so a smaller rate reduces
        noise and reacts to changes more slowly.
      buckets: the number of buckets of each hash. A bucket takes 16 bytes: for the step A, the mean
        gap B and the number n of batches. With many more buckets than items, collisions are rare.
      hashes: the number of hashes of an item. Two items that collide in one hash rarely collide in
        all hashes.
    """

    rate: Annotated[float, checks.In("(0, 1]")] = 0.01
    buckets: Annotated[int, checks.AtLeast(2)] = 2**18
    hashes: checks.Count = 2

    def __post_init__(self):
        rule = f"be at most {2**31 - 2} for all hashes together"
        fits = self.buckets * self.hashes < 2**31 - 1
        checks.require(fits, "StreamedFrequency.buckets", rule, self.buckets * self.hashes)

    def update(self, keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Update the frequencies with the items of a batch.

        Args:
          keys: [B] int64, the keys of the items of this replica's rows.
          counts: [B] bool, True for rows that update the frequencies. The returned frequency is
            meaningless for rows in which `counts` is False.

        Returns:
          The logarithm of the frequency Q of each row's item, [B].
        """
        size = self.buckets * self.hashes
        # An additional last entry takes the rows that must not update a frequency.
        last_steps = step_state.create_variable("frequency/step", np.zeros([size + 1], np.int64))
        visits = step_state.create_variable("frequency/times", np.zeros([size + 1], np.float32))
        gaps = step_state.create_variable("frequency/gap", np.zeros([size + 1], np.float32))
        places = tf.where(counts, self._find_places(keys), size)
        entries, entry_places = tf.unique(tf.reshape(_of_all_replicas(places), [-1]))
        entry_places = _of_this_replica(tf.reshape(entry_places, [self.hashes, -1]), tf.size(keys))
        step = tf.cast(tf1.train.get_or_create_global_step(), tf.int64) + 1
        # Raw ops on handles write only the indexed rows, in the same way on each replica.
        before = tf.raw_ops.ResourceGather(
            resource=last_steps.handle, indices=entries, dtype=tf.int64
        )
        times = 1 + tf.raw_ops.ResourceGather(
            resource=visits.handle, indices=entries, dtype=tf.float32
        )
        gap = tf.raw_ops.ResourceGather(resource=gaps.handle, indices=entries, dtype=tf.float32)
        # Until 1 / `times` falls below `self.rate`, `gap` becomes the mean of all gaps between
        # batches with the item.
        rate = tf.maximum(self.rate, 1 / times)
        gap += rate * (tf.cast(step - before, tf.float32) - gap)
        steps = tf.fill(tf.shape(entries), step)
        # Write only after all reads: a read could otherwise return the new state.
        with tf.control_dependencies([gap]):
            for variable, value in ((last_steps, steps), (visits, times), (gaps, gap)):
                update = tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=entries, updates=value
                )
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        # If items collide in a hash, the measured gap between batches with an item gets shorter, so
        # the longest gap of all hashes is the best estimate.
        return -tf.math.log(tf.reduce_max(tf.gather(gap, entry_places), 0))

    def _find_places(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the index of each key's bucket for each hash, [hashes, B] int32."""
        keys += _APART * tf.range(1, self.hashes + 1, dtype=tf.int64)[:, tf.newaxis]
        for factor, shift in _MIX:
            keys *= factor
            high_bits = tf.bitwise.right_shift(
                tf.bitcast(keys, tf.uint64), tf.constant(shift, tf.uint64)
            )
            keys = tf.bitwise.bitwise_xor(keys, tf.bitcast(high_bits, tf.int64))
        offsets = tf.range(self.hashes, dtype=tf.int64)[:, tf.newaxis] * self.buckets
        return tf.cast(tf.math.floormod(keys, self.buckets) + offsets, tf.int32)


def _of_all_replicas(places: tf.Tensor) -> tf.Tensor:
    """Concatenate the bucket indices of all R replicas, [N, B] -> [N, R B]."""
    count = replicas.count()
    if count == 1:
        return places
    is_this_replica = tf.one_hot(replicas.replica_index(), count, dtype=places.dtype)
    columns = places[:, tf.newaxis] * is_this_replica[:, tf.newaxis]
    return tf.reshape(replicas.sum_over_replicas(columns), [places.shape[0], -1])


def _of_this_replica(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return this replica's part of the values of all R replicas, [N, R B] -> [N, B]."""
    first = rows * replicas.replica_index() if replicas.count() > 1 else 0
    return values[:, first : first + rows]
