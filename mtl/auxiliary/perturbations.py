"""Perturbations of encoded columns: their norms, bounds, random draws and gradient ascent.

A perturbation is a map {column: change of its values, [B, ...]}. The perturbation of a row has a
single norm, over all perturbed columns. The random numbers of a row do not depend on micro-batches
and replicas.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from mtl import checks, types
from mtl.deferred import tf
from mtl.example_gradients import proof
from mtl.layers import precision
from mtl.step import draws

NORMS = ("l2", "max")


@dataclasses.dataclass(frozen=True)
class Space:
    """The space of perturbations of a batch: some columns, a norm, and bounds.

    Attributes:
      inputs: {column: [B, ...]}, all columns of the batch.
      columns: the names of the perturbed columns.
      norm: the norm of a row's perturbation: "l2", over all values, or "max", the largest absolute
        value.
      bounds: the least and the greatest value of a perturbed input; None for no bounds.
    """

    inputs: types.Tensors
    columns: Sequence[str]
    norm: str
    bounds: Sequence[float] | None = None

    def apply(self, perturbation: types.Tensors) -> dict[str, tf.Tensor]:
        """Add a perturbation to the inputs; gradients do not go through the perturbation.

        Args:
          perturbation: {column: [B, ...]}; columns without a perturbation may be left out.

        Returns:
          {column: [B, ...]}, all columns. Changed inputs stay within the bounds; an input that is
          already outside of the bounds does not move further out.
        """
        inputs = dict(self.inputs)
        for name, change in perturbation.items():
            values = self.inputs[name]
            # `proof.declare` says that each row of the change depends only on the same row of the
            # inputs. With `proof.declare`, `example_gradients` needs no rules for the ops that
            # compute the change.
            change = tf.stop_gradient(self._bound_change(values, change))
            inputs[name] = values + proof.declare(change)
        return inputs

    def _bound_change(self, values: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
        """Clip a change, so that the changed input is within the bounds."""
        if self.bounds is None:
            return change
        # An input that is outside of the bounds may stay there, but does not move further out.
        least, greatest = tf.minimum(self.bounds[0], values), tf.maximum(self.bounds[1], values)
        return tf.clip_by_value(values + change, least, greatest) - values

    def scale(self, directions: types.Tensors, size: tf.Tensor | float) -> dict[str, tf.Tensor]:
        """Scale the direction of each row to a given norm.

        Args:
          directions: the directions d in which the rows are changed, {column: [B, ...]}.
          size: the norm of each row's scaled direction, a scalar that is at least 0.

        Returns:
          The scaled directions `size d / |d|`, or `size sign(d)` for the norm "max"; 0 for a row
          with d = 0.
        """
        if self.norm == "max":
            return {name: size * tf.sign(values) for name, values in directions.items()}
        # The values are divided by the largest value first, so that squares neither overflow nor
        # underflow.
        greatest = self._over_row(directions, tf.abs, tf.reduce_max, tf.maximum)
        shrunk = self._scale_rows(
            directions, tf.math.divide_no_nan(tf.ones_like(greatest), greatest)
        )
        squares = self._over_row(shrunk, tf.square, tf.reduce_sum, tf.add)
        return self._scale_rows(
            shrunk, tf.math.divide_no_nan(size * tf.ones_like(squares), tf.sqrt(squares))
        )

    def project(self, perturbation: types.Tensors, size: float) -> dict[str, tf.Tensor]:
        """Project the perturbation of each row to a limited norm.

        Args:
          perturbation: {column: [B, ...]}.
          size: the largest norm of a row's perturbation. Perturbations with a norm of at most
            `size` do not change.

        Returns:
          {column: [B, ...]}.
        """
        if self.norm == "max":
            return {name: tf.clip_by_value(x, -size, size) for name, x in perturbation.items()}
        squares = self._over_row(perturbation, tf.square, tf.reduce_sum, tf.add)
        too_long = squares > size**2
        root = tf.sqrt(tf.where(too_long, squares, tf.ones_like(squares)))
        return self._scale_rows(perturbation, tf.where(too_long, size / root, tf.ones_like(root)))

    def differentiate(self, loss: tf.Tensor, inputs: types.Tensors) -> dict[str, tf.Tensor]:
        """Differentiate a loss by the perturbed columns.

        Args:
          loss: a scalar that depends on `inputs`.
          inputs: {column: [B, ...]}, the inputs of the forward pass that computes the loss.

        Returns:
          {column: gradient [B, ...]}, which further gradients treat as a constant; 0 if the column
          does not affect the loss.
        """
        sources = [inputs[name] for name in self.columns]
        # With `stop_gradient`, the perturbation is a constant, so TensorFlow computes no second
        # derivatives.
        zero = tf.UnconnectedGradients.ZERO
        with precision.pause_loss_scale():
            gradients = tf.gradients(loss, sources, unconnected_gradients=zero)
        return {
            name: tf.stop_gradient(tf.convert_to_tensor(gradient))
            for name, gradient in zip(self.columns, gradients, strict=True)
        }

    def draw_uniform(self, name: str, size: float) -> dict[str, tf.Tensor]:
        """Draw a perturbation with uniform values for the perturbed columns.

        Args:
          name: the name of the random draw, unique in the open variable scope.
          size: the limit of the absolute values, in the unit of the columns.

        Returns:
          {column: uniform values in [-size, size), [B, ...]}.
        """
        uniform = self._draw(name)
        return {column: size * (2 * values - 1) for column, values in uniform.items()}

    def draw_normal(self, name: str, stddev: float) -> dict[str, tf.Tensor]:
        """Draw noise from a normal distribution with mean 0, for the perturbed columns.

        Args:
          name: the name of the random draw, unique in the open variable scope.
          stddev: the standard deviation, in the unit of the columns.

        Returns:
          {column: [B, ...]}.
        """
        # Uniform draws are multiples of 2^-23. Half of 2^-23 is added, because the normal quantile
        # of 0 is infinite.
        uniform = self._draw(name)
        half = 2.0**-24
        return {
            c: stddev * tf.math.ndtri(tf.clip_by_value(x + half, half, 1 - half))
            for c, x in uniform.items()
        }

    def draw_start(self, name: str, size: float) -> dict[str, tf.Tensor]:
        """Draw a random perturbation with a norm of at most `size`.

        Args:
          name: the name of the random draw.
          size: the largest norm.

        Returns:
          {column: [B, ...]}, uniform in the cube for the norm "max", else uniform in the ball.
        """
        if self.norm == "max":
            return self.draw_uniform(name, size)
        direction = self.scale(self.draw_normal(name, 1.0), 1.0)
        total = sum(math.prod(self.inputs[column].shape[1:]) for column in self.columns)
        rows = count_rows(self.inputs[self.columns[0]])
        # The volume within a radius grows as radius^n in n dimensions, so the n-th root of a
        # uniform number gives points that are uniform in the ball.
        radius = size * draws.draw_rows(f"{name}/radius", rows, 1)[:, 0] ** (1 / total)
        return self._scale_rows(direction, radius)

    def _draw(self, name: str) -> dict[str, tf.Tensor]:
        numbers = {}
        for column in self.columns:
            values = self.inputs[column]
            size = math.prod(values.shape[1:])
            flat = draws.draw_rows(f"{name}/{column}", count_rows(values), size)
            numbers[column] = tf.reshape(flat, [-1, *values.shape[1:]])
        return numbers

    def _over_row(self, values, of_value, over_axes, of_two) -> tf.Tensor:  # type: ignore[no-untyped-def]
        """Reduce all values of each row, over all columns, to one number, [B]."""
        total = None
        for column in values.values():
            flat = tf.reshape(column, [-1, math.prod(column.shape[1:])])
            reduced = over_axes(of_value(flat), axis=1)
            total = reduced if total is None else of_two(total, reduced)
        return total

    def _scale_rows(self, values: types.Tensors, factors: tf.Tensor) -> dict[str, tf.Tensor]:
        """Multiply the values of each row by the row's factor; `factors` is [B]."""
        return {
            name: column * tf.reshape(factors, [-1] + [1] * (column.shape.rank - 1))
            for name, column in values.items()
        }


