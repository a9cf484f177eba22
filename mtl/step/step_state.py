"""State that lasts from step to step: variables that are saved and restored, but not trained.

count = step_state.create_variable("famo/count", np.zeros([1]))
step_state.assign_with_update(count, count.read_value() + 1)     # in UPDATE_OPS, before the update
"""

from __future__ import annotations

import numpy as np

from mtl.deferred import tf, tf1


def create_variable(name: str, initial: np.ndarray) -> tf.Variable:
    """Create a variable for state in the open scope; every replica has a copy.

    Args:
      name: the name of the variable in the open scope.
      initial: the initial value, with the shape and the type of the variable.

    Returns:
      A variable that is saved and restored, but not trained.
    """
    # A constant initializer stores every entry of the array in the graph, so zeros have a separate
    # initializer.
    is_zero = not initial.any()
    return tf1.get_variable(
        name,
        initial.shape,
        tf.as_dtype(initial.dtype),
        tf1.zeros_initializer() if is_zero else tf1.constant_initializer(initial),
        trainable=False,
        # All replicas compute the same new value. Without communication, each replica assigns the
        # new value to its own copy of the variable, and a checkpoint saves the first copy.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def assign_with_update(kept: tf.Variable, value: tf.Tensor) -> None:
    """Assign a new value with the update of this step; if it is not finite, keep the old value.

    Args:
      kept: a variable of `create_variable`.
      value: the new value, of the variable's shape and type.
    """
    if value.dtype.is_floating:
        is_finite = tf.reduce_all(tf.math.is_finite(value))
        # A NaN in the state would spread to every later step, even if the run skips the step that
        # caused the NaN.
        value = tf.where(is_finite, value, kept.read_value())
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, kept.assign(value))
