"""Shards: variables that together are a larger one, which a partitioner has cut by rows.

shards.find_shard(variable)           # Shard(name="features/hashed_user/embedding", ..., first=500)

TensorFlow saves shards, and the optimizer's state of them, as one tensor of that name. Which
variables these are it keeps to itself.
"""

from typing import NamedTuple

import tensorflow as tf


class Shard(NamedTuple):
    """Of what a variable is a part: its name and shape, and the first row that is in the part."""

    name: str
    shape: list[int]
    first: int


def find_shard(variable: tf.Variable) -> Shard | None:
    """Return what the variable is a shard of; None where it is whole."""
    info = getattr(variable, "_save_slice_info", None)
    return Shard(info.full_name, list(info.full_shape), info.var_offset[0]) if info else None


def whole_shape(variable: tf.Variable) -> list[int]:
    """Return the shape of the variable, or of the one that it is a shard of."""
    shard = find_shard(variable)
    return shard.shape if shard else variable.shape.as_list()
