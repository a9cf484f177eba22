"""Reads rows by number from files, with only a few blocks of rows in memory at a time.

rows = block_rows.BlockRows(spec.fields, blocks)       # for evaluation, as `memory_rows.Rows`
source = block_rows.Windowed(spec.fields, blocks)      # for training; reads the next rows ahead
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mtl import spec as spec_lib
from mtl import types
from mtl.data import memory_rows, packed, windows
from mtl.deferred import tf
from mtl.distribution import memory

# `BlockRows` keeps this number of blocks. Evaluation reads the blocks in order, but its threads may
# be a few blocks apart.
_BLOCKS = 4
# Memory holds the current window, the next window, and the blocks that fill the next window.
_WINDOWS = 3


class BlockRows:
    """Rows of a split, with only the latest few blocks in memory.

    Args:
      fields: {name: field}.
      blocks: the blocks of the split.
    """

    def __init__(self, fields: Mapping[str, spec_lib.Field], blocks: types.Blocks):
        self._fields, self._blocks = fields, blocks
        self._layout = memory_rows.Layout(fields)
        self._ends = np.cumsum(np.asarray(blocks.sizes, np.int64))
        self._rows_by_block: collections.OrderedDict[int, memory_rows.Rows] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()  # Several threads of tf.data call `take` at once.

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the values for row numbers, in the form of `memory_rows.Rows.take`."""

        def take(block: int, places: np.ndarray) -> list[np.ndarray]:
            start = self._ends[block] - self._blocks.sizes[block]
            return self._load(block).take(rows[places] - start)

        blocks = np.searchsorted(self._ends, rows, "right")
        return memory_rows.take_by_group(self._layout, blocks, take)

    def _load(self, block: int) -> memory_rows.Rows:
        with self._lock:
            if block not in self._rows_by_block:
                values = self._blocks.read(block, self._fields)
                self._rows_by_block[block] = memory_rows.Rows(self._layout, values)
                if len(self._rows_by_block) > _BLOCKS:
                    self._rows_by_block.popitem(last=False)
            self._rows_by_block.move_to_end(block)
            return self._rows_by_block[block]


class Windowed:
    """Makes training batches from a split that memory cannot hold, by windows of rows.

    Args:
      fields: {name: field}.
      blocks: the blocks of the split.
    """

    def __init__(self, fields: Mapping[str, spec_lib.Field], blocks: types.Blocks):
        self._fields, self._blocks = fields, blocks
        self._layout = memory_rows.Layout(fields)

    def take_batches(
        self,
        plan: windows.Plan,
        *,
        num_shards: int = 1,
        shard: int = 0,
        start_step: int = 0,
        together: int = 1,
    ) -> tf.data.Dataset:
        """Return an endless dataset of raw batches for `decode`.

        Args:
          plan: the order in which steps take the rows.
          num_shards: the number of processes, which get equal shares of every batch.
          shard: the index of this process, from 0.
          start_step: the step of the first batch.
          together: the number of steps whose rows an element contains, one step after the other.
        """
        size = plan.batch_size // num_shards
        positions = np.arange(size) + shard * size
        reader = _WindowReader(
            plan, self._layout, self._fields, self._blocks, positions, self._make_rows
        )

        def take(step: np.ndarray) -> list[np.ndarray]:
            return reader.take(int(step) + np.arange(together))

        # `Dataset.map` calls `read` one step at a time, not in parallel, because the windows of
        # rows have to be read in order.
        @tf.autograph.experimental.do_not_convert
        def read(step: tf.Tensor) -> dict[str, tf.Tensor]:
            arrays = tf.numpy_function(take, [step], self._layout.kinds, stateful=False)
            return {str(index): array for index, array in enumerate(arrays)}

        return tf.data.Dataset.range(start_step, tf.int64.max, together).map(read)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn a raw batch into the values of fields.

        Args:
          batch: an element of the dataset of `take_batches`, with B rows.
          spec: the fields to return, which are among the fields in memory.
          with_labels: False leaves out the labels.

        Returns:
          {name: [B, ...]}; ragged for lists.
        """
        values = self._unpack(batch)
        return {
            name: values[name] for name in (spec.fields if with_labels else spec.feature_fields)
        }

    def _unpack(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Return {name: [B, ...]} of all fields in memory."""
        return self._layout.unpack([batch[str(index)] for index in range(len(batch))], None)

    def _make_rows(self, values: Mapping[str, packed.Values]) -> memory_rows.Rows:
        """Return the rows of a window; only one thread calls this method, window by window."""
        return memory_rows.Rows(self._layout, values)

    def require_memory(self, where: str, plan: windows.Plan, num_shards: int) -> None:
        """Fail if the windows of a process need more memory than the process may use.

        Args:
          where: the name of the setting, with which the error message begins.
          plan: the order of the rows.
          num_shards: the number of processes, which share the rows of a window.

        Raises:
          UserError: the windows need more memory than the process may use.
        """
        rows = _WINDOWS * plan.num_lanes * plan.window_rows // num_shards + max(plan.sizes)
        size = rows * self._layout.row_bytes
        memory.require_memory(where, self._blocks.window, size, "Windows of rows take")


