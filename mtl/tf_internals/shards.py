"""Finds shards, which are variables with some of the rows of a larger variable.

shards.find_shard(variable)           # Shard(name="features/hashed_user/embedding", ..., first=500)

A partitioner of TensorFlow divides a variable into shards. A checkpoint has all shards as one
tensor, and the optimizer state of all shards as one tensor. The public API does not show whether a
variable is a shard.
"""

from __future__ import annotations

from typing import NamedTuple

from mtl.deferred import tf


class Shard(NamedTuple):
    """The whole variable of a shard, and the place of the shard in the whole variable.

    Attributes:
      name: the name of the whole variable.
      shape: the shape of the whole variable.
      first: the index of the shard's first row in the whole variable.
    """

    name: str
    shape: list[int]
    first: int


def find_shard(variable: tf.Variable) -> Shard | None:
    """Return the place of a shard in its whole variable; None if a variable is not a shard."""
    info = getattr(variable, "_save_slice_info", None)
    return Shard(info.full_name, list(info.full_shape), info.var_offset[0]) if info else None


def whole_shape(variable: tf.Variable) -> list[int]:
    """Return the shape of a variable; for a shard, the shape of the whole variable."""
    shard = find_shard(variable)
    return shard.shape if shard else variable.shape.as_list()
