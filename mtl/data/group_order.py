"""The order of training rows for batches of whole groups, filled with copies of rows.

starts = np.array([0, 3, 5, 9])                        # three groups: rows 0 to 2, 3 to 4, 5 to 8
rows = group_order.GroupOrder(np.arange(9), starts, batch_size=8, parts=2, seed=1)
rows.take(np.array([7]), np.arange(8))                 # the rows of step 7; ~row for a copy

A pass contains each group once. A batch consists of equal parts, such as micro-batches; each part
takes groups until the next group does not fit, or until the pass ends. The batch of a step depends
only on the settings, on the number of parts into which a batch is divided, and on the step.
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from mtl import types
from mtl.data import order, packed


class GroupOrder(types.RowOrder):
    """The row order of an endless stream of passes over groups.

    Args:
      rows: the row numbers of a split, int64 [N].
      starts: the index in `rows` of the first row of each group, and N at the end, int64 [G + 1].
      batch_size: the number of rows in a batch over all workers.
      parts: the number of equal parts of a batch; the largest group must fit into a part.
      seed: the seed of the random order of the rows.
      is_shuffled: False keeps the order of the groups.
    """

    def __init__(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        *,
        batch_size: int,
        parts: int,
        seed: int,
        is_shuffled: bool = True,
    ):
        self._rows, self._starts = rows, starts
        self._parts, self._part_rows = parts, batch_size // parts
        self._seed, self._is_shuffled = seed, is_shuffled
        self._lock = threading.Lock()  # Several threads of tf.data call `take` at once.
        self._firsts = [0]  # The number of parts of batches before each pass over the groups.
        self._cut_pass = functools.lru_cache(maxsize=2)(self._cut)
        self._order_pass = functools.lru_cache(maxsize=2)(self._order)

    @property
    def pads(self) -> bool:
        """True, because copies of rows fill a part of a batch if the next group does not fit."""
        return True

    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers at P positions in the batches of S steps, int64 [S * P].

        A negative number ~row stands for a copy of the row, which only fills up a part of a batch.
        """
        numbers, offsets = np.divmod(positions, self._part_rows)
        numbers = (steps[:, np.newaxis] * self._parts + numbers).ravel()
        offsets = np.tile(offsets, len(steps))
        rows = np.zeros(len(numbers), np.int64)
        with self._lock:
            # The number of parts of batches that one pass over all groups fills depends on the
            # random order of the groups. So the number is computed for one pass after the other.
            while self._firsts[-1] <= numbers.max(initial=-1):
                _, bounds = self._cut_pass(len(self._firsts) - 1)
                self._firsts.append(self._firsts[-1] + len(bounds) - 1)
            passes = np.searchsorted(self._firsts, numbers, side="right") - 1
            for number in np.unique(passes).tolist():
                # Most calls read rows of a single pass.
                mask = passes == number
                parts = numbers[mask] - self._firsts[number]
                rows[mask] = self._fill(number, parts, offsets[mask])
        return rows

    def _fill(self, number: int, parts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the row numbers at some offsets in some parts of a pass; ~row for a copy."""
        (_, bounds), rows = self._cut_pass(number), self._order_pass(number)
        places, ends = bounds[parts] + offsets, bounds[parts + 1]
        row_numbers = rows[np.minimum(places, ends - 1)]
        return np.where(places < ends, row_numbers, ~row_numbers)

    def _cut(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the groups of a pass in order, and the index of each part's first row."""
        count = len(self._starts) - 1
        permutation = order.permute(count, self._seed, number) if self._is_shuffled else None
        groups = np.arange(count) if permutation is None else permutation
        ends = packed.count_splits(np.diff(self._starts)[groups])
        # For a part that starts with group i, `next_groups[i]` is the first group of the next part.
        next_groups = np.searchsorted(ends, ends[:-1] + self._part_rows, side="right") - 1
        followers, firsts, group = next_groups.tolist(), [], 0
        while group < count:
            firsts.append(group)
            group = followers[group]
        return groups, ends[np.array([*firsts, count])]

    def _order(self, number: int) -> np.ndarray:
        """Return the row numbers of a pass, in the order of training."""
        groups, _ = self._cut_pass(number)
        places, _ = packed.place_lists(self._starts, groups)
        return self._rows[places]
