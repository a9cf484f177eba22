"""Counts the texts of a column, block by block, in a limited amount of memory.

texts = texts.Texts()
texts.add(pa.array(["a", "b", "a"]))
texts.list_frequent(1), texts.count_distinct()          # [("a", 2)], 2
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.tools.statistics import hashing

MOST_VALUES = 200_000
"""The largest number of distinct texts that are counted exactly."""
# The largest number of bytes in all distinct texts for which counts are exact.
_MOST_BYTES = 1 << 26
# The number of counts that are collected from blocks before they are merged into the table.
_WAITING = 1 << 15


class Texts:
    """Counts how often the most frequent texts occur.

    A table adds up the counts of the texts in all blocks. If the table becomes too long, the rarer
    half of its texts is dropped. After texts were dropped, counts may be too low by at most `lost`,
    which is the sum of the largest dropped count over all drops.

    Args:
      most: the largest number of distinct texts in the table.
      most_bytes: the largest number of bytes that the distinct texts in the table may have
        together.

    Attributes:
      count: the number of added texts.
      bytes: the number of bytes in all added texts.
      shortest: the number of bytes in the shortest text; 0 without a text.
      longest: the number of bytes in the longest text; 0 without a text.
      lost: the largest error of a count, which may be too low but never too high; 0 if counts are
          exact.
    """

    def __init__(self, most: int = MOST_VALUES, most_bytes: int = _MOST_BYTES):
        self.count = self.bytes = self.shortest = self.longest = self.lost = 0
        self._most, self._most_bytes = most, most_bytes
        self._values: pa.Array = pa.array([], pa.large_binary())
        self._counts = np.zeros([0], np.int64)
        self._waiting: list[tuple[pa.Array, np.ndarray]] = []
        self._num_waiting = self._bytes_waiting = 0
        self._distinct: hashing.Distinct | None = None

    def add(self, texts: pa.Array) -> None:
        """Add N texts or bytes, without nulls."""
        if len(texts):
            value_counts = pc.value_counts(texts)
            self.add_counts(value_counts.field("values"), value_counts.field("counts").to_numpy())

    def add_counts(self, values: pa.Array, counts: np.ndarray) -> None:
        """Add N distinct texts with their counts.

        Args:
          values: different texts or bytes [N], without nulls, N > 0.
          counts: the number of occurrences of each text, int64 [N].
        """
        lengths = pc.binary_length(values).to_numpy().astype(np.int64)
        self.shortest = int(min(lengths.min(), self.shortest if self.count else lengths.min()))
        self.longest = max(self.longest, int(lengths.max()))
        self.count += int(counts.sum())
        self.bytes += int((lengths * counts).sum())
        values = values.cast(pa.large_binary())
        # Until rare texts are dropped from the table, it holds all distinct texts, so hashes are
        # not needed.
        if self._distinct is not None:
            self._distinct.add(hashing.hash_texts(values))
        self._waiting.append((values, counts))
        self._num_waiting += len(values)
        self._bytes_waiting += int(lengths.sum())
        if self._num_waiting > _WAITING or self._bytes_waiting > self._most_bytes // 4:
            self._merge_waiting()

    def _merge_waiting(self) -> None:
        if not self._waiting:
            return
        parts = [(self._values, self._counts), *self._waiting]
        self._waiting, self._num_waiting, self._bytes_waiting = [], 0, 0
        encoded = pa.concat_arrays([values for values, _ in parts]).dictionary_encode()
        counts = np.concatenate([counts for _, counts in parts])
        self._values = encoded.dictionary
        # The float64 of `bincount` is exact up to 2**53.
        self._counts = np.bincount(encoded.indices.to_numpy(), counts).astype(np.int64)
        if len(self._values) > self._most or self._values.nbytes > self._most_bytes:
            self._cut()

    def _cut(self) -> None:
        """Drop the rarer half of the table, or more than half if the texts have many bytes."""
        if self._distinct is None:
            self._distinct = hashing.Distinct()
            self._distinct.add(hashing.hash_texts(self._values))
        order = np.argsort(-self._counts, kind="stable")
        lengths = pc.binary_length(self._values).to_numpy()[order] + 8
        fits = np.searchsorted(np.cumsum(lengths), self._most_bytes // 2)
        size = min(self._most // 2, int(fits), len(order) - 1)
        self.lost += int(self._counts[order[size]])
        places = np.sort(order[:size])
        self._values, self._counts = self._values.take(pa.array(places)), self._counts[places]

    @property
    def is_exact(self) -> bool:
        """True if the table has all distinct texts, so that their counts are exact."""
        self._merge_waiting()
        return self._distinct is None

    def count_distinct(self) -> int:
        """Return the number of distinct texts; an estimate if `is_exact` is False."""
        self._merge_waiting()
        return len(self._values) if self._distinct is None else self._distinct.count()

    def read_counts(self) -> tuple[pa.Array, np.ndarray]:
        """Return the N texts in the table as bytes, and their counts, int64 [N]."""
        self._merge_waiting()
        return self._values, self._counts

    def list_frequent(self, most: int) -> list[tuple[bytes, int]]:
        """Return the most frequent texts as bytes, with counts; in ties, earlier texts first.

        Args:
          most: the largest number of texts to return.
        """
        values, counts = self.read_counts()
        order = np.argsort(-counts, kind="stable")[:most]
        return list(
            zip(values.take(pa.array(order)).to_pylist(), counts[order].tolist(), strict=True)
        )
