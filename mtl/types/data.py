"""Where the rows of a run come from."""

import abc
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import tensorflow as tf

from mtl import spec as spec_lib
from mtl.types import columns, values


class Reading(NamedTuple):
    """How one process reads the batches of a training.

    Attributes:
      statistics: what was learned of the training split.
      seed: what draws depend on, beside the step.
      start_step: the global step from which training goes on.
      parts: into how many equal parts, one after the other, this process cuts a batch.
      num_shards: how many processes read a part of the data each.
      shard: which of them this is.
    """

    statistics: columns.Statistics
    seed: int
    start_step: int = 0
    parts: int = 1
    num_shards: int = 1
    shard: int = 0


class Source(Protocol):
    """Splits of raw records, a fast way to decode them and a slow way to find what is wrong."""

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
        """Turn a batch of raw records into {name: [B, ...]}, ragged for the shape (None,).

        Raises:
          UserError: when built, if the records lack a field or hold it in another type.
          InvalidArgumentError: when run, if a record is malformed; `scan` tells which.
        """

    @abc.abstractmethod
    def scan(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterator[tuple[str, dict[str, values.PythonValue] | str]]:
        """Yield every record in plain Python: (location, {name: value} or what is wrong)."""

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the same records, many in a tensor, [n, ...] of any n; None for one by one.

        Passes that only read take these: one by one, a record costs microseconds on its way to a
        batch. A training takes `records`, unless it keeps all of them in memory.
        """
        del split
        return None

    def shard(self, split: str, num_shards: int, shard: int) -> "Source | None":
        """Return a source of every `num_shards`-th file of a split, from the `shard`-th on.

        None where files cannot be dealt so: then every worker reads all records and keeps its own.
        """
        del split, num_shards, shard
        return None
