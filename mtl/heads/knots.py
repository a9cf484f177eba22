"""A rising line with knots that maps logits to calibrated ones; `transfer.calibration` computes it.

logits = knots.bend(logits, num_knots)             # in the scope of the head
variable = knots.create("click", values)           # outside of a head, with its name and values

Without a calibration it changes nothing, to the bit. Beyond the first and the last knot its slope
is 1. It is made of plain ops, so that every format of an export can hold it.
"""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

_NAME = "knots"
_REACH = 8.0


def bend(logits: tf.Tensor, num_knots: int) -> tf.Tensor:
    """Map logits, [B, 1] -> [B, 1], by the variable `knots` [K, 2] of (logit, calibrated logit)."""
    even = np.linspace(-_REACH, _REACH, num_knots)
    initial = tf1.constant_initializer(np.stack([even, even], axis=1))
    found = tf1.get_variable(_NAME, [num_knots, 2], tf.float32, initial, trainable=False)
    given, calibrated = found[:, 0], found[:, 1]
    widths, rises = given[1:] - given[:-1], calibrated[1:] - calibrated[:-1]
    # How far a logit has come in each segment: a sum of these cancels no large numbers, however
    # steep a segment is.
    passed = tf.clip_by_value((logits - given[:-1]) / widths, 0.0, 1.0)  # [B, K - 1]
    moved = tf.reduce_sum(passed * (rises - widths), 1, keepdims=True)
    return logits + (calibrated[0] - given[0]) + moved


def create(task: str, values: np.ndarray) -> tf.Variable:
    """Create the knots of a task, with values [K, 2], in a graph that has none."""
    name = f"head/{task}/{_NAME}"
    return tf1.get_variable(name, initializer=np.float32(values), trainable=False)
