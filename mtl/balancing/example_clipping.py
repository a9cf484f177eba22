"""Clips the gradient of every example before the gradients are averaged over the batch.

model.MultiTaskModel.surgery = @example_clipping.ExampleClipping()
example_clipping.ExampleClipping.max_norm = 1.0
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.example_gradients import ghost, gradient_forms
from mtl.optimization import clipping
from mtl.step import draws, replicas, whole_batch
from mtl.step import gradients as gradients_lib
from mtl.variables import patterns

_log = logging.getLogger(__name__)

Gradients = list[types.Gradient]


@checks.dataclass
class ExampleClipping(types.Surgery):
    """`g = 1/B sum_i g_i min(1, max_norm / |g_i|)`, with g_i the gradient of example i of B.

    A single example, even with a wrong label, adds at most `max_norm / B` to the norm of the
    gradient. With noise, a step follows Abadi et al., "Deep Learning with Differential Privacy",
    2016, arXiv:1607.00133. Unlike in the paper, batches come from shuffled data, not from random
    draws, and the code computes no privacy budget. The loss of an example is the sum of its tasks'
    weighted losses.

    One backward pass gives the norms of all examples' gradients, and the sum of the clipped
    gradients (Bu et al., "Differentially Private Optimization on Large Model at Small Cost", 2022,
    arXiv:2210.00038). The single backward pass is possible if `mtl.example_gradients` has a rule
    for all uses of the variables. If `mtl.example_gradients` lacks a rule, or the model computes in
    16-bit numbers, each example takes a separate backward pass, and the log has a warning. Batch
    norm in training also leads to a separate pass for each example. In a pass of a single example,
    batch norm normalises this example alone, so freeze batch norm or remove it.

    Attributes:
      max_norm: the largest norm of an example's gradient, above 0, in the unit of the scalar
        `gradient_norm`.
      noise_multiplier: at least 0. The sum of the clipped gradients gets Gaussian noise of standard
        deviation `noise_multiplier * max_norm` in every coordinate. Table rows that are not in the
        batch get noise as well, so the time of a step grows with the size of the tables. Penalties
        and the optimizer also act on table rows that are not in the batch.
    """

    max_norm: checks.Bound
    noise_multiplier: checks.NotNegative = 0.0

    reads_losses = False

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: types.Batch | None = None,
    ) -> tuple[Gradients, dict[str, tf.Tensor]]:
        """Compute the mean of the examples' clipped gradients.

        Args:
          losses: {task: scalar}, the weighted losses of the whole batch.
          variables: N variables.
          batch: the batch, divided into parts; the attribute `examples` of a part has its rows.

        Returns:
          The gradients by the N variables, and {name: scalar}: `clipped_share`, the share of
          examples whose gradient was scaled down, and `<task>/loss`, the unweighted losses.

        Raises:
          UserError: the loss of the batch cannot be separated into losses of single rows.
        """
        whole = whole_batch.or_losses(batch, losses)
        examples = whole.first.examples
        if examples is None or not examples.count:
            fix = "Leave out mixing, and heads and auxiliary losses that compare rows."
            checks.fail("ExampleClipping", "get independent rows", list(losses), fix)
        count = examples.count * whole.slices * replicas.count()

        def clip_part(
            forward: whole_batch.ForwardPass,
        ) -> tuple[Gradients, tf.Tensor, types.Tensors]:
            return *self._clip_pass(forward, variables, count), forward.unweighted or {}

        gradients, above, plain = whole.sum(clip_part, update=True)
        # Noise is added after the sum over slices and replicas, so that the sum has one draw of
        # noise, the same on all replicas.
        if self.noise_multiplier:
            pairs = enumerate(zip(gradients, variables, strict=True))
            gradients = [self._add_noise(index, *pair, count) for index, pair in pairs]
        monitors = {f"{task}/loss": loss for task, loss in plain.items()}
        return gradients, {"clipped_share": above / count, **monitors}

    def _clip_pass(
        self, forward: whole_batch.ForwardPass, variables: Sequence[tf.Variable], count: int
    ) -> tuple[Gradients, tf.Tensor]:
        """Sum the clipped gradients of one part of the batch; count the clipped examples."""
        examples = _examples_of(forward)
        if examples.count == 1:
            return self._clip_single(forward, variables, count)
        losses, size = forward.unweighted or forward.losses, examples.count
        example_gradients = ghost.Gradients(
            list(losses.values()), examples.given, variables, size, rows=size
        )
        if examples.are_independent and not example_gradients.unknown:
            return self._clip_at_once(example_gradients, forward, variables, count)
        names = (
            ", ".join(example_gradients.unknown[:3])
            if examples.are_independent
            else "normalisation by the batch"
        )
        gap = (
            f" (op {example_gradients.gap})"
            if examples.are_independent and example_gradients.gap
            else ""
        )
        _log.warning(
            "ExampleClipping: a pass for each example, for %s%s: this is slow.", names, gap
        )
        return examples.separate_rows().sum(lambda row: self._clip_single(row, variables, count))

    def _clip_at_once(
        self,
        example_gradients: ghost.Gradients,
        forward: whole_batch.ForwardPass,
        variables: Sequence[tf.Variable],
        count: int,
    ) -> tuple[Gradients, tf.Tensor]:
        by_name = example_gradients.by_variable(
            example_gradients.cotangents(tf.add_n(list(forward.losses.values())))
        )
        scales = self._find_factors(
            _squared_norms(by_name.values(), _examples_of(forward).count), count
        )
        # `by_name` has no entry for a variable on which no loss depends.
        columns = [by_name.get(patterns.variable_name(variable)) for variable in variables]
        gradients = [
            column and gradient_forms.to_gradient(column.scaled(scales), variable)
            for column, variable in zip(columns, variables, strict=True)
        ]
        return gradients, _num_below_one(scales)

    def _clip_single(
        self, forward: whole_batch.ForwardPass, variables: Sequence[tf.Variable], count: int
    ) -> tuple[Gradients, tf.Tensor]:
        """Clip the gradient of a forward pass with a single example."""
        gradients = tf.gradients(tf.add_n(list(forward.losses.values())), list(variables))
        gradients = [gradients_lib.merge_rows(gradient) for gradient in gradients]
        known_gradients = [gradient for gradient in gradients if gradient is not None]
        scale = self._find_factors(
            tf.reduce_sum(gradients_lib.squared_norms(known_gradients)), count
        )
        return [clipping.scale_gradient(gradient, scale) for gradient in gradients], _num_below_one(
            scale
        )

    def _find_factors(self, squares: tf.Tensor, count: int) -> tf.Tensor:
        """Return the factors by which the gradients of the examples are clipped.

        Args:
          squares: the squared norms of the examples' gradients, each gradient divided by B;
            float64, in any shape.
          count: B, the number of examples in the batch.
        """
        # Rounding errors may make a square negative.
        squares = tf.where(squares < 0, tf.zeros_like(squares), squares)
        return clipping.find_factor(gradients_lib.take_roots(count**2 * squares), self.max_norm)

    def _add_noise(
        self, index: int, gradient: types.Gradient, variable: tf.Variable, count: int
    ) -> types.Gradient:
        if gradient is None:
            return None
        # A table in bfloat16 has a gradient in float32.
        noise = tf.random.stateless_normal(
            variable.shape, draws.make_balancing_seed(index), dtype=gradient.dtype
        )
        noisy = gradients_lib.add_gradients(
            gradient, self.noise_multiplier * self.max_norm / count * noise
        )
        if not isinstance(gradient, tf.IndexedSlices):
            return noisy
        # The update recognises a table by its sparse gradient, and treats it by rows.
        rows = tf.range(tf.cast(variable.shape[0], gradient.indices.dtype))
        return tf.IndexedSlices(noisy, rows, gradient.dense_shape)


def _examples_of(forward: whole_batch.ForwardPass) -> whole_batch.Examples:
    """Return the examples of a part of the batch; `__call__` has checked that they exist."""
    return cast(whole_batch.Examples, forward.examples)


def _squared_norms(parts: Collection[gradient_forms.ExampleGradients], size: int) -> tf.Tensor:
    """Add up the squared norms of B examples' gradients over variables, [B] float64."""

    def sum_squares(dtype: tf.DType) -> tf.Tensor:
        zeros = tf.zeros([size], dtype)
        return tf.add_n(
            [zeros, *(gradient_forms.cast_gradients(part, dtype).squared_norms() for part in parts)]
        )

    return gradients_lib.retry_in_float64(sum_squares)


def _num_below_one(scales: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(scales < 1, tf.float32))
