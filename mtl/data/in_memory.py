"""A source that keeps the decoded rows of another source in memory.

rows = in_memory.InMemory(csv.Csv(files=...), spec)
rows.list_rows("train")                     # [N]; a process reads the split once

`Pipeline.cache` uses this source. If all rows are in memory, training needs no saved state for the
order of the rows: see `mtl.data.order`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mtl import spec as spec_lib
from mtl import types
from mtl.data import memory_rows, packed
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.distribution import memory

KEPT = "the rows that Pipeline.cache keeps"  # The place of a row in error messages.
_MOST_BYTES = 1 << 29
# At most `_ROWS` rows, or about `_BYTES` bytes, are decoded at once.
_ROWS, _BYTES = 4096, 2**25


def is_small(size: int | None) -> bool:
    """Return True if training keeps rows of this size in memory by default.

    Args:
      size: the bytes of the rows, from `types.Source.estimate_bytes`.
    """
    return size is not None and size < _MOST_BYTES


class InMemory(types.Source):
    """A source that decodes the rows of another source once, and keeps them in memory.

    Args:
      source: the source that reads and decodes the rows.
      spec: the fields of the rows.
    """

    def __init__(self, source: types.Source, spec: spec_lib.Spec):
        self._source, self._spec = source, spec
        self._layout = memory_rows.Layout(spec.fields)
        self._rows_by_split: dict[str, memory_rows.Rows] = {}
        self._lock = threading.Lock()  # Several threads of tf.data call `_load` at once.
        self._splits: list[str] = []

    def list_rows(self, split: str) -> np.ndarray:
        """Return the row numbers of a split, int64 [N].

        Raises:
          UserError: the rows do not fit into memory.
          InvalidArgumentError: a record is malformed.
        """
        return np.arange(len(self._load(split)))

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records for row numbers, int64 [B]."""
        if split not in self._splits:
            self._splits.append(split)
        number = tf.constant(self._splits.index(split), tf.int64)
        return {"split": tf.fill(tf.shape(rows), number), "row": rows}

    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of a split in order."""
        rows = tf.data.Dataset.from_tensor_slices(self.list_rows(split))
        return rows.map(lambda row: self.take_rows(split, row))

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn row numbers [B] into the values of fields, {name: [B, ...]}."""
        values = self._take(batch)
        return {
            name: values[name] for name in (spec.fields if with_labels else spec.feature_fields)
        }

    def _take(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Return {name: [B, ...]} of all fields in memory for row numbers [B]."""

        def load(number: int) -> memory_rows.Rows:
            return self._load(self._splits[number])

        return memory_rows.take(self._layout, load, batch["split"], batch["row"])

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row, as the inner source does."""
        return self._source.scan(split, spec)

    def _load(self, split: str) -> memory_rows.Rows:
        """Return the rows of a split; the first call decodes all rows."""
        with self._lock:
            if split not in self._rows_by_split:
                self._rows_by_split[split] = self._read(split)
            return self._rows_by_split[split]

    def _read(self, split: str) -> memory_rows.Rows:
        values = read_split(self._source, split, self._spec, (KEPT, split))
        return memory_rows.Rows(self._layout, values)


def read_split(
    source: types.Source, split: str, spec: spec_lib.Spec, setting: tuple[str, Any]
) -> dict[str, packed.Values]:
    """Return the values of all rows of a split, {field: its values in N rows}.

    Args:
      source: the source that reads and decodes the rows.
      split: the name of the split, such as "train".
      spec: the specification of the fields to read.
      setting: the name and the value of the setting that keeps rows in memory, for errors.

    Raises:
      UserError: the rows do not fit into memory.
      InvalidArgumentError: a record is malformed.
    """
    blocks = types.read_shortcut(source, "read_values")(split, spec)
    if blocks is not None:
        with contextlib.suppress(types.DecodeOnlyError):
            return join_blocks(split, spec.fields, blocks, setting)
    return join_blocks(split, spec.fields, _decode_blocks(source, split, spec), setting)


def join_blocks(
    split: str,
    fields: Mapping[str, spec_lib.Field],
    blocks: Iterable[Mapping[str, Any]],
    setting: tuple[str, Any],
) -> dict[str, packed.Values]:
    """Return {field: its values in all rows of a split}.

    Args:
      split: the name of the split, such as "train".
      fields: {name: field}.
      blocks: the consecutive blocks of the split, each as {field: its values in the rows of the
        block}.
      setting: the name and the value of the setting that keeps rows in memory, for errors.

    Raises:
      UserError: the rows do not fit into memory.
    """
    parts: dict[str, list[Any]] = {name: [] for name in fields}
    size = 0
    for block in blocks:
        for name in parts:
            parts[name].append(block[name])
            size += block[name].nbytes
        memory.require_memory(*setting, size, f"Split {split!r} takes")
    # Join one field after the other, because its values are in memory twice while they are joined.
    return {name: packed.join(parts.pop(name), field) for name, field in fields.items()}


def _decode_blocks(
    source: types.Source, split: str, spec: spec_lib.Spec
) -> Iterator[dict[str, packed.Values]]:
    """Yield the decoded values of all rows, block by block: {field: values in the block}."""
    for block in source_lib.iterate(lambda: _decode_all(source, split, spec)):
        if isinstance(block, Exception):
            raise block
        yield {name: packed.pack(values) for name, values in block.items()}


def _decode_all(source: types.Source, split: str, spec: spec_lib.Spec) -> tf.data.Dataset:
    """Return a dataset of the decoded rows of a split, in blocks {name: [n, ...]}."""
    row = sum(field.size * 8 for field in spec.fields.values() if not field.is_ragged)
    rows = max(1, min(_ROWS, _BYTES // max(row, 1)))

    # AutoGraph is off, because it would change the errors that sources raise.
    @tf.autograph.experimental.do_not_convert
    def decode(*batch: Any) -> dict[str, Any]:
        return source.decode(batch[0], spec, True)

    batches = source_lib.read_batches(source, split, rows)
    return batches.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
