"""Variables that grow with the rows of a metric, and can be used in replicas and branches.

start = buffers.read(used, tf.int64)
buffers.put(keys, start, end, values)            # keys[start:end] = values

In the scope of a distribution strategy, only raw ops on the handles of variables work both in
replicas and in the branches of `tf.cond`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtl.deferred import tf

LEAST_CAPACITY = 2**12
"""The initial capacity of a buffer, in rows."""


def read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the value of a variable.

    Args:
      handle: the resource handle of the variable.
      dtype: the type of the variable.
    """
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Replace the value of a variable.

    Args:
      handle: the resource handle of the variable.
      value: the new value, of the variable's type. The new value may be longer or shorter than the
        old value.

    Returns:
      The op that writes the value.
    """
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def put(handle: tf.Tensor, start: tf.Tensor, end: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Write rows [start, end).

    Args:
      handle: the resource handle of a variable with at least `end` rows.
      start: the index of the first row to write, an int64 scalar.
      end: the index after the last row to write, an int64 scalar.
      value: the rows to write, [end - start, ...].

    Returns:
      The op that writes the rows.
    """
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle, begin=[start], end=[end], strides=tf.ones([1], tf.int64), value=value
    )


def capacity(handle: tf.Tensor) -> tf.Tensor:
    """Return the capacity of a variable in rows, an int64 scalar."""
    return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]


def rows_state(width: int) -> tuple[tf.TensorSpec, ...]:
    """Return the state of a `metrics.Total` that collects rows of numbers, each row with a key.

    Args:
      width: how many numbers a row has.

    Returns:
      The specifications of three variables: keys int64 [C] and numbers float32 [C, width] for the
      capacity C, and the number of rows in use, an int64 scalar.
    """
    return (
        tf.TensorSpec([None], tf.int64),  # Keys.
        tf.TensorSpec([None, width], tf.float32),  # Numbers.
        tf.TensorSpec([], tf.int64),  # The number of rows in use.
    )


def append(state: Sequence[tf.Variable], keys: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    """Append rows to the three variables that `rows_state` specifies.

    If the new rows do not fit, the variables grow by half of their length.

    Args:
      state: the variables, in the order of `rows_state`.
      keys: the keys of the B new rows, int64 [B].
      rows: the numbers of the B new rows, float32 [B, width].

    Returns:
      The op that writes the rows.
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
        # Grow by a share of the size, so that copies take constant time per row on average.
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

    # Write the number of rows last, after the rows.
    return assign(size, tf.cond(end <= capacity(all_keys), add, grow))


def read_all(replicas: Sequence[Sequence[tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the rows of all replicas.

    Args:
      replicas: for each replica, the values of the variables of `rows_state`.

    Returns:
      The keys, int64 [N], and the numbers, float32 [N, width], of the N rows in use.
    """
    keys = tf.concat([keys[:size] for keys, _, size in replicas], 0)
    return keys, tf.concat([rows[:size] for _, rows, size in replicas], 0)
