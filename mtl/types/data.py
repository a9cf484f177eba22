"""Protocols of sources of rows, and of samplers that order rows."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from mtl import spec as spec_lib
from mtl.deferred import tf
from mtl.types import columns, parts, values


class Reading(NamedTuple):
    """Settings with which a process reads training batches.

    Attributes:
      statistics: the statistics of the training split.
      seed: the seed of random draws, which also depend on the step.
      start_step: the global step at which training starts or continues.
      parts: the number of equal, consecutive parts into which this process cuts a batch.
      num_shards: the number of processes that each read a part of the data.
      shard: the index of this process, from 0, among the processes that each read a part of the
        data.
    """

    statistics: columns.Statistics
    seed: int
    start_step: int = 0
    parts: int = 1
    num_shards: int = 1
    shard: int = 0


class Blocks(NamedTuple):
    """The rows of a split in files, as numbered blocks that can be read in any order.

    Attributes:
      sizes: the number of rows of each block; no block is empty.
      window: the number of rows that training keeps in memory and shuffles at a time.
      read: a function of the number of a block and of fields, which returns {field: the values in
        the rows of the block} in the forms of `mtl.data.packed`. Several threads may call `read`.
      setting: the name of the setting for `window`, for messages.
    """

    sizes: Sequence[int]
    window: int
    read: Callable[[int, Mapping[str, spec_lib.Field]], Mapping[str, Any]]
    setting: str = "Arrow.window"


class RowOrder(Protocol):
    """The order in which training reads rows, as an endless sequence of row numbers."""

    @abc.abstractmethod
    def take(self, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows at given positions of the batches of given steps.

        Row numbers depend only on the settings, the step and the position, so any number of workers
        can share a batch, and a run can continue at any step.

        Args:
          steps: S steps that follow one another, int64 [S].
          positions: P positions in a batch, int64 [P].

        Returns:
          The numbers of the rows, int64 [S * P]; the rows of the first step come first.
        """

    @property
    def pads(self) -> bool:
        """True if `take` may return `~row`, which marks a copy of a row that only fills a batch."""
        return False

    def count_epochs(self, step: int) -> Mapping[str, float]:
        """Count the epochs that training reads before a step.

        Args:
          step: the global step before which epochs are counted.

        Returns:
          {part of the rows, such as a source: number of epochs}, with fractions; {} if the order
          does not divide the rows into parts.
        """
        del step
        return {}

    def describe(self, steps: int) -> list[str]:
        """Describe the order of the rows in a run.

        Args:
          steps: the number of steps of the run.

        Returns:
          Lines for the log; [] if there is nothing to say.
        """
        del steps
        return []


class DecodeOnlyError(Exception):
    """Raised if Python code cannot read a value as `Source.decode` does; `decode` then reads it."""


