"""Integrated gradients: the attribution of each encoded column to the prediction for one row.

paths = attributions.build_gradients(output, inputs)             # while the graph is built
found = attributions.explain_row(model, paths, rows, encoded, baseline, 3, place=0, steps=128)
found.columns, found.residual                    # {"categorical_job": 0.7, ...}, 0.002

M. Sundararajan, A. Taly, Q. Yan, "Axiomatic Attribution for Deep Networks", 2017, arXiv:1703.01365:
the attribution of an encoded number x_i, from a baseline b, is

    (x_i - b_i) mean over k of df/dx_i (b + (k - 1/2) / m (x - b)),     k = 1 ... m

The attribution of a column is the sum over its numbers. As m is finite, all attributions add up to
f(x) - f(b) minus a residual. The path goes through encoded columns, such as embeddings and
normalised numbers, as values between two ids do not exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import types
from mtl.deferred import tf, tf1
from mtl.tools.explaining import opened, outputs, rows, settings

# The largest accepted residual, as a share of the sum of the absolute attributions.
TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of a number that a head predicts, in the graph.

    Attributes:
      output: the output of the head.
      place: a placeholder: the index of one of the K numbers.
      value: this number, [B].
      gradients: {column: [B, ...]}, for columns that it depends on.
    """

    output: outputs.Output
    place: tf.Tensor
    value: tf.Tensor
    gradients: types.Tensors


@dataclasses.dataclass(frozen=True)
class Attribution:
    """The attributions of a prediction.

    Attributes:
      row: the index of the row.
      task: the task.
      name: the name of the class or of the number.
      scale: the scale of the values, such as "logit".
      value: the prediction for this row.
      start: the prediction for the baseline.
      columns: {column: its attribution}.
      details: {column: the attribution of each of its numbers, [D] or [H, W, C]}.
    """

    row: int
    task: str
    name: str
    scale: str
    value: float
    start: float
    columns: Mapping[str, float]
    details: Mapping[str, np.ndarray]

    @property
    def residual(self) -> float:
        """The difference of `value` and `start` minus the sum of the attributions."""
        return self.value - self.start - sum(self.columns.values())

    @property
    def is_complete(self) -> bool:
        """True if the residual is at most 1% of the sum of the absolute attributions.

        It may be larger by a millionth of the values, the precision of float32.
        """
        parts = sum(map(abs, self.columns.values()))
        rounding = 1e-6 * max(abs(self.value), abs(self.start))
        return abs(self.residual) <= TOLERANCE * parts + rounding


def build_gradients(output: outputs.Output, inputs: types.Tensors) -> Gradients | None:
    """Build the gradients of a head by the encoded columns; None if it depends on none of them.

    Args:
      output: the numbers of the head, [B, K].
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
    """
    # Fed, so that one gradient in the graph serves all K numbers.
    place = tf1.placeholder(tf.int32, [])
    value = tf.gather(output.explained, place, axis=1)  # [B, K] -> [B]
    columns = list(inputs.values())
    # A column may depend on another, as a history on its target: stop gradients between them.
    found = tf.gradients(tf.reduce_sum(value), columns, stop_gradients=columns)
    gradients = {
        column: tf.convert_to_tensor(gradient)
        for column, gradient in zip(inputs, found, strict=True)
        if gradient is not None
    }
    return Gradients(output, place, value, gradients) if gradients else None


def make_baseline(encoded: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return the baseline of {column: [N, ...]}: the mean of the rows, or zeros.

    Args:
      encoded: the encoded columns of N rows.
      kind: one of `settings.BASELINES`.

    Returns:
      {column: [...]}, without the axis of rows.
    """
    if kind == settings.ZEROS:
        return {column: np.zeros_like(values[0]) for column, values in encoded.items()}
    return {
        # In float64: float32 sums of many rows lose digits.
        column: values.mean(0, dtype=np.float64).astype(values.dtype)
        for column, values in encoded.items()
    }


def explain_row(
    model: opened.Opened,
    built: Gradients,
    held: rows.Rows,
    encoded: Mapping[str, np.ndarray],
    baseline: Mapping[str, np.ndarray],
    row: int,
    place: int,
    steps: int,
) -> Attribution:
    """Explain one number of a head for a row.

    Args:
      model: the model with the gradients.
      built: the gradients of the head.
      held: N rows.
      encoded: their encoded columns, {column: [N, ...]}.
      baseline: {column: [...]}.
      row: the index of the row.
      place: the index of one of the K numbers.
      steps: m, the points of the path.
    """
    # The middle of each of m intervals: the sum is closer to the integral than with their ends.
    path = (np.arange(steps) + 0.5) / steps
    sums = {column: np.zeros(baseline[column].shape) for column in built.gradients}
    # Points of the path are rows of a batch.
    for start in range(0, steps, model.batch_size):
        some = path[start : start + model.batch_size]
        # Fed columns replace the columns that the graph would encode from the fields.
        fed = _feed_path(model, held, encoded, baseline, row, some)
        found = model.session.run(dict(built.gradients), {**fed, built.place: place})
        for column, gradient in found.items():
            sums[column] += gradient.sum(0, dtype=np.float64)  # [B, ...] -> [...]
    details = {
        column: (encoded[column][row].astype(np.float64) - baseline[column]) * total / steps
        for column, total in sums.items()
    }
    ends = _feed_path(model, held, encoded, baseline, row, np.array([0.0, 1.0]))
    first, last = model.session.run(built.value, {**ends, built.place: place})
    output = built.output
    return Attribution(
        row=row,
        task=output.task,
        name=output.names[place],
        scale=output.scale,
        value=float(last),
        start=float(first),
        columns={column: float(each.sum()) for column, each in details.items()},
        details=details,
    )


def _feed_path(
    model: opened.Opened,
    held: rows.Rows,
    encoded: Mapping[str, np.ndarray],
    baseline: Mapping[str, np.ndarray],
    row: int,
    shares: np.ndarray,
) -> dict[Any, Any]:
    """Return the feed of a session for points between the baseline, at 0, and a row, at 1.

    Fields keep the values of the row, as heads may read them.
    """
    fed = model.feed(held.take([row] * len(shares)).features, {})
    for column, tensor in model.inputs.items():
        start = baseline[column].astype(np.float64)
        way = encoded[column][row] - start
        across = shares.reshape([-1, *[1] * start.ndim])  # [points, 1, ...]
        fed[tensor] = (start + across * way).astype(encoded[column].dtype)
    return fed


def choose_places(values: np.ndarray, names: Sequence[str], wanted: str | None) -> np.ndarray:
    """Return the index of the number to explain, [N, K] -> [N]: the largest number by default.

    Args:
      values: the numbers of N rows, [N, K].
      names: K names.
      wanted: the name to explain in all rows; None for the largest number of each row.
    """
    if wanted is not None:
        return np.full(len(values), list(names).index(wanted))
    return np.argmax(values, 1)
