"""The random order of rows in training, computed from a seed, an epoch and a position.

order.permute(6, seed=1, epoch=0)                     # [6], every row once
rows = order.Epochs(np.arange(6), seed=1, batch_size=4)
order.take_batches(rows, batch_size=4)                # endless batches of row numbers

A batch is a slice of an endless stream of shuffled epochs. So the order does not depend on the
number of workers, and a run can start at any step without a saved state of the input.
"""

from __future__ import annotations

import functools

import numpy as np

from mtl import types
from mtl.deferred import tf

# The constants of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permute(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return a random order of rows; each epoch has a different order.

    The rows are sorted by hashes of their numbers, as `SplittableRandom` computes hashes (Steele et
    al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). NumPy's random generators
    may change between versions, but the hash of a row number never changes.

    Args:
      count: the number of rows.
      seed: any integer, which is taken modulo 2^64.
      epoch: the number of the pass, from 0.

    Returns:
      A permutation of the numbers from 0 to count - 1, int64 [count].
    """
    rows = np.arange(count, dtype=np.uint64)
    keys = np.array([seed % 2**64, epoch % 2**64], np.uint64)
    first, second = mix_bits(keys + np.array([1, 2], np.uint64) * _GOLDEN)
    mask = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    # The low bits of each hash are replaced by the row number, so the sorted hashes give the rows.
    hashes = (mix_bits(mix_bits(rows ^ first) + second) & ~mask) | rows
    hashes.sort()
    return (hashes & mask).astype(np.int64)


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Hash integers by SplitMix64; see `permute`.

    Args:
      values: uint64 of any shape.

    Returns:
      uint64 of the same shape.
    """
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        return values ^ (values >> np.uint64(31))


class Epochs(types.RowOrder):
    """The row order of an endless stream of shuffled epochs.

    Args:
      rows: the row numbers of a split, int64 [N].
      seed: the seed of the random order of the rows.
      batch_size: the number of rows in a batch over all workers.
      is_shuffled: False keeps the order of the rows.
    """

    def __init__(self, rows: np.ndarray, seed: int, batch_size: int, is_shuffled: bool = True):
        self._rows, self._batch_size, self._is_shuffled = rows, batch_size, is_shuffled
        self._permute = functools.lru_cache(maxsize=2)(functools.partial(permute, len(rows), seed))

    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers at P positions in the batches of S steps, int64 [S * P]."""
        return self.find_rows((steps[:, np.newaxis] * self._batch_size + positions).ravel())

    def find_rows(self, places: np.ndarray) -> np.ndarray:
        """Return the row numbers at some positions of the endless stream of epochs.

        Args:
          places: ascending positions from 0 on, int64 [P]. For N rows, position N is the first row
            of the second epoch.

        Returns:
          The row numbers, int64 [P].
        """
        epochs, offsets = np.divmod(places, len(self._rows))
        if not self._is_shuffled or not len(places):
            return self._rows[offsets]
        # A batch may span two epochs, so each position is looked up in the order of its epoch.
        starts = np.flatnonzero(np.diff(epochs, prepend=-1))
        parts = np.split(offsets, starts[1:])
        indices = [
            self._permute(epoch)[part]
            for epoch, part in zip(epochs[starts].tolist(), parts, strict=True)
        ]
        return self._rows[np.concatenate(indices)]


def take_batches(
    row_order: types.RowOrder,
    *,
    batch_size: int,
    start_step: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    together: int = 1,
) -> tf.data.Dataset:
    """Return an endless dataset of row numbers, each element for `together` batches.

    Args:
      row_order: the order, which gives the row numbers of each batch.
      batch_size: the number of rows in a batch over all workers.
      start_step: the step of the first batch; a late start costs no time.
      num_shards: the number of workers, which get equal shares of every batch.
      shard: the index of this worker, from 0.
      together: the number of steps whose rows an element contains, one step after the other.
    """
    size = batch_size // num_shards

    def take(step: np.ndarray) -> np.ndarray:
        return row_order.take(int(step) + np.arange(together), np.arange(size) + shard * size)

    @tf.autograph.experimental.do_not_convert
    def read(step: tf.Tensor) -> tf.Tensor:
        rows = tf.numpy_function(take, [step], tf.int64, stateful=False)
        return tf.ensure_shape(rows, [together * size])

    # The iterator's state holds the step, not a count, so the state suits runs from any first step.
    return tf.data.Dataset.range(start_step, tf.int64.max, together).map(read)
