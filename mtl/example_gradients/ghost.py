"""Computes the gradients of single examples in one backward pass over the whole batch.

gradients = ghost.Gradients([losses], batch, variables, batch_size)
cotangents = gradients.cotangents(losses)                     # losses [B], one pass back
by_variable = gradients.by_variable(cotangents)               # {variable: ExampleGradients}

If the norm of a gradient can be computed from the inputs of a layer and the gradient with respect
to the layer's outputs, the gradient itself is not built. Examples must not depend on each other, so
batch norm in training is not possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mtl.deferred import tf
from mtl.example_gradients import gradient_forms, layouts, patches, sizes, uses


class Gradients:
    """Gradients of each example's loss by variables, from a forward pass that is already built.

    Args:
      losses: the losses to differentiate, [B] each, or sums over examples.
      batch: the tensors with the examples, in any nesting.
      variables: the variables by which gradients are taken.
      batch_size: B, a scalar.
      rows: B as an int; None if unknown while the graph is built.

    Attributes:
      unknown: the names of variables that some op uses in a way for which this package has no rule.
      gap: the name of the first op after which the layout of examples is unknown; None if there is
        no such op.
    """

    def __init__(
        self,
        losses: Sequence[tf.Tensor],
        batch: Any,
        variables: Sequence[tf.Variable],
        batch_size: tf.Tensor,
        rows: int | None = None,
    ):
        all_uses, self.gap = uses.find_uses(losses, batch, variables, rows)
        self._uses = {
            name: variable_uses
            for name, variable_uses in all_uses.items()
            if variable_uses is not None and _can_add(variable_uses)
        }
        self.unknown = [name for name in all_uses if name not in self._uses]
        self._batch_size = batch_size
        self._inputs: dict[str, tf.Tensor] = {}

    def cotangents(self, losses: tf.Tensor) -> dict[str, tf.Tensor | None]:
        """Differentiate losses by the outputs of all uses of variables, in one backward pass.

        The gradient of the losses with respect to an output is called the cotangent of the output.

        Args:
          losses: a loss [B], or a sum of losses [B], in the graph of the losses that the
            constructor got.

        Returns:
          {name of an output: cotangent in the output's shape}, with None if the loss does not
          depend on the output.
        """
        outputs = {use.output.name: use.output for group in self._uses.values() for use in group}
        # The losses are differentiated by outputs, because a gradient by a variable would be a sum
        # over the examples.
        gradients = tf.gradients(losses, list(outputs.values()))
        return dict(zip(outputs, gradients, strict=True))

    def by_variable(
        self, cotangents: Mapping[str, tf.Tensor | None]
    ) -> dict[str, gradient_forms.ExampleGradients]:
        """Compute the gradients of all examples from the cotangents.

        Args:
          cotangents: the result of the method `cotangents`, or a weighted sum of several results.

        Returns:
          {name of a variable: gradients of all examples}, without the variables in `unknown`, and
          without variables that do not affect the losses.
        """
        gradients = {}
        for name, variable_uses in self._uses.items():
            connected = [use for use in variable_uses if cotangents[use.output.name] is not None]
            if connected:
                gradients[name] = self._of_uses(connected, cotangents)
        return gradients

    def _of_uses(
        self, variable_uses: Sequence[uses.Use], cotangents: Mapping[str, tf.Tensor]
    ) -> gradient_forms.ExampleGradients:
        parts = [self._of_use(use, cotangents[use.output.name]) for use in variable_uses]
        is_alike = len({type(part) for part in parts}) == 1
        # If all ops that combine the variable with examples are of one kind, and read the variable
        # itself, their gradients are joined without building the gradient of each example.
        if is_alike and all(use.is_plain for use in variable_uses):
            return gradient_forms.join_gradients(parts)
        return self._differentiate_through(variable_uses, parts)

    def _of_use(self, use: uses.Use, cotangent: tf.Tensor) -> gradient_forms.ExampleGradients:
        cotangent = tf.convert_to_tensor(cotangent)
        if use.kind == uses.ROWS:
            return self._rows(use, cotangent)
        if use.kind == uses.ELEMENTWISE:
            return self._differentiate_elements(use, cotangent)
        sides = _find_widths(use)
        factors = self._find_factor(use), cotangent
        pair = [
            self._by_example(values, use.placed, [size])
            for values, size in zip(factors, sides, strict=True)
        ]
        # For inputs [.., P], the kernel is [P, Q] or, if the op transposes the kernel, [Q, P].
        if use.kind == uses.MATRIX:
            return gradient_forms.Products(*(pair[::-1] if _is_turned(use.op) else pair))
        products = gradient_forms.Products(*pair)
        # Norms of gradients in the form `Products` cost a [T, T] matrix for each example. For a
        # convolution, T is the number of positions in the output image.
        return products.built() if _is_smaller_built(use) else products

    def _by_example(
        self, values: tf.Tensor, layout: layouts.Layout, core: Sequence[int]
    ) -> tf.Tensor:
        """Move the axis of examples to the front, [..., *core] -> [B, T, *core]."""
        if layout.before == sizes.ONE:
            is_apart = layout.axis == 0 and layout.inner == sizes.ONE
            if is_apart and values.shape.rank == 2 + len(core):
                return values
            places = values.shape[1 : values.shape.rank - len(core)].num_elements()
            is_known = is_apart and places is not None
            return tf.reshape(values, [self._batch_size, places if is_known else -1, *core])
        before = self._num_before(values, layout)
        # A time-major tensor, for example, is transposed from [T, B, D] to [B, T, D].
        apart = tf.reshape(values, [before, self._batch_size, -1, *core])
        order = [1, 0, 2, *range(3, 3 + len(core))]
        return tf.reshape(tf.transpose(apart, order), [self._batch_size, -1, *core])

    def _num_before(self, values: tf.Tensor, layout: layouts.Layout) -> int | tf.Tensor:
        """Return how often a tensor repeats the whole batch, such as T for [T, B, D]."""
        # If the number of repetitions is known while the graph is built, no op is needed.
        if not layout.before.unknown:
            return layout.before.number
        shape, outer = tf.shape(values), 1
        if layout.outer != sizes.ONE:
            outer = shape[layout.axis] // (self._batch_size * layout.inner.number)
        return outer * tf.reduce_prod(shape[: layout.axis])

    def _find_factor(self, use: uses.Use) -> tf.Tensor:
        """Return the tensor that a weight is multiplied by: inputs, or patches of a convolution."""
        op = use.op
        if use.kind == uses.MATRIX:
            return op.inputs[0]
        if op.name not in self._inputs:
            self._inputs[op.name] = patches.extract_patches(op)
        return self._inputs[op.name]

    def _rows(self, use: uses.Use, cotangent: tf.Tensor) -> gradient_forms.Rows:
        ids = tf.cast(tf.reshape(use.op.inputs[1], [-1]), tf.int64)
        values = tf.reshape(cotangent, [tf.size(ids), cotangent.shape[-1]])
        batch_size = tf.cast(self._batch_size, tf.int64)
        return gradient_forms.Rows(ids, self._examples_of_ids(use), values, batch_size)

    def _examples_of_ids(self, use: uses.Use) -> tf.Tensor:
        """Return the index of the example to which each id belongs, [N]."""
        ids, layout = use.op.inputs[1], use.placed
        if use.of_list is not None:
            owners = use.of_list.value_rowids()
            # Each value of a ragged tensor may look up several rows. If all lists of the batch are
            # empty, `owners` is empty, and the divisor must not be 0.
            places = tf.size(ids) // tf.maximum(tf.size(owners), 1)
            return tf.cast(tf.repeat(owners, places), tf.int64)
        before, count = self._num_before(ids, layout), self._batch_size
        order = tf.range(tf.cast(count, tf.int64))[tf.newaxis, :, tf.newaxis]
        after = tf.size(ids) // tf.maximum(before * count, 1)
        return tf.reshape(tf.broadcast_to(order, [before, count, after]), [-1])

    def _differentiate_elements(self, use: uses.Use, cotangent: tf.Tensor) -> gradient_forms.Plain:
        if use.op.type == "Mul":
            cotangent *= use.op.inputs[1 - use.place]
        elif use.op.type == "FusedBatchNormV3" and use.place == 1:
            # The factor is the derivative of `scale (x - mean) / sqrt(variance + epsilon) + offset`
            # by the scale.
            values, _, _, mean, variance = use.op.inputs
            cotangent *= (values - mean) * tf.math.rsqrt(variance + use.op.get_attr("epsilon"))
        elif use.op.type == "Sub" and use.place == 1:
            cotangent = -cotangent
        # The parameter's shape without leading axes of size 1, `core`, is known, because `uses`
        # leaves out parameters with unknown sizes.
        core = cast(list[int], uses.core_shape(use.parameter))
        # The shape is [B, T, *core], because a parameter may be used at T places of an example.
        by_place = self._by_example(cotangent, use.placed, core)
        shape = [self._batch_size, *use.parameter.shape]
        return gradient_forms.Plain(tf.reshape(tf.reduce_sum(by_place, axis=1), shape))

    def _differentiate_through(
        self, variable_uses: Sequence[uses.Use], parts: Sequence[gradient_forms.ExampleGradients]
    ) -> gradient_forms.Plain:
        """Backpropagate gradients of examples from functions of a variable to the variable."""
        # The form `Rows` does not occur here, because lookups always read the variable itself.
        built = [
            part.built()
            if isinstance(part, gradient_forms.Products)
            else cast(gradient_forms.Plain, part)
            for part in parts
        ]
        shapes = [[self._batch_size, *use.parameter.shape] for use in variable_uses]
        cotangents = [
            tf.reshape(p.gradients, shape) for p, shape in zip(built, shapes, strict=True)
        ]
        ends = [use.parameter for use in variable_uses]
        reads = list({read.name: read for use in variable_uses for read in use.reads}.values())

        def pulled(of_example: Sequence[tf.Tensor]) -> tf.Tensor:
            zeros = tf.UnconnectedGradients.ZERO
            back = tf.gradients(ends, reads, list(of_example), unconnected_gradients=zeros)
            return tf.add_n(list(map(tf.convert_to_tensor, back)))

        return gradient_forms.Plain(tf.vectorized_map(pulled, cotangents))


def _can_add(variable_uses: Sequence[uses.Use]) -> bool:
    """Return True if gradients of several uses can be added: all uses look up rows, or none do."""
    kinds = {use.kind for use in variable_uses}
    return uses.ROWS not in kinds or kinds == {uses.ROWS}


def _find_widths(use: uses.Use) -> tuple[int, int]:
    """Return the number of input units and the number of output units of a kernel."""
    *inputs, outputs = use.parameter.shape.as_list()
    if use.kind == uses.MATRIX and _is_turned(use.op):
        return outputs, *inputs
    return math.prod(inputs), outputs


def _is_turned(op: tf.Operation) -> bool:
    """Return True if an op multiplies by the transposed matrix."""
    return op.get_attr("transpose_b" if op.type == "MatMul" else "adj_y")


def _is_smaller_built(use: uses.Use) -> bool:
    """Return True if the gradients of a kernel are smaller than the Gram matrices [T, T]."""
    places = use.output.shape[1:3].num_elements()
    return places is None or 2 * places**2 > use.parameter.shape.num_elements()
