"""Draws random numbers from the values of a row, for predictions that are samples.

with draws.know_rows(features):                          # {field: [B, ...]}
    numbers = row_draws.draw("head/price", 16)           # [B, 16] in (0, 1); else None

The random numbers of a row depend only on the name of the draw, and on the values of all fields of
the row. A row gets the same random numbers in every batch and process, so an export can be compared
with an evaluation. The numbers are hashes of the values, so the graph contains no random op. To get
other random numbers for a row, change the value of a field that no column reads.
"""

from __future__ import annotations

import zlib

import numpy as np

from mtl import types
from mtl.deferred import tf
from mtl.step import draws

# A hash is the lowest 32 bits of an int64; an overflow does not change these bits.
_LOW_BITS = 0xFFFFFFFF
# The golden ratio as a fraction of 2^32. Multiples of this number, modulo 2^32, lie far apart.
_STRIDE = 0x9E3779B9
# A float32 can represent an integer of 23 bits plus one half. Because one half is added to the
# integer, no random number is 0. With more bits, the largest numbers would round to 1.
_EXACT_BITS = 23


def are_rows_known() -> bool:
    """Return True if draws can depend on the values of rows: in predictions, not in training."""
    return draws.read_rows() is not None


def draw(name: str, size: int) -> tf.Tensor | None:
    """Draw uniform numbers for each row, which depend on the values of the row's fields.

    Args:
      name: the name of the draw; different names get different numbers.
      size: the number of draws for each row.

    Returns:
      Random numbers, float32 in (0, 1), [B, size]; None outside of `draws.know_rows`, as in
      training.
    """
    features = draws.read_rows()
    if features is None:
        return None
    keys = _mix(_make_keys(features) + zlib.crc32(name.encode()))
    places = tf.range(1, size + 1, dtype=tf.int64) * _STRIDE
    bits = tf.bitwise.right_shift(
        _mix(keys[:, tf.newaxis] + places), _make_constant(32 - _EXACT_BITS)
    )
    return (tf.cast(bits, tf.float32) + 0.5) / 2.0**_EXACT_BITS


def _make_keys(features: types.Tensors) -> tf.Tensor:
    """Hash all values of each row to a number of 32 bits, [B] int64."""
    keys = _make_constant(0)
    # The features are sorted by name, because their order may differ between a run and a server.
    for name in sorted(features):
        keys = _mix(keys * 31 + _make_field_keys(features[name]) + zlib.crc32(name.encode()))
    return keys


def _make_field_keys(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """Hash the values of a field, and their order, to a number for each row, [B] int64."""
    if isinstance(values, tf.RaggedTensor):
        rows = values.value_rowids()
        places = tf.range(tf.size(rows, tf.int64)) - tf.gather(values.row_starts(), rows)
        hashes = _mix(_take_bits(values.flat_values) + places * _STRIDE)
        # The length distinguishes an empty list from a list with a value whose hash is 0.
        return tf.math.unsorted_segment_sum(hashes, rows, values.nrows()) + values.row_lengths()
    bits = tf.reshape(_take_bits(values), [tf.shape(values)[0], int(np.prod(values.shape[1:]))])
    places = tf.range(bits.shape[1], dtype=tf.int64) * _STRIDE
    # Each hash includes the place of the value, because a sum alone would ignore the order of the
    # values.
    return tf.reduce_sum(_mix(bits + places), axis=1)


def _take_bits(values: tf.Tensor) -> tf.Tensor:
    """Turn values of any type into int64 numbers, of which `_mix` reads the lowest 32 bits."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, _LOW_BITS)
    if values.dtype.is_floating:
        # For equal draws, equal numbers need equal bits. Adding 0 turns -0.0 into 0.0. NaNs have
        # many bit patterns, so one NaN replaces all of them.
        one_nan = tf.where(tf.math.is_nan(values), float("nan"), tf.cast(values, tf.float32) + 0.0)
        return tf.cast(tf.bitcast(one_nan, tf.int32), tf.int64)
    # `_mix` reads only the lowest 32 bits, so the highest 32 bits are added to its result.
    whole = tf.cast(values, tf.int64)
    return _mix(whole) + tf.bitwise.right_shift(whole, _make_constant(32))


def _mix(values: tf.Tensor) -> tf.Tensor:
    """Mix the lowest 32 bits of each number, so that each bit depends on all of them.

    This is the function `lowbias32` of Wellons, "Prospecting for Hash Functions", 2018.
    """
    mask = _make_constant(_LOW_BITS)
    values = tf.bitwise.bitwise_and(values, mask)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        values = tf.bitwise.bitwise_xor(
            values, tf.bitwise.right_shift(values, _make_constant(shift))
        )
        values = tf.bitwise.bitwise_and(values * factor, mask)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _make_constant(16)))


def _make_constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)
