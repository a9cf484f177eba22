"""Shards: variables that together are a larger one, which a partitioner has cut by rows.

shards.find_shard(variable)           # Shard(name="features/hashed_user/embedding", ..., first=500)

TensorFlow saves shards, and the optimizer's state of them, as one tensor of that name. Its public
API does not name the shards.
"""

from __future__ import annotations

from typing import NamedTuple

from mtl.deferred import tf


class Shard(NamedTuple):
    """Name and shape of the whole variable, and the first row of this part of it."""

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
