"""Embedding tables of 16 bits, with look-ups in float32 and stochastic rounding of updates.

features.Hashed.storage = "bfloat16"

Gradients are float32, because sums over a batch need this precision. An updated row is rounded up
or down at random, so that the expected value is the exact value. Rounding to the nearest value
would lose small updates: bfloat16 has 8 bits of precision, and a change of less than half of the
last bit would have no effect.
"""

from __future__ import annotations

import functools
import zlib

from mtl.deferred import tf, tf1
from mtl.variables import moved, patterns, sharding

FLOAT32, BFLOAT16 = "float32", "bfloat16"
STORAGES = (FLOAT32, BFLOAT16)

_GATHER, _CAST = "GatherOfHalfTable", "CastOfHalfTable"
_LAST_16_BITS = 0xFFFF


def look_up(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Look up rows of a table.

    Args:
      table: a table [R, D] of float32 or bfloat16, whole or in shards.
      ids: the indices of rows, int64 [...].

    Returns:
      float32 [..., D]; the gradient of the table is float32, too.
    """
    if table.dtype.base_dtype != tf.bfloat16:
        return moved.add_to_rows(tf.nn.embedding_lookup(table, ids), table, ids)
    _register_gradients()
    names = {"ResourceGather": _GATHER, "Cast": _CAST}
    with tf1.get_default_graph().gradient_override_map(names):
        rows = tf.cast(tf.nn.embedding_lookup(table, ids), tf.float32)
    return moved.add_to_rows(rows, table, ids)


@functools.cache  # TensorFlow refuses to register a name twice.
def _register_gradients() -> None:
    tf.RegisterGradient(_CAST)(_cast_gradient)
    tf.RegisterGradient(_GATHER)(_gather_gradient)


def _cast_gradient(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Return the float32 gradient of the rows as it is, without a cast to 16 bits."""
    del op
    return upstream


def _gather_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.IndexedSlices | None]:
    """Return a float32 gradient for the table, and None for the ids."""
    table, ids = op.inputs
    shape = tf.raw_ops.VariableShape(input=table, out_type=tf.int64)
    values = tf.reshape(upstream, [-1, op.outputs[0].shape[-1]])
    return [tf.IndexedSlices(values, tf.reshape(ids, [-1]), shape), None]


def move_rows(variable: tf.Variable, change: tf.Tensor, indices: tf.Tensor) -> tf.Operation:
    """Subtract a change from rows of a table, with stochastic rounding for 16 bits.

    Args:
      variable: a table [R, D] of float32 or bfloat16.
      change: the change of the N rows, float32 [N, D].
      indices: the indices of N different rows.

    Returns:
      The op that subtracts the change from the rows of the table.
    """
    if not sharding.is_half(variable):
        return tf.group(variable.scatter_sub(tf.IndexedSlices(change, indices)))
    # Sort the rows, so that draws do not depend on how the batch is split into slices.
    order = tf.argsort(indices)
    indices, change = tf.gather(indices, order), tf.gather(change, order)
    rows = tf.cast(tf.gather(variable, indices), tf.float32) - change
    new_rows = round_at_random(rows, _make_seed(variable))
    return tf.group(variable.scatter_update(tf.IndexedSlices(new_rows, indices)))


def round_at_random(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Round numbers at random to one of the two nearest bfloat16 values, without bias.

    Rounding to the nearest value would lose changes below half of the distance between neighbouring
    values of bfloat16.

    Args:
      values: float32 of any shape.
      seed: the seed of the random numbers, int32 [2].

    Returns:
      bfloat16 of the same shape.
    """
    # A bfloat16 is the upper 16 bits of a float32. Let h be the lower 16 bits of the float32, 0 <=
    # h < 2^16. The sum of these lower bits h and a random number below 2^16 carries into the upper
    # 16 bits with a probability of h / 2^16.
    random_bits = tf.random.stateless_uniform(
        tf.shape(values), seed, minval=0, maxval=_LAST_16_BITS + 1, dtype=tf.int32
    )
    bits = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32) + random_bits, ~_LAST_16_BITS)
    return tf.cast(tf.bitcast(bits, tf.float32), tf.bfloat16)


def _make_seed(variable: tf.Variable) -> tf.Tensor:
    """Compute a seed, int32 [2], from the run's seed, the table's name and the step."""
    run_seed = tf1.get_default_graph().seed or 0
    name = patterns.shard_name(variable)
    table_seed = (run_seed ^ zlib.crc32(f"storage/{name}".encode())) & 0x7FFFFFFF
    step = tf1.train.get_global_step()
    return tf.stack([table_seed, tf.cast(step, tf.int32)])
