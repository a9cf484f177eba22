"""Variables of a total that grow: what reads and writes them in every replica and branch alike.

start = buffers.read(used, tf.int64)
buffers.put(keys, start, end, values)            # keys[start:end] = values

Within the scope of a strategy only the handles of variables act alike, in branches too.
"""

import tensorflow as tf

LEAST_CAPACITY = 2**12
"""How many rows a buffer has room for at first."""


def read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the value of a variable, by its handle."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Assign a value, which may have another length."""
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def put(handle: tf.Tensor, start: tf.Tensor, end: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Write rows [start, end)."""
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle, begin=[start], end=[end], strides=tf.ones([1], tf.int64), value=value
    )


def capacity(handle: tf.Tensor) -> tf.Tensor:
    """Return how many rows there is room for, an int64 scalar."""
    return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]
