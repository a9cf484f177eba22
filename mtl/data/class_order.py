"""The order of training rows if a sampler draws some classes more often than they occur.

due = {"cat": 30, "dog": 30}                      # draws of each class in a pass
rows = class_order.ClassOrder([cats, dogs], ["cat", "dog"], find_due, batch_size=4, seed=1)
rows.take(np.array([7]), np.arange(4))            # the numbers of the rows of step 7

In each pass, the draws of every class are at random positions. A draw takes the next row of the
class from an endless stream, in which each epoch of the class has a new order. So a row is drawn
again only after all other rows of its class, and the batch of a step depends on nothing but the
settings and the step.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from mtl import types
from mtl.data import order

# Fractions of a draw are counted in units of 1 / `_PARTS`, so that sums over passes are exact
# integers.
_PARTS = 1 << 20
# `ClassOrder` counts the draws of `_PASSES` passes at once.
_PASSES = 64


class ClassOrder(types.RowOrder):
    """The row order of endless passes, each with a given number of draws from every class.

    After any pass, the number of draws that a class has had so far differs by at most about 1/2
    from the sum of the numbers that `find_due` returned for this class.

    Args:
      rows: the row numbers of each class j, int64 [N_j].
      names: the name of each class, which seeds the order of its rows.
      find_due: a function of `first` and `stop`, which returns the number of draws that each class
        should get in each of the passes from `first` to `stop - 1`, float64 [passes, C]. Each
        number of draws is at least 0, and in every pass, at least one class has draws.
      batch_size: the number of rows in a batch over all workers.
      seed: the seed of the random order of the rows.
      is_shuffled: False sorts the rows of each pass by their numbers.
    """

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        names: Sequence[str],
        find_due: Callable[[int, int], np.ndarray],
        *,
        batch_size: int,
        seed: int,
        is_shuffled: bool = True,
    ):
        self._streams = [
            # The class name is part of the seed, so classes have different orders, even if two
            # classes have the same number of rows.
            order.Epochs(class_rows, seed + zlib.crc32(name.encode()), batch_size, is_shuffled)
            for class_rows, name in zip(rows, names, strict=True)
        ]
        self._find_due, self._batch_size = find_due, batch_size
        self._seed, self._is_shuffled = seed, is_shuffled
        self._lock = threading.Lock()  # Several threads of tf.data call `take` at once.
        # `_due` counts the draws of each class before each block of `_PASSES` passes, as integers
        # in units of 1 / `_PARTS` draws. `_starts` counts the draws of all classes before each
        # pass.
        self._due = [np.zeros(len(rows), np.int64)]
        self._starts = np.zeros(1, np.int64)
        self._count_block = functools.lru_cache(maxsize=2)(self._count_passes)
        self._order_pass = functools.lru_cache(maxsize=2)(self._order_rows)

    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers at P positions in the batches of S steps, int64 [S * P]."""
        places = (steps[:, np.newaxis] * self._batch_size + positions).ravel()
        rows = np.zeros(len(places), np.int64)
        with self._lock:
            while self._starts[-1] <= places.max(initial=-1):
                self._add_block()
            passes = np.searchsorted(self._starts, places, side="right") - 1
            for number in np.unique(passes).tolist():
                mask = passes == number
                rows[mask] = self._order_pass(number)[places[mask] - self._starts[number]]
        return rows

    def _add_block(self) -> None:
        """Extend `_due` and `_starts` by the draws in the next `_PASSES` passes."""
        sums, counts = self._sum_due(len(self._due) - 1)
        self._due.append(sums[-1])
        self._starts = np.append(self._starts, counts[1:].sum(axis=1))

    def _sum_due(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Count each class's draws before each pass: in units of 1 / `_PARTS`, and rounded."""
        first = block * _PASSES
        parts = np.rint(self._find_due(first, first + _PASSES) * _PARTS).astype(np.int64)
        sums = np.cumsum(np.concatenate([self._due[block][np.newaxis], parts]), axis=0)
        return sums, (sums + _PARTS // 2) // _PARTS

    def _count_passes(self, block: int) -> np.ndarray:
        return self._sum_due(block)[1]

    def _order_rows(self, number: int) -> np.ndarray:
        """Return the row numbers of a pass, in the order of training."""
        block, offset = divmod(number, _PASSES)
        first, stop = self._count_block(block)[offset : offset + 2]
        rows = np.concatenate(
            [
                stream.find_rows(np.arange(*bounds))
                for stream, *bounds in zip(self._streams, first, stop, strict=True)
            ]
        )
        if not self._is_shuffled:
            return np.sort(rows)
        classes = np.repeat(np.arange(len(self._streams)), stop - first)
        # Assign the positions of the pass to the classes at random.
        place_classes = classes[order.permute(len(rows), self._seed, number)]
        pass_rows = np.zeros_like(rows)
        # The first position of a class gets its first row, and so on.
        pass_rows[np.argsort(place_classes, kind="stable")] = rows
        return pass_rows