class Source(Protocol):
    """Reads the splits of a data set: decodes records fast in the graph, and locates errors."""

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
          with_labels: False omits the labels, so the records may lack labels.

        Returns:
          The fields, {name: [B, ...]}; a field of the shape (None,) is ragged.

        Raises:
          UserError: when built, if the records lack a field or hold it in another type.
          InvalidArgumentError: when run, if a record is malformed. `scan` finds the location of the
            malformed record.
        """

    @abc.abstractmethod
    def scan(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterator[tuple[str, dict[str, values.PythonValue] | str]]:
        """Read every record in plain Python, to locate the first malformed record.

        Args:
          split: the name of the split, such as "train".
          spec: the fields to read.

        Yields:
          (location, {name: value}), or (location, the text of an error). A location is, for
          example, "a.csv line 3".
        """

    @property
    def names_files(self) -> bool:
        """True if `decode` reads files that the records name, such as images."""
        return False

    def find_key_type(self, name: str) -> str:
        """Return the type in which a field is read if its values decide which rows are used.

        A source must return "int64" for whole numbers that it cannot read as texts.

        Args:
          name: the name of the field.

        Returns:
          The type of the field, "string" or "int64".
        """
        del name
        return "string"

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the records of a split in blocks of any size.

        Passes that read a split in order use blocks, because each single record costs microseconds.
        Training uses `records`, unless it keeps all records in memory.

        Args:
          split: the name of the split, such as "train".

        Returns:
          A dataset of the same records as `records`, in the same order, with tensors [n, ...] of
          any n; None if the source cannot read blocks.
        """
        del split
        return None

    def read_values(self, split: str, spec: spec_lib.Spec) -> Iterable[Mapping[str, Any]] | None:
        """Return all rows of a split in order, without `decode`.

        With `Pipeline.cache`, training reads the values of all rows once, and keeps them in memory.

        Args:
          split: the name of the split, such as "train".
          spec: the fields to read, features and labels.

        Returns:
          Maps {field: the values of several rows}, in the forms of `mtl.data.packed`; None if the
          source does not support `read_values`. The iterator may raise `DecodeOnlyError` after some
          rows; `decode` then reads all rows.
        """
        del split, spec
        return None

    def estimate_bytes(self, split: str) -> int | None:
        """Estimate the memory that the rows of a split take, without reading the rows.

        By default, training keeps the rows of small splits in memory: see `Pipeline.cache`.

        Args:
          split: the name of the split, such as "train".

        Returns:
          The number of bytes; None if it is unknown, such as for compressed images.
        """
        del split
        return None

    def shard(self, split: str, num_shards: int, shard: int) -> Source | None:
        """Return a source that reads only a part of the files of a split.

        Args:
          split: the name of the split, such as "train".
          num_shards: the number of parts.
          shard: the index of the part, from 0.

        Returns:
          A source of every `num_shards`-th file, from file number `shard` on. The result is None if
          the files cannot be divided. If the result is None, or the sizes of the shards differ by
          more than a quarter, every worker reads all records, and keeps every `num_shards`-th
          record.
        """
        del split, num_shards, shard
        return None

    def list_rows(self, split: str) -> np.ndarray | None:
        """List the numbers of the rows of a split.

        A source that lists rows must hold all rows in memory. If a source lists its rows, training
        shuffles all row numbers, and gets the rows from `take_rows`.

        Args:
          split: the name of the split, such as "train".

        Returns:
          The row numbers, int64 [N]; None if the rows have no numbers.
        """
        del split
        return None

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> Blocks | None:
        """Return the blocks of a split that is not in memory.

        If a source has blocks, training shuffles a window of rows at a time, and reads the next
        window meanwhile.

        Args:
          split: the name of the split, such as "train".
          spec: the fields to read.

        Returns:
          The blocks; None if the source has no blocks, or holds the split in memory.
        """
        del split, spec
        return None

    @property
    def orders_rows(self) -> bool:
        """True if the source decides when and how often training uses each row (`order_rows`).

        If True, all rows of the source must be in memory, as for a mixture of sources.
        """
        return False

    @property
    def known_steps(self) -> int | None:
        """The number of coming steps whose row order is fixed; None if the order never changes."""
        return None

    def order_rows(
        self, split: str, spec: spec_lib.Spec, *, batch_size: int, seed: int, is_shuffled: bool
    ) -> RowOrder | None:
        """Return the order in which training requests the rows of a split from `take_rows`.

        If `orders_rows` is True, training calls `order_rows`, which must not return None.

        Args:
          split: the name of the split, such as "train".
          spec: the fields that training reads.
          batch_size: the rows of a batch over all workers.
          seed: the seed of the order.
          is_shuffled: False keeps the order of the rows.

        Returns:
          The order of the rows; None if the source does not order rows.
        """
        del split, spec, batch_size, seed, is_shuffled
        return None

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records of some rows, as a batch for `decode`.

        Only sources with `list_rows` or `orders_rows` need `take_rows`.

        Args:
          split: the name of the split, such as "train".
          rows: row numbers, int64 [B], from `list_rows` or from the order of `order_rows`.

        Returns:
          Raw records as `records` yields them, B of them in each tensor, in the order of `rows`.
        """
        del split, rows
        return {}  # Only sources with `list_rows` or `orders_rows` need `take_rows`.


# {member of `Source`: the required members that it replaces}.
_SHORTCUTS = {
    "blocks": ("records",),
    "estimate_bytes": ("records", "decode"),
    "list_blocks": ("records", "decode"),
    "list_rows": ("records",),
    "read_values": ("records", "decode"),
}


def read_shortcut(source: Any, name: str) -> Callable[..., Any]:
    """Return a method of a source that replaces required methods, such as `read_values`.

    If a subclass redefines a required method, such as `decode`, but not the method that replaces
    it, such as `read_values`, the replacement would return other rows. In this case, the result is
    the default of `Source`, which returns None.

    Args:
      source: the source that may have the method.
      name: the name of the method: "blocks", "estimate_bytes", "list_blocks", "list_rows" or
        "read_values".
    """
    classes = type(source).__mro__
    # The most derived class that defines a method has the smallest index.
    places = {
        method: next((n for n, cls in enumerate(classes) if method in vars(cls)), len(classes))
        for method in (name, *_SHORTCUTS[name])
    }
    if any(places[method] < places[name] for method in _SHORTCUTS[name]):
        return functools.partial(getattr(Source, name), source)
    return parts.read_member(source, Source, name)


@runtime_checkable
class BatchSampler(Protocol):
    """A sampler that forms the training batches itself, such as whole groups."""

    def check(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification has the fields that the sampler reads.

        Args:
          spec: the fields of a record.

        Raises:
          UserError: a field is missing, or has another type or shape than the sampler needs.
        """

    def require_room(self, statistics: columns.Statistics, rows: int) -> None:
        """Fail if a unit of the training split, such as a group, exceeds a part of a batch.

        Args:
          statistics: the statistics of the training split.
          rows: the number of rows in each part of a batch.

        Raises:
          UserError: a unit, such as a group, has more rows than a part of a batch.
        """

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
        """Form endless batches of raw records.

        Args:
          records: the raw records in the order of the source.
          source: the source that decodes the records.
          spec: the fields of a record.
          shuffle_buffer: the number of units, such as groups, in the buffer for shuffling.
          seed: the seed of the order, which also depends on the epoch.
          rows: the number of rows in each part of a batch.
          parts: the number of equal parts into which a batch is cut.

        Returns:
          A dataset of pairs: a batch of raw records, and a mask [rows * parts] that is False for
          rows of padding.
        """
        ...


class RowSampler(Protocol):
    """A sampler that can order numbered rows by the values of a field.

    If rows have an order, training can start at any step without a saved state, and batches do not
    depend on the number of workers. If the source does not number its rows, the sampler reads a
    stream of records instead.
    """

    @property
    def order_field(self) -> str | None:
        """The field whose values decide the order of rows; None without such a field."""
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

        If `order_field` is set, training calls `order_by_field`, which must not return None.

        Args:
          rows: the numbers of the rows of the split in order, int64 [N].
          values: the value of the field in each row, [N]; texts are bytes.
          batch_size: the rows of a batch over all workers.
          parts: the number of equal parts into which all workers cut a batch.
          seed: the seed of the order.
          is_shuffled: False keeps the order of the rows.

        Returns:
          The order of the rows; None if the sampler has no `order_field`.
        """
        del rows, values, batch_size, parts, seed, is_shuffled
        return None
