"""Computes integrated gradients: how much each encoded column adds to a prediction.

paths = attributions.build_gradients(output, inputs)             # while the graph is built
result = attributions.explain_row(model, paths, rows, encoded, baseline, 3, place=0, steps=128)
result.columns, result.residual                  # {"categorical_job": 0.7, ...}, 0.002

M. Sundararajan, A. Taly, Q. Yan, "Axiomatic Attribution for Deep Networks", 2017, arXiv:1703.01365:
for a prediction f, the attribution of an encoded number x_i, from a baseline b, is

    (x_i - b_i) mean over k of df/dx_i (b + (k - 1/2) / m (x - b)),     k = 1 ... m

The attribution of a column is the sum of the attributions of its encoded numbers. Because the mean
has only m points, the sum of all attributions differs from f(x) - f(b) by a residual. The path from
the baseline b to the row x goes through encoded columns, such as embeddings and normalised numbers,
because there are no values between two ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import types
from mtl.deferred import tf, tf1
from mtl.tools.explaining import opened, outputs, rows, settings

# The largest residual of a reliable result, as a share of the sum of the absolute attributions.
TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The tensors that compute the gradients of one number that a head predicts.

    Attributes:
      output: the numbers that the head predicts.
      place: a placeholder for the index, in [0, K), of the number to explain.
      value: the number to explain, for each row, [B].
      gradients: {column: [B, ...]}, for the encoded columns that affect the number to explain.
    """

    output: outputs.Output
    place: tf.Tensor
    value: tf.Tensor
    gradients: types.Tensors


@dataclasses.dataclass(frozen=True)
class Attribution:
    """The attributions of the encoded columns to one prediction.

    Attributes:
      row: the index of the row.
      task: the name of the task.
      name: the name of the predicted class or number.
      scale: the scale of the prediction, such as "logit".
      value: the prediction for the row.
      start: the prediction for the baseline of all columns.
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
        """The residual: `value` minus `start`, minus the sum of the attributions."""
        return self.value - self.start - sum(self.columns.values())

    @property
    def is_complete(self) -> bool:
        """True if the residual is at most 1% of the sum of the absolute attributions.

        A residual up to a millionth of the predictions is always allowed, because float32 is not
        more precise.
        """
        parts = sum(map(abs, self.columns.values()))
        rounding = 1e-6 * max(abs(self.value), abs(self.start))
        return abs(self.residual) <= TOLERANCE * parts + rounding


def build_gradients(output: outputs.Output, inputs: types.Tensors) -> Gradients | None:
    """Build the gradients of a head's predictions with respect to the encoded columns.

    Args:
      output: the numbers that the head predicts, [B, K].
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.

    Returns:
      The tensors that compute the gradients; None if no column affects the predictions.
    """
    # The index is a placeholder, so that the graph needs only one gradient for all K numbers.
    place = tf1.placeholder(tf.int32, [])
    value = tf.gather(output.explained, place, axis=1)  # [B, K] -> [B]
    columns = list(inputs.values())
    # A column may read another column, as a history reads its target: stop
    # gradients between columns.
    derivatives = tf.gradients(tf.reduce_sum(value), columns, stop_gradients=columns)
    gradients = {
        column: tf.convert_to_tensor(gradient)
        for column, gradient in zip(inputs, derivatives, strict=True)
        if gradient is not None
    }
    return Gradients(output, place, value, gradients) if gradients else None


def make_baseline(encoded: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Compute a baseline for each column: the mean over the rows, or zeros.

    Args:
      encoded: the encoded columns of N rows, {column: [N, ...]}.
      kind: one of `settings.BASELINES`.

    Returns:
      {column: its baseline, [...]}; unlike an encoded column, a baseline has no axis of rows.
    """
    if kind == settings.ZEROS:
        return {column: np.zeros_like(values[0]) for column, values in encoded.items()}
    return {
        # Add up in float64, because float32 sums over many rows lose digits.
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
    """Compute the attributions for one number that a head predicts for a row.

    Args:
      model: the opened model, whose graph contains the tensors `built`.
      built: the tensors of the gradients.
      held: N rows, one of which is explained.
      encoded: the encoded columns of the N rows, {column: [N, ...]}.
      baseline: the start of the path to the row, {column: [...]}.
      row: the index of the row to explain, in [0, N).
      place: the index of the number to explain among the K numbers that the head predicts.
      steps: the number m of points on the path from the baseline to the row.
    """
    # Use the midpoints of m intervals: their sum is closer to the integral
    # than a sum of end points.
    path = (np.arange(steps) + 0.5) / steps
    sums = {column: np.zeros(baseline[column].shape) for column in built.gradients}
    # Compute with the points of the path in place of the rows of a batch.
    for start in range(0, steps, model.batch_size):
        shares = path[start : start + model.batch_size]
        # Feed encoded columns: they replace the columns that the graph would compute from fields.
        feed = _feed_path(model, held, encoded, baseline, row, shares)
        derivatives = model.session.run(dict(built.gradients), {**feed, built.place: place})
        for column, gradient in derivatives.items():
            sums[column] += gradient.sum(0, dtype=np.float64)  # [B, ...] -> [...]
    details = {
        column: (encoded[column][row].astype(np.float64) - baseline[column]) * total / steps
        for column, total in sums.items()
    }
    ends = _feed_path(model, held, encoded, baseline, row, np.array([0.0, 1.0]))
    at_start, at_row = model.session.run(built.value, {**ends, built.place: place})
    output = built.output
    return Attribution(
        row=row,
        task=output.task,
        name=output.names[place],
        scale=output.scale,
        value=float(at_row),
        start=float(at_start),
        columns={column: float(values.sum()) for column, values in details.items()},
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
    """Return the feed of a session for points on the path from the baseline (0) to a row (1).

    All fields keep the values of the row, because heads may read fields.
    """
    feed = model.feed(held.take([row] * len(shares)).features, {})
    for column, tensor in model.inputs.items():
        start = baseline[column].astype(np.float64)
        difference = encoded[column][row] - start
        factors = shares.reshape([-1, *[1] * start.ndim])  # [points, 1, ...]
        feed[tensor] = (start + factors * difference).astype(encoded[column].dtype)
    return feed


def choose_places(values: np.ndarray, names: Sequence[str], name: str | None) -> np.ndarray:
    """Choose for each row which of the K numbers of a head to explain.

    Args:
      values: the numbers of N rows, [N, K].
      names: the names of the K numbers that the head predicts.
      name: the name of the number to explain in all rows; None for the largest number of each row.

    Returns:
      The index of the number to explain in each row, [N].
    """
    if name is not None:
        return np.full(len(values), list(names).index(name))
    return np.argmax(values, 1)
