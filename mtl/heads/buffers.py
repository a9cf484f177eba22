"""Variables of totals that grow: reads and writes for every replica and branch.

start = buffers.read(used, tf.int64)
buffers.put(keys, start, end, values)            # keys[start:end] = values

Within the scope of a strategy, only ops on the handles of variables work the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtl.deferred import tf

LEAST_CAPACITY = 2**12
"""The first number of rows that a buffer has room for."""


def read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the value of a variable from its handle."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Assign a value, of any length."""
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def put(handle: tf.Tensor, start: tf.Tensor, end: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Write rows [start, end).

    Args:
      handle: the variable; it has room for the rows.
      start: the first row, an int64 scalar.
      end: the row after the last one, an int64 scalar.
      value: [end - start, ...].
    """
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle, begin=[start], end=[end], strides=tf.ones([1], tf.int64), value=value
    )


def capacity(handle: tf.Tensor) -> tf.Tensor:
    """Return the number of rows that a variable has room for, an int64 scalar."""
    return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]


def rows_state(width: int) -> tuple[tf.TensorSpec, ...]:
    """Return the state of a total that stores rows: a key and `width` numbers each."""
    return (
        tf.TensorSpec([None], tf.int64),  # Keys.
        tf.TensorSpec([None, width], tf.float32),  # Numbers.
        tf.TensorSpec([], tf.int64),  # How many rows are in use.
    )


def append(state: Sequence[tf.Variable], keys: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    """Append rows to the variables of `rows_state`.

    A full buffer gets room for half as many rows more.

    Args:
      state: the variables.
      keys: int64 [B].
      rows: float32 [B, width].

    Returns:
      The op that writes.
    """
    all_keys, all_rows, size = (variable.handle for variable in state)
    start = read(size, tf.int64)
    end = start + tf.size(keys, tf.int64)

    def add() -> tf.Tensor:
        with tf.control_dependencies(
            [put(all_keys, start, end, keys), put(all_rows, start, end, rows)]
        ):
            return tf.identity(end)

    def grow() -> tf.Tensor:
        # The buffer grows by a share of its size, so that copies cost a constant time for each row
        # on average.
        spare = tf.maximum(end // 2, LEAST_CAPACITY)
        longer = [
            assign(handle, tf.concat([read(handle, new.dtype)[:start], new, room], 0))
            for handle, new, room in (
                (all_keys, keys, tf.zeros([spare], tf.int64)),
                (all_rows, rows, tf.zeros([spare, rows.shape[1]])),
            )
        ]
        with tf.control_dependencies(longer):
            return tf.identity(end)

    # The size is written last, after the rows that it counts.
    return assign(size, tf.cond(end <= capacity(all_keys), add, grow))


def read_all(replicas: Sequence[Sequence[tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the keys [N] and the numbers [N, width] of all replicas."""
    keys = tf.concat([keys[:size] for keys, _, size in replicas], 0)
    return keys, tf.concat([rows[:size] for _, rows, size in replicas], 0)
