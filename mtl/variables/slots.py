"""Finds the optimizer state and the average of a variable.

slots.list_slots(variable)               # variables named "<variable>/<slot>"
slots.find_first_value(slot)             # 0.1 of an accumulator of Adagrad
"""

from __future__ import annotations

import numpy as np

from mtl.deferred import tf, tf1
from mtl.variables import patterns


def list_slots(variable: tf.Variable) -> list[tf.Variable]:
    """Return the optimizer state and the average of a variable, or of a shard.

    Args:
      variable: a variable of the graph.

    Returns:
      All variables of the graph with names in the scope `<variable>/`, such as its pruning mask.
    """
    name = f"{patterns.shard_name(variable)}/"
    return [v for v in tf1.global_variables() if patterns.shard_name(v).startswith(name)]


def find_first_value(variable: tf.Variable) -> float:
    """Return the initial value of a slot's entries, such as 0.1 in Adagrad.

    Args:
      variable: a slot, `<variable>/<slot>`.

    Returns:
      The initial value if all entries start with the same constant; 0 for all other slots, and for
      trainable variables.
    """
    if "/" not in patterns.variable_name(variable) or variable.trainable:
        return 0.0
    # Copies on replicas have equal initial values.
    copy = tf.distribute.get_strategy().experimental_local_results(variable)[0]
    op = copy.initializer.inputs[1].op
    while op.type == "Identity":
        op = op.inputs[0].op
    value = tf.get_static_value(op.inputs[1] if op.type == "Fill" else op.outputs[0])
    return float(value.flat[0]) if value is not None and np.ptp(value) == 0 else 0.0
