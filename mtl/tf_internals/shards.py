"""Finds shards: variables that hold some rows of a larger variable.

shards.find_shard(variable)           # Shard(name="features/hashed_user/embedding", ..., first=500)

A partitioner cuts a variable into shards. TensorFlow saves all shards of a variable, and their
optimizer state, as one tensor. Its public API does not tell whether a variable is a shard.
"""

from __future__ import annotations

from typing import NamedTuple

from mtl.deferred import tf


class Shard(NamedTuple):
    """The place of a shard: the name and shape of the whole variable, and the first row."""

    name: str
    shape: list[int]
    first: int


def find_shard(variable: tf.Variable) -> Shard | None:
    """Return the place of a shard in the whole variable; None for a whole variable."""
    info = getattr(variable, "_save_slice_info", None)
    return Shard(info.full_name, list(info.full_shape), info.var_offset[0]) if info else None


def whole_shape(variable: tf.Variable) -> list[int]:
    """Return the shape of a variable; for a shard, the shape of the whole variable."""
    shard = find_shard(variable)
    return shard.shape if shard else variable.shape.as_list()
