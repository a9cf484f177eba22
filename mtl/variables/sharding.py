"""Cuts embedding tables that exceed a parameter server's share by rows into shards.

distribution.Distribution.min_shard_bytes = 1 << 26          # by default

with sharding.Sharding(servers=4, min_bytes=1 << 26).cut_tables():
    table = sharding.create_table("embedding", [10_000_000, 16], initializer)   # 4 shards of 160 MB

A shard is a variable `<table>/part_<n>`; the shards lie on different servers in turn. Code that
chooses variables by name sees the table's name. A checkpoint holds the table as one tensor: it can
be restored with any number of shards, or without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import weakref
from collections.abc import Callable, Sequence

from mtl import ambient
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs
from mtl.variables import patterns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding:
    """The rule that cuts tables in the graph that is being built.

    Attributes:
      servers: the number of servers to spread a table over.
      min_bytes: the least size of a shard.
    """

    servers: int
    min_bytes: int

    def count_shards(self, shape: Sequence[int], dtype: tf.DType) -> int:
        """Return the number of shards of a table of this shape."""
        num_bytes = math.prod(shape) * dtype.size
        return max(1, min(self.servers, num_bytes // self.min_bytes, shape[0]))

    def cut_tables(self) -> contextlib.AbstractContextManager[Sharding | None]:
        """Cut the tables that are created inside it."""
        return _SHARDING.set(self)


def create_table(
    name: str, shape: Sequence[int], initializer: Callable[..., tf.Tensor]
) -> tf.Variable:
    """Return a variable, or several shards that `tf.nn.embedding_lookup` reads as one.

    It holds float32, unless `store_tables` sets another type.
    """
    sharding, dtype = _SHARDING.get(), _STORAGE.get() or tf.float32
    count = sharding.count_shards(shape, dtype) if sharding else 1
    with _IS_TABLE.set(True):
        if count == 1:
            table = tf1.get_variable(name, shape, dtype, initializer)
        else:
            with _IS_CUTTING.set(True):
                cut = tf1.fixed_size_partitioner(count)
                table = tf1.get_variable(name, shape, dtype, initializer, partitioner=cut)
    if dtype == tf.bfloat16:
        parts = [table] if count == 1 else list(table)
        names = _HALF.setdefault(graphs.outermost_graph(), set())
        names.update(map(patterns.shard_name, parts))
    return table


def is_half(variable: tf.Variable) -> bool:
    """Return True if a variable is a table of 16 bits, or a shard of such a table."""
    if variable.dtype.base_dtype != tf.bfloat16:
        return False
    # A user's network may have other variables of 16 bits, whose gradients also have 16 bits.
    return patterns.shard_name(variable) in _HALF.get(graphs.outermost_graph(), ())


def store_tables(dtype: tf.DType) -> contextlib.AbstractContextManager[tf.DType]:
    """Have tables that are created inside it hold numbers of this type."""
    return _STORAGE.set(dtype)


def is_table() -> bool:
    """Return True while a table is created; a step reads only some rows of a table."""
    return _IS_TABLE.get()


def table_name(name: str) -> str:
    """Return the name of the table that a new variable of this name belongs to."""
    return re.sub(r"/part_\d+$", "", name) if _IS_CUTTING.get() else name


_SHARDING: ambient.Ambient[Sharding | None] = ambient.Ambient("sharding", default=None)
# The names of tables of 16 bits, by graph.
_HALF: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()
_STORAGE: ambient.Ambient[tf.DType | None] = ambient.Ambient("storage", default=None)
_IS_TABLE = ambient.Ambient("is table", default=False)
_IS_CUTTING = ambient.Ambient("is cutting", default=False)
