"""Sources of the rows of a run."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from mtl import spec as spec_lib
from mtl.deferred import tf
from mtl.types import columns, values


class Reading(NamedTuple):
    """Settings by which a process reads the training batches.

    Attributes:
      statistics: the statistics of the training split.
      seed: the seed of draws, which also depend on the step.
      start_step: the global step at which training starts or continues.
      parts: the number of equal, consecutive parts into which this process cuts a batch.
      num_shards: the number of processes that each read a part of the data.
      shard: the index of this process among them, from 0.
    """

    statistics: columns.Statistics
    seed: int
    start_step: int = 0
    parts: int = 1
    num_shards: int = 1
    shard: int = 0


class Blocks(NamedTuple):
    """The rows of a split that lie in files, in blocks that are read by number.

    Attributes:
      sizes: the number of rows of each block; no block is empty.
      window: the number of rows that training keeps in memory and mixes at a time.
      read: returns {field: its values in the rows of a block}, in the forms of `mtl.data.packed`,
        given the number of the block, and the fields. Several threads may call it.
    """

    sizes: Sequence[int]
    window: int
    read: Callable[[int, Mapping[str, spec_lib.Field]], Mapping[str, Any]]


class RowOrder(Protocol):
    """The order in which training takes rows by number, without end."""

    @abc.abstractmethod
    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows in some batches.

        The numbers depend only on the settings, the step and the position. So any number of workers
        can share a batch, and a run can continue at any step.

        Args:
          steps: S steps that follow one another, int64 [S].
          positions: P positions in a batch, int64 [P].

        Returns:
          int64 [S * P], the rows of the first step first.
        """

    @property
    def pads(self) -> bool:
        """True if `take` may return ~row, for a copy of a row that only fills a batch."""
        return False

    def count_epochs(self, step: int) -> Mapping[str, float]:
        """Return {part of the rows, such as a source: the number of its epochs before a step}."""
        del step
        return {}

    def describe(self, steps: int) -> list[str]:
        """Return lines for the log that describe the order of the rows in `steps` steps."""
        del steps
        return []


class DecodeOnlyError(Exception):
    """Only `Source.decode` can tell the value of a row, or the mistake in it."""