class _WindowReader:
    """Serves rows of the current window, while a thread reads the next window.

    Args:
      plan: the order in which steps take the rows.
      layout: the positions of the fields in memory.
      fields: {name: field}.
      blocks: the blocks of the split.
      positions: the positions in a batch whose rows this process reads, int64 [P].
      make_rows: a function from the values of a window, {field: values}, to its rows in memory.
    """

    def __init__(
        self,
        plan: windows.Plan,
        layout: memory_rows.Layout,
        fields: Mapping[str, spec_lib.Field],
        blocks: types.Blocks,
        positions: np.ndarray,
        make_rows: Callable[[Mapping[str, packed.Values]], memory_rows.Rows],
    ):
        self._plan, self._layout, self._fields, self._blocks = plan, layout, fields, blocks
        self._positions, self._make_rows = positions, make_rows
        self._lanes = np.unique(plan.place(np.zeros([1], np.int64), positions).lanes).tolist()
        self._starts = np.zeros([plan.num_lanes], np.int64)
        self._starts[self._lanes] = np.arange(len(self._lanes))
        # {block: values} of the blocks whose last rows belong to a later window.
        self._open_blocks: dict[int, dict[str, packed.Values]] = {}
        self._reading: dict[tuple[int, int], concurrent.futures.Future] = {}

    @functools.cached_property
    def _thread(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(max_workers=1)

    def take(self, steps: np.ndarray) -> list[np.ndarray]:
        """Return the values of the batches of `steps`, one step after the other."""
        places = self._plan.place(steps, self._positions)
        epochs, numbers, lanes, rows = (part.ravel() for part in places)

        def take(key: int, indices: np.ndarray) -> list[np.ndarray]:
            epoch, window = divmod(key, self._plan.num_windows)
            window_rows, permutations = self._wait(epoch, window)
            # `window_rows` holds the window of each lane (a sequence of rows) that this process
            # reads, lane after lane.
            starts = self._starts[lanes[indices]]
            places = starts * self._plan.count_rows(window)
            return window_rows.take(permutations[starts, rows[indices]] + places)

        keys = epochs * self._plan.num_windows + numbers
        return memory_rows.take_by_group(self._layout, keys, take)

    def _wait(self, epoch: int, window: int) -> tuple[memory_rows.Rows, np.ndarray]:
        """Return the rows of a window for each lane of rows, and their random orders."""
        key, following = (epoch, window), self._plan.find_next(epoch, window)
        current = self._reading.get(key) or self._thread.submit(self._read, *key)
        result = current.result()
        # The thread reads the next window while training takes the rows of this window. A single
        # thread reads all windows in order, because `_read` keeps the blocks that continue in the
        # next window.
        coming = self._reading.get(following) or self._thread.submit(self._read, *following)
        self._reading = {key: current, following: coming}
        return result

    def _read(self, epoch: int, window: int) -> tuple[memory_rows.Rows, np.ndarray]:
        parts, open_blocks = [], dict[int, dict[str, packed.Values]]()
        for lane in self._lanes:
            for piece in self._plan.list_pieces(epoch, window, lane):
                values = self._open_blocks.get(piece.block) or open_blocks.get(piece.block)
                values = values or dict(self._blocks.read(piece.block, self._fields))
                if piece.stop < self._plan.sizes[piece.block]:
                    open_blocks[piece.block] = values
                parts.append(
                    {
                        name: packed.cut(values[name], piece.start, piece.stop, field)
                        for name, field in self._fields.items()
                    }
                )
        self._open_blocks = open_blocks
        window_values = packed.join_fields(parts, self._fields)
        permutations = [self._plan.mix(epoch, window, lane) for lane in self._lanes]
        return self._make_rows(window_values), np.stack(permutations)
