"""Clipping with adaptive bounds: by the norms of weights, or by the norms of past gradients.

from mtl.optimization import adaptive_clipping
update.Update.clipping = @adaptive_clipping.AGC()
update.Update.clipping = @adaptive_clipping.AutoClip()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.optimization import clipping
from mtl.step import gradients as gradients_lib
from mtl.step import step_state
from mtl.variables import patterns


@checks.dataclass
class AGC:
    """Adaptive gradient clipping: bounds the gradient of each unit by the norm of its weights.

    `g_i <- g_i * min(1, max_ratio * max(|w_i|, least_norm) / |g_i|)` for every unit i.

    A. Brock, S. De, S. L. Smith, K. Simonyan, "High-Performance Large-Scale Image Recognition
    Without Normalization", 2021, arXiv:2102.06171. A unit i consists of the weights of one output:
    a column of a dense kernel, a filter of a convolution, or a row of an embedding table. Each
    bias, scale and offset variable is one unit, as in the authors' code.

    Attributes:
      max_ratio: the largest ratio of a gradient's norm to the norm of the weights, above 0. The
        paper uses ratios from 0.01 for large batches to 0.16 for small batches.
      least_norm: a lower bound for the norm of the weights, above 0. Without this lower bound, a
        unit whose weights are 0 could not change.
      skipped: patterns (see `mtl.variables.patterns`) of variables that are not clipped; by default
        the last layer of every head, as the paper recommends.
    """

    max_ratio: checks.Bound = 0.01
    least_norm: checks.Positive = 1e-3
    skipped: Annotated[Sequence[str], patterns.check_patterns] = ("^head/",)

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del norm
        return [
            gradient
            if any(patterns.matches(pattern, variable) for pattern in self.skipped)
            else self._clip_gradient(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    def _clip_gradient(
        self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable
    ) -> tf.Tensor | tf.IndexedSlices:
        if isinstance(gradient, tf.IndexedSlices):
            weights = tf.gather(variable, gradient.indices)
            # Each looked-up row, along the first axis, is a unit.
            axes = list(range(1, weights.shape.rank))
            values = self._bound_values(gradient.values, weights, axes)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        rank = gradient.shape.rank
        # Norms are taken over all axes except the last axis, whose entries are the units. A bias
        # has a single axis, and is one unit.
        axes = list(range(max(rank - 1, min(rank, 1))))
        return self._bound_values(gradient, tf.convert_to_tensor(variable), axes)

    def _bound_values(
        self, values: tf.Tensor, weights: tf.Tensor, axes: Sequence[int]
    ) -> tf.Tensor:
        norms, weight_norms = (_measure_units(entries, axes) for entries in (values, weights))
        scale = clipping.find_factor(
            norms, self.max_ratio * tf.maximum(weight_norms, self.least_norm)
        )
        return values * tf.cast(scale, values.dtype)


def _measure_units(values: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Compute the norm of each unit, float32."""

    def squares(dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tf.reduce_sum(tf.cast(values, dtype) ** 2, axes, keepdims=True), tf.float64)

    return gradients_lib.take_roots(gradients_lib.retry_in_float64(squares))


@checks.dataclass
class AutoClip:
    """Clips the global norm of the gradient to a percentile of the run's past global norms.

    P. Seetharaman, G. Wichern, B. Pardo, J. Le Roux, "AutoClip: Adaptive Gradient Clipping for
    Source Separation Networks", 2020, arXiv:2007.14469. As in the paper, the percentile includes
    the norm of the current step, before it is clipped. The paper computes the percentile of the
    norms of all steps. Here, only the last `window` norms count, so the time of a step and the size
    of the state do not grow. Norms that are not finite are left out of the percentile. The past
    norms are saved with the model, in the variable scope `update/auto_clip`.

    Attributes:
      percentile: the percentile of the norms that is the bound, in [0, 100]; between two norms, the
        bound is interpolated.
      window: the number of most recent norms that the percentile covers, at least 1.
    """

    percentile: Annotated[float, checks.In("[0, 100]")] = 10.0
    window: checks.Count = 1000

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del variables
        with tf1.variable_scope("auto_clip"):
            norms, count = self._update_norms(norm)
        scale = clipping.find_factor(norm, self._find_percentile(norms, count))
        return [clipping.scale_gradient(gradient, scale) for gradient in gradients]

    def _update_norms(self, norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Add this step's norm to the past norms; return the norms [window] and their number."""
        variable = step_state.create_variable("norms", np.zeros(self.window, np.float32))
        counter = step_state.create_variable("count", np.zeros([], np.int32))
        norms, steps = variable.read_value(), counter.read_value()
        is_finite = tf.math.is_finite(norm)
        place = steps % self.window
        # A norm that is not finite does not replace an old norm, and does not count as a step.
        entry = tf.where(is_finite, norm, norms[place])
        norms = tf.tensor_scatter_nd_update(norms, [[place]], [entry])
        steps += tf.cast(is_finite, tf.int32)
        step_state.assign_with_update(variable, norms)
        step_state.assign_with_update(counter, steps)
        return norms, tf.minimum(steps, self.window)

    def _find_percentile(self, norms: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        infinite = tf.fill([self.window], float("inf"))
        # Unused entries are infinite, so that they come after all norms. `place` is below the
        # number of norms, so the percentile never reads an unused entry.
        ordered = tf.sort(tf.where(tf.range(self.window) < count, norms, infinite))
        place = self.percentile / 100 * tf.cast(tf.maximum(count - 1, 0), tf.float32)
        below = tf.cast(tf.floor(place), tf.int32)
        above = tf.minimum(below + 1, tf.maximum(count - 1, 0))
        share = place - tf.floor(place)
        return ordered[below] + share * (ordered[above] - ordered[below])
