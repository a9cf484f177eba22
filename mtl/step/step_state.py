"""What one step keeps for the next: variables that are restored with the model and not trained.

count = step_state.create_variable("famo/count", np.zeros([1]))
step_state.assign_with_update(count, count.read_value() + 1)     # by UPDATE_OPS, before the update
"""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def create_variable(name: str, initial: np.ndarray) -> tf.Variable:
    """Return a variable of the scope, of the array's shape and type; the same in every replica."""
    # A graph would hold an array of zeros as it holds any other.
    is_zero = not initial.any()
    return tf1.get_variable(
        name,
        initial.shape,
        tf.as_dtype(initial.dtype),
        tf1.zeros_initializer() if is_zero else tf1.constant_initializer(initial),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def assign_with_update(kept: tf.Variable, value: tf.Tensor) -> None:
    """Assign a new value with the update of this step; one that is not finite is not kept."""
    if value.dtype.is_floating:
        is_finite = tf.reduce_all(tf.math.is_finite(value))
        value = tf.where(is_finite, value, kept.read_value())
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, kept.assign(value))
