"""The random order of rows that do not fit into memory: shuffles blocks, then rows in windows.

plan = windows.Plan(sizes=(65_536,) * 800, batch_size=512, window=500_000, seed=1)
places = plan.place(np.arange(4), np.arange(512))          # windows and rows of four batches
pieces = plan.list_pieces(epoch=0, window=3, lane=0)     # parts of blocks that hold these rows

In each epoch, the blocks of a split, such as row groups, are shuffled and divided among a few lanes
of equal length. A lane is a sequence of rows, which is cut into windows; the rows of each window
are shuffled. A batch takes the same number of rows from each of these sequences (lanes). So the
order of the rows depends only on the files, the batch size and a seed. Processes that share a batch
read different sequences of rows (lanes), and the batches are the same for any number of processes.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from mtl.data import order

# The maximum number of lanes, the sequences into which the rows are divided. If there are more
# processes than lanes, several processes read the same blocks.
_MOST_LANES = 16


class Piece(NamedTuple):
    """Consecutive rows of a block.

    Attributes:
      block: the number of the block in the split.
      start: the number of the first row in the block, from 0.
      stop: the row behind the last row.
    """

    block: int
    start: int
    stop: int


class Places(NamedTuple):
    """The positions of rows in lanes; a lane is a sequence of rows that is cut into windows.

    Attributes:
      epochs: int64 [...], the epoch of each row.
      windows: int64 [...], the number of the row's window in its lane, a sequence of rows.
      lanes: int64 [...], the number of the lane that contains the row.
      rows: int64 [...], the index of the row in the shuffled window.
    """

    epochs: np.ndarray
    windows: np.ndarray
    lanes: np.ndarray
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class Plan:
    """The order of the training rows.

    Attributes:
      sizes: the number of rows of each block.
      batch_size: the number of rows in a batch over all processes.
      window: the number of rows that are shuffled at a time, over all lanes (sequences of rows).
      seed: the seed of the random order of the rows.
      is_shuffled: False keeps the order of the rows.
    """

    sizes: tuple[int, ...]
    batch_size: int
    window: int
    seed: int
    is_shuffled: bool = True

    @functools.cached_property
    def num_lanes(self) -> int:
        """The number of lanes, into which the rows are divided: a divisor of the batch size.

        The number of lanes (sequences of rows) is limited so that a window of one lane has room
        for at least two blocks, because memory holds whole blocks even if a window is smaller.
        """
        # If the rows of a single block were divided among several lanes, every epoch would leave
        # out the same last rows.
        if not self.is_shuffled or len(self.sizes) == 1:
            return 1
        most = max(1, min(_MOST_LANES, self.window // (2 * max(self.sizes)), sum(self.sizes)))
        return max(lanes for lanes in range(1, most + 1) if self.batch_size % lanes == 0)

    @property
    def lane_rows(self) -> int:
        """The number of rows of each lane; an epoch leaves out up to `num_lanes - 1` rows."""
        return sum(self.sizes) // self.num_lanes

    @property
    def window_rows(self) -> int:
        """The maximum number of rows in a window of one lane, which is a sequence of rows."""
        return min(self.lane_rows, max(1, self.window // self.num_lanes))

    @property
    def num_windows(self) -> int:
        """The number of windows into which a lane (a sequence of rows) is cut in an epoch."""
        return -(-self.lane_rows // self.window_rows)

    def place(self, steps: np.ndarray, positions: np.ndarray) -> Places:
        """Find the lane (a sequence of rows), the window and the index in it of rows in batches.

        Args:
          steps: S steps, int64 [S].
          positions: P positions in a batch, int64 [P].

        Returns:
          The epoch, window, lane and index of each row, arrays [S, P].
        """
        # Each lane, a sequence of rows, fills an equal, consecutive part of every batch.
        share = self.batch_size // self.num_lanes
        lanes, within = np.divmod(positions, share)
        # A batch has `share` rows of each lane: the rows after the lane's rows in the previous
        # batch, even across epochs.
        epochs, places = np.divmod(steps[:, None] * share + within, self.lane_rows)
        windows, rows = np.divmod(places, self.window_rows)
        return Places(epochs, windows, np.broadcast_to(lanes, rows.shape), rows)

    def list_pieces(self, epoch: int, window: int, lane: int) -> list[Piece]:
        """Return the pieces of blocks that form a window of a lane (a sequence of rows).

        Args:
          epoch: the number of the pass, from 0.
          window: the number of the window in the epoch.
          lane: the number of the lane (a sequence of rows), from 0.
        """
        blocks, ends = self._deal(epoch)
        start = lane * self.lane_rows + window * self.window_rows
        stop = start + self.count_rows(window)
        pieces = []
        for index in range(int(np.searchsorted(ends, start, "right")), len(blocks)):
            block = int(blocks[index])
            first = int(ends[index]) - self.sizes[block]
            if first >= stop:
                break
            piece = Piece(block, max(start - first, 0), min(stop - first, self.sizes[block]))
            if piece.stop > piece.start:
                pieces.append(piece)
        return pieces

    def count_rows(self, window: int) -> int:
        """Return the number of rows in a window of one lane (a sequence of rows).

        Args:
          window: the number of the window in the epoch; the last window may be smaller than others.
        """
        return min(self.window_rows, self.lane_rows - window * self.window_rows)

    def mix(self, epoch: int, window: int, lane: int) -> np.ndarray:
        """Return a random order of the rows in one window of a lane (a sequence of rows).

        Args:
          epoch: the number of the pass, from 0.
          window: the number of the window in the epoch.
          lane: the number of the lane (a sequence of rows), from 0.

        Returns:
          A permutation, int64 [`count_rows(window)`].
        """
        count = self.count_rows(window)
        if not self.is_shuffled:
            return np.arange(count)
        place = (epoch * self.num_windows + window) * self.num_lanes + lane
        return order.permute(count, self.seed, place)

    def find_next(self, epoch: int, window: int) -> tuple[int, int]:
        """Return the window that follows a window, perhaps in the next epoch.

        Args:
          epoch: the number of the pass, from 0.
          window: the number of the window in the epoch.

        Returns:
          The epoch and the number of the next window.
        """
        return (epoch, window + 1) if window + 1 < self.num_windows else (epoch + 1, 0)

    @functools.cached_property
    def _deal(self):
        """A function from an epoch to the shuffled blocks, and to the end row of each block."""

        @functools.lru_cache(maxsize=2)
        def deal(epoch: int) -> tuple[np.ndarray, np.ndarray]:
            blocks = np.arange(len(self.sizes))
            if self.is_shuffled:
                # Blocks use negative epochs, because `mix` uses the numbers from 0 on, and equal
                # numbers would repeat an order.
                blocks = order.permute(len(blocks), self.seed, -1 - epoch)
            return blocks, np.cumsum(np.asarray(self.sizes, np.int64)[blocks])

        return deal