class Source(Protocol):
    """Splits of raw records, with a fast way to decode them and a slow way to find errors."""

    @abc.abstractmethod
    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of a split in order, unbatched: lines, serialized protos or dicts.

        Raises:
          UserError: the split or its files do not exist.
        """

    @abc.abstractmethod
    def decode(
        self, batch: tf.Tensor | Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Turn a batch of raw records into tensors.

        Args:
          batch: raw records as `records` yields them, B of them in each tensor.
          spec: the fields to return.
          with_labels: False leaves out the labels, which the records may lack.

        Returns:
          {name: [B, ...]}; ragged for the shape (None,).

        Raises:
          UserError: when built, if the records lack a field or hold it in another type.
          InvalidArgumentError: when run, if a record is malformed; `scan` finds the record.
        """

    @abc.abstractmethod
    def scan(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterator[tuple[str, dict[str, values.PythonValue] | str]]:
        """Read every record in plain Python, to name the first bad one.

        Args:
          split: the split.
          spec: the fields to read.

        Yields:
          (location, {name: value}), or (location, the text of an error), such as ("a.csv line 3",
          ...).
        """

    @property
    def names_files(self) -> bool:
        """True if `decode` reads files that the records name, such as images."""
        return False

    def find_key_type(self, name: str) -> str:
        """Return the type in which splits read a field as a key: "string", or "int64".

        A source that does not read a column of whole numbers as texts needs "int64".
        """
        del name
        return "string"

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the records of a split in tensors [n, ...] of any n; None if only singly.

        Passes that only read use blocks, because single records cost microseconds each. Training
        uses `records`, unless it keeps all of them in memory.
        """
        del split
        return None

    def read_values(self, split: str, spec: spec_lib.Spec) -> Iterable[Mapping[str, Any]] | None:
        """Return all rows in turn, as maps {field: the values of some rows}; None without a way.

        The values have the forms of `mtl.data.packed`. `Pipeline.cache` keeps them in memory. The
        iterator may raise `DecodeOnlyError` after some rows; `decode` then reads all rows.
        """
        del split, spec
        return None

    def shard(self, split: str, num_shards: int, shard: int) -> Source | None:
        """Return a source of every `num_shards`-th file of a split, from the `shard`-th on.

        None if its files cannot be divided: then every worker reads all records and keeps its part.
        """
        del split, num_shards, shard
        return None

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the numbers of the rows of a split, int64 [N]; None if it reads only in order.

        A source that lists its rows has them in memory. Training mixes them all, and takes them by
        `take_rows`.
        """
        del split
        return None

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> Blocks | None:
        """Return the blocks of a split that does not lie in memory; None if it has no blocks.

        Training then mixes a window of rows at a time, and reads the next window meanwhile.
        """
        del split, spec
        return None

    @property
    def orders_rows(self) -> bool:
        """True if the source decides when and how often training takes each row, as a mixture.

        All its rows are then in memory.
        """
        return False

    @property
    def known_steps(self) -> int | None:
        """How many steps ahead the order is known, if losses of the training decide it, or None."""
        return None

    def order_rows(
        self, split: str, spec: spec_lib.Spec, *, batch_size: int, seed: int, is_shuffled: bool
    ) -> RowOrder | None:
        """Return the order in which training takes the rows of a split by `take_rows`.

        Training calls it if `orders_rows` is True; the result must then be an order, not None.

        Args:
          split: the split.
          spec: the fields that training reads.
          batch_size: the rows of a batch over all workers.
          seed: the seed of the order.
          is_shuffled: False keeps the order of the rows.
        """
        del split, spec, batch_size, seed, is_shuffled
        return None

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records, a batch for `decode`, of rows with these numbers, int64 [B]."""
        del split, rows
        return {}  # Training calls it only if the source has `list_rows` or `orders_rows`.


@runtime_checkable
class BatchSampler(Protocol):
    """A sampler that forms the training batches itself, such as whole groups."""

    def check(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification has the fields that it reads."""

    def require_room(self, statistics: columns.Statistics, rows: int) -> None:
        """Fail unless each unit of the training split, such as a group, fits into `rows` rows."""

    def form_batches(
        self,
        records: tf.data.Dataset,
        source: Source,
        spec: spec_lib.Spec,
        shuffle_buffer: int,
        seed: int,
        rows: int,
        parts: int,
    ) -> tf.data.Dataset:
        """Return endless batches of raw records, and which rows are real, [rows * parts].

        Args:
          records: the raw records in the order of the source.
          source: decodes the records.
          spec: the fields of a record.
          shuffle_buffer: the number of units, such as groups, that are mixed.
          seed: the order depends on it and on the epoch.
          rows: the number of rows in each part of a batch.
          parts: the number of equal parts into which a batch is cut.
        """
        ...


class RowSampler(Protocol):
    """A sampler that can order numbered rows by one of their fields.

    Training then starts at any step without a saved state, and its batches do not depend on the
    number of workers. The sampler reads a stream only if the source does not number its rows.
    """

    @property
    def order_field(self) -> str | None:
        """The field that decides the order, one value for each row; None if there is no field."""
        return None

    def order_by_field(
        self,
        rows: np.ndarray,
        values: np.ndarray,
        *,
        batch_size: int,
        parts: int,
        seed: int,
        is_shuffled: bool,
    ) -> RowOrder | None:
        """Return the order in which training takes the rows of a split.

        Training calls it if `order_field` is set; the result must then be an order, not None.

        Args:
          rows: the numbers of the rows of the split in order, int64 [N].
          values: the value of the field in each row, [N]; texts are bytes.
          batch_size: the rows of a batch over all workers.
          parts: the number of equal parts into which all workers cut a batch.
          seed: the seed of the order.
          is_shuffled: False keeps the order of the rows.
        """
        del rows, values, batch_size, parts, seed, is_shuffled
        return None
