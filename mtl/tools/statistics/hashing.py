"""Estimates the number of distinct values from 64-bit hashes, in a fixed amount of memory.

estimate = hashing.Distinct()
estimate.add(hashing.hash_numbers(np.array([1.0, 2.0])))
estimate.count()                                     # about the number of different values
"""

import math

import numpy as np
import pyarrow as pa

from mtl.data import order

# The relative standard error is 1 / sqrt(_MOST): 0.8%.
_MOST = 1 << 14
ERROR = 1 / math.sqrt(_MOST)
"""The relative standard error of `Distinct.count`."""
# The base of the polynomial. An odd base has an inverse modulo 2**64.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_BYTES_AT_ONCE = 1 << 23


class Distinct:
    """Estimates the number of distinct values from their k smallest hashes (k minimum values).

    The 64-bit hashes of D distinct values are spread evenly. If the k-th smallest hash is the share
    x of the largest 64-bit number, the number D of distinct values is about (k - 1) / x. The method
    is by Bar-Yossef et al., Counting distinct elements in a data stream,
    https://doi.org/10.1007/3-540-45726-7_1.
    """

    def __init__(self) -> None:
        self._hashes = np.zeros([0], np.uint64)

    def add(self, hashes: np.ndarray) -> None:
        """Update the k smallest hashes with the hashes of values.

        Args:
          hashes: uint64 [N]. Equal hashes count as the same value.
        """
        if len(self._hashes) == _MOST:
            # Hashes above the largest stored hash cannot be among the smallest.
            hashes = hashes[hashes < self._hashes[-1]]
        if len(hashes):
            # `np.unique` may use a hash table, which takes ten times as long as sorting.
            merged = np.sort(np.concatenate([self._hashes, hashes]))
            is_first = np.concatenate([[True], merged[1:] != merged[:-1]])
            self._hashes = merged[is_first][:_MOST]

    def count(self) -> int:
        """Return the number of distinct values: exact below 16,384, and otherwise an estimate."""
        if len(self._hashes) < _MOST:
            return len(self._hashes)
        return round((_MOST - 1) / (float(self._hashes[-1]) / 2.0**64))


def hash_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of numbers.

    An integer up to 2**53 has the same hash as the equal float.

    Args:
      numbers: int64 or float64 [N].

    Returns:
      uint64 [N].
    """
    if numbers.dtype.kind == "f":
        return order.mix_bits((numbers + 0.0).view(np.uint64))  # -0.0 becomes 0.0.
    floats = numbers.astype(np.float64) + 0.0
    is_exact = np.abs(floats) <= 2.0**53
    return order.mix_bits(np.where(is_exact, floats.view(np.uint64), numbers.view(np.uint64)))


def hash_texts(texts: pa.Array) -> np.ndarray:
    """Return hashes of texts.

    Args:
      texts: texts or bytes [N], without nulls.

    Returns:
      uint64 [N].
    """
    if not len(texts):
        return np.zeros([0], np.uint64)
    if texts.nbytes > _BYTES_AT_ONCE and len(texts) > 1:
        middle = len(texts) // 2
        return np.concatenate([hash_texts(texts[:middle]), hash_texts(texts[middle:])])
    return _hash_block(texts.cast(pa.large_binary()))


def _hash_block(texts: pa.Array) -> np.ndarray:
    """Return a hash of each text: a polynomial of its bytes modulo 2**64, mixed with its length."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(ends[0]), int(ends[-1])
    content = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    ends = ends - first
    places = np.full(len(content) + 1, _BASE, np.uint64)
    places[0] = 1
    powers = np.multiply.accumulate(places)
    terms = order.mix_bits(content.astype(np.uint64) + np.uint64(1)) * powers[:-1]
    sums = np.concatenate([np.zeros(1, np.uint64), np.add.accumulate(terms)])
    # Divide by the power of the base at the start of a text, so that the hash does not depend on
    # the position of the text.
    places[1:] = _INVERSE
    inverses = np.multiply.accumulate(places)
    totals = (sums[ends[1:]] - sums[ends[:-1]]) * inverses[ends[:-1]]
    return order.mix_bits(totals ^ order.mix_bits(np.diff(ends).astype(np.uint64)))
