"""Divides large embedding tables into shards of rows, for several parameter servers.

distribution.Distribution.min_shard_bytes = 1 << 26          # by default

with sharding.Sharding(servers=4, min_bytes=1 << 26).cut_tables():
    table = sharding.create_table("embedding", [10_000_000, 16], initializer)   # 4 shards of 160 MB

A shard is a variable `<table>/part_<n>`; the shards are placed on the servers in turn. Patterns of
variables are compared with the name of the table, not with the names of its shards. A checkpoint
has the table as one tensor, so a run with a different number of shards can restore it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mtl import ambient
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs
from mtl.variables import patterns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding:
    """The rule for the number of shards of a table.

    Attributes:
      servers: the number of parameter servers.
      min_bytes: the least size of a shard in bytes.
    """

    servers: int
    min_bytes: int

    def count_shards(self, shape: Sequence[int], dtype: tf.DType) -> int:
        """Return the number of shards for a table.

        Args:
          shape: [rows, D].
          dtype: the type of the table.

        Returns:
          The number of shards: at most one for each server, for each row, and for each `min_bytes`
          of the table, but at least 1.
        """
        num_bytes = math.prod(shape) * dtype.size
        return max(1, min(self.servers, num_bytes // self.min_bytes, shape[0]))

    def cut_tables(self) -> contextlib.AbstractContextManager[object]:
        """Divide tables that are created in the context into shards."""
        return _change_tables(sharding=self)


def create_table(
    name: str, shape: Sequence[int], initializer: Callable[..., tf.Tensor]
) -> tf.Variable:
    """Create an embedding table in the open scope.

    The type is float32, unless `store_tables` sets another type.

    Args:
      name: the name.
      shape: [rows, D].
      initializer: a function that creates the initial values.

    Returns:
      A variable, or a partitioned variable for `tf.nn.embedding_lookup`.
    """
    sharding, dtype = _TABLES.get().sharding, _TABLES.get().dtype or tf.float32
    count = sharding.count_shards(shape, dtype) if sharding else 1
    partitioner = tf1.fixed_size_partitioner(count) if count > 1 else None
    with _change_tables(is_created=True, is_cut=count > 1):
        table = tf1.get_variable(name, shape, dtype, initializer, partitioner=partitioner)
    if dtype == tf.bfloat16:
        parts = [table] if count == 1 else list(table)
        names = _HALF.setdefault(graphs.outermost_graph(), set())
        names.update(map(patterns.shard_name, parts))
    return table


def is_half(variable: tf.Variable) -> bool:
    """Return True if a variable is an embedding table in bfloat16, or a shard of such a table."""
    if variable.dtype.base_dtype != tf.bfloat16:
        return False
    # A user's network may have other variables in bfloat16, whose gradients are also bfloat16.
    return patterns.shard_name(variable) in _HALF.get(graphs.outermost_graph(), ())


def store_tables(dtype: tf.DType) -> contextlib.AbstractContextManager[object]:
    """Set the type of tables that are created in the context.

    Args:
      dtype: the type, such as `tf.bfloat16`; variables that are not tables keep their type.
    """
    return _change_tables(dtype=dtype)


def is_table() -> bool:
    """Return True while an embedding table is being created."""
    return _TABLES.get().is_created


def table_name(name: str) -> str:
    """Return the name of a new variable; for a shard, the name of its table.

    Args:
      name: the name of a variable that is being created, such as "embedding/part_3".
    """
    return re.sub(r"/part_\d+$", "", name) if _TABLES.get().is_cut else name


# The names of the tables in bfloat16, by graph.
_HALF: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()


class _Tables(NamedTuple):
    """The settings of new embedding tables in the graph that is being built.

    Attributes:
      sharding: the rule for the number of shards; None for tables without shards.
      dtype: the type of the tables; None for float32.
      is_created: True while a table is being created.
      is_cut: True while a table with several shards is being created.
    """

    sharding: Sharding | None = None
    dtype: tf.DType | None = None
    is_created: bool = False
    is_cut: bool = False


def _change_tables(**values: Any) -> contextlib.AbstractContextManager[object]:
    return _TABLES.set(_TABLES.get()._replace(**values))


_TABLES: ambient.Ambient[_Tables] = ambient.Ambient("tables", default=_Tables())
