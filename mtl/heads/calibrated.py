"""Calibrate logits by piecewise linear maps (knots) or by linear maps (lines).

logits = calibrated.calibrate(logits, 0, {"sex": ["Female"]}, features, where)  # in a head's scope
variable = calibrated.create("click", "lines", values)        # creates a variable of this head

`mtl.tools.calibration` computes knots and lines. Until `mtl.tools.calibration` has run, the maps of
logits are the identity. The maps use only plain ops, which every export format supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import types
from mtl.deferred import tf, tf1
from mtl.heads import slices as slices_lib

KNOTS = "knots"
"""The variable of (logit, calibrated logit) pairs: [K, 2], or [S + 1, K, 2] for S slices."""

LINES = "lines"
"""The variable of the slope and shift of each logit: [S + 1, 2, C] for S slices."""

# Initial knots cover logits from -8 to 8: probabilities from 0.0003 to 0.9997.
_REACH = 8.0


def calibrate(
    logits: tf.Tensor,
    num_knots: int,
    slices: Mapping[str, Sequence[Any]],
    features: types.Tensors,
    where: str,
) -> tf.Tensor:
    """Calibrate the logits of each row by the knots or by the line of the row's slice.

    The variable with the knots or lines has one entry for each slice of rows, and a last entry for
    rows outside of all slices. With knots, there is one logit for each row, and the map has slope 1
    below the first and above the last knot.

    Args:
      logits: the logits before the calibration, [B, C].
      num_knots: K; 0 for lines.
      slices: {feature: values}; if empty, all rows use the same knots.
      features: {field: [B, ...]}.
      where: the name of the setting with the slices, for error messages.

    Returns:
      Calibrated logits, [B, C].

    Raises:
      UserError: a field of a slice has several values in a row, or has another type than the values
        of the slices.
    """
    if not slices:
        return _bend_logits(logits, _create_knots([num_knots, 2])) if num_knots else logits
    indices = slices_lib.find_first(slices, features, where)
    count = len(slices_lib.list_slices(slices)) + 1
    if num_knots:
        return _bend_logits(logits, tf.gather(_create_knots([count, num_knots, 2]), indices))
    shape = [count, 2, logits.shape[-1]]
    # Slope 1 and shift 0 for each of the C logits, [S + 1, 2, C].
    identity = tf1.constant_initializer(np.broadcast_to([[1.0], [0.0]], shape))
    lines = tf1.get_variable(LINES, shape, tf.float32, identity, trainable=False)
    slopes, shifts = tf.unstack(tf.gather(lines, indices), axis=1)
    return logits * slopes + shifts


def _create_knots(shape: Sequence[int]) -> tf.Variable:
    places = np.linspace(-_REACH, _REACH, shape[-2])
    identity = np.broadcast_to(np.stack([places, places], axis=1), shape)
    return tf1.get_variable(
        KNOTS, shape, tf.float32, tf1.constant_initializer(identity), trainable=False
    )


def _bend_logits(logits: tf.Tensor, knots: tf.Tensor) -> tf.Tensor:
    """Map logits [B, 1] by knots: the same knots [K, 2] for all rows, or [B, K, 2]."""
    places, heights = knots[..., 0], knots[..., 1]
    starts, low = places[..., :-1], heights[..., :-1]
    widths, rises = places[..., 1:] - starts, heights[..., 1:] - low
    # Adding a share of each segment avoids the cancellation of large numbers.
    shares = tf.clip_by_value((logits - starts) / widths, 0.0, 1.0)  # [B, K - 1]
    shift = tf.reduce_sum(shares * (rises - widths), 1, keepdims=True)
    # For logits below the first knot, the shares of all segments are 0, so only the shift of the
    # first knot is added.
    return logits + (low - starts)[..., :1] + shift


def create(task: str, name: str, values: np.ndarray) -> tf.Variable:
    """Create the variable with the knots or lines of a task, in a graph that lacks its head.

    Args:
      task: the name of the head.
      name: the name of the variable, `KNOTS` or `LINES`.
      values: the initial value of the variable; the docstrings of `KNOTS` and `LINES` describe its
        shape.

    Returns:
      The variable, which is not trainable.
    """
    return tf1.get_variable(f"head/{task}/{name}", initializer=np.float32(values), trainable=False)