def count_rows(values: tf.Tensor) -> tf.Tensor | int:
    """Return the number of rows; a tensor if the static shape lacks this number."""
    return tf.shape(values)[0] if values.shape[0] is None else values.shape[0]


def choose_columns(where: str, columns: Sequence[str] | None, inputs: types.Tensors) -> list[str]:
    """Choose the columns to perturb.

    Args:
      where: the name of the setting, for error messages.
      columns: the names of encoded columns; None for all columns with numbers.
      inputs: {column: [B, ...]}.

    Returns:
      The names of the columns.

    Raises:
      UserError: a column is unknown or not encoded as floats, or there is no column of floats.
    """
    if columns is None:
        numeric = [name for name, values in inputs.items() if values.dtype.is_floating]
        rule = "find a column that is encoded as numbers"
        checks.require(bool(numeric), where, rule, list(inputs))
        return numeric
    for name in columns:
        checks.one_of(where, name, inputs)
        rule = "be encoded as floats, because an id cannot change gradually"
        checks.require(inputs[name].dtype.is_floating, where, rule, name)
    return list(columns)


@dataclasses.dataclass(frozen=True)
class Ascent:
    """Gradient ascent on the inputs within a ball, to maximise a value.

    Attributes:
      space: the space of perturbations.
      measure: a function from activations to the maximised value, which must be a sum over rows.
      step_size: the norm of a step of the ascent.
      epsilon: the largest norm of a perturbation.
    """

    space: Space
    measure: Callable[[types.Activations], tf.Tensor]
    step_size: float
    epsilon: float

    def unroll(
        self, activations: types.Activations, start: types.Tensors, steps: int
    ) -> Iterator[types.Activations]:
        """Yield the network's outputs at the start, and after each of `steps` steps of the ascent.

        Args:
          activations: the network's outputs for the inputs without a perturbation.
          start: {column: initial perturbation, [B, ...]}; {} for no perturbation.
          steps: the number of steps of the ascent.
        """
        perturbation = dict(start)
        at = activations.run(self.space.apply(perturbation)) if perturbation else activations
        yield at
        for _ in range(steps):
            perturbation = self._move_perturbation(at, perturbation)
            at = activations.run(self.space.apply(perturbation))
            yield at

    def run_loop(
        self, activations: types.Activations, start: types.Tensors, steps: int
    ) -> types.Activations:
        """Return the activations after the last step of the ascent, computed by a `tf.while_loop`.

        Gradients cannot go through this `tf.while_loop`.

        Args:
          activations: the network's outputs for the inputs without a perturbation.
          start: {column: initial perturbation, [B, ...]}; {} for no perturbation.
          steps: the number of steps of the ascent.
        """
        names, inputs = self.space.columns, self.space.inputs

        def body(step: tf.Tensor, *changes: tf.Tensor) -> list[tf.Tensor]:
            perturbation = dict(zip(names, changes, strict=True))
            perturbation = self._move_perturbation(
                activations.run(self.space.apply(perturbation)), perturbation
            )
            return [step + 1, *(perturbation[name] for name in names)]

        first = [start.get(name, tf.zeros_like(inputs[name])) for name in names]
        _, *last = tf.while_loop(
            lambda step, *_: step < steps,
            body,
            [tf.constant(0), *first],
            shape_invariants=[tf.TensorShape([]), *(inputs[name].shape for name in names)],
            parallel_iterations=1,
        )
        return activations.run(self.space.apply(dict(zip(names, last, strict=True))))

    def _move_perturbation(
        self, at: types.Activations, perturbation: types.Tensors
    ) -> dict[str, tf.Tensor]:
        """Take a step of the ascent: return the next perturbation."""
        directions = self.space.differentiate(self.measure(at), at.inputs)
        ascent = self.space.scale(directions, self.step_size)
        changes = {name: perturbation.get(name, 0.0) + ascent[name] for name in ascent}
        return self.space.project(changes, self.epsilon)
