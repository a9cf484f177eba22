"""Clipping of the gradient, between balancing and the optimizer.

from mtl.optimization import clipping
update.Update.clipping = @clipping.GlobalNorm()
clipping.GlobalNorm.max_norm = 5.0

Gradients are clipped after they are summed over micro-batches and replicas. In the norm of a
gradient, each looked-up row of an embedding table counts once. The norm of a finite gradient never
becomes infinite, because it is limited to the largest float32. Clipping does not remove NaN and
infinite entries, and does not spread them to other entries: see `Update.if_not_finite`. An infinite
bound clips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import gradients as gradients_lib
from mtl.variables import patterns

Gradients = list[types.Connected]


@checks.dataclass
class GlobalNorm:
    """Scales all gradients by one factor, so that their global norm is at most `max_norm`.

    The formula is `g <- g * min(1, max_norm / |g|)`, with |g| the Euclidean norm over all
    variables.

    R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks",
    2013, arXiv:1211.5063. `GlobalNorm` differs from `tf.clip_by_global_norm` in three ways. A table
    row that was looked up several times counts once in the norm, with the sum of its gradients. An
    infinite `max_norm` clips nothing. If the norm is not finite, nothing is scaled, so a NaN in one
    variable does not turn the gradients of all variables into NaN.

    Attributes:
      max_norm: the largest global norm, above 0; infinity clips nothing. The scalar `gradient_norm`
        in TensorBoard shows the norm before clipping.
    """

    max_norm: checks.Bound

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> Gradients:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del variables
        return [
            scale_gradient(gradient, find_factor(norm, self.max_norm)) for gradient in gradients
        ]


@checks.dataclass
class Norm:
    """Scales the gradient of each variable, so that its norm is at most `max_norm`.

    The gradients of different variables have different factors, so the direction of the update
    changes. `GlobalNorm` keeps the direction.

    Attributes:
      max_norm: the largest Euclidean norm of a variable's gradient, above 0; infinity clips
        nothing.
    """

    max_norm: checks.Bound

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> Gradients:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del norm
        norms = gradients_lib.take_roots(
            _of_tables(gradients_lib.squared_norms(gradients), variables)
        )
        return _scale_each(gradients, norms, self.max_norm)


@checks.dataclass
class AverageNorm:
    """Scales the gradient of each variable, so that its norm per entry is at most `max_norm`.

    The norm per entry is `|g| / n`, with n the number of entries, as in `tf.clip_by_average_norm`.
    For an embedding table, the number of entries n counts only the entries of rows in the batch, so
    the bound n `max_norm` on |g| does not depend on the size of the vocabulary.

    Attributes:
      max_norm: the largest norm per entry, above 0; infinity clips nothing.
    """

    max_norm: checks.Bound

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> Gradients:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del norm
        norms = gradients_lib.take_roots(
            _of_tables(gradients_lib.squared_norms(gradients), variables)
        )
        # All shards of a table count as one variable, so their squared norms and their numbers of
        # entries are added up.
        counts = _of_tables(tf.stack(list(map(_num_entries, gradients))), variables)
        return _scale_each(gradients, norms / tf.maximum(counts, 1.0), self.max_norm)


@checks.dataclass
class Value:
    """Clips every entry of the gradient to `[-max_value, max_value]`.

    An infinite entry becomes `max_value` or `-max_value`; NaN stays NaN.

    Attributes:
      max_value: the largest absolute value of an entry, above 0; infinity clips nothing.
    """

    max_value: checks.Bound

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> Gradients:
        """Clip the gradients of N variables; see `types.Clipping`."""
        del variables, norm
        return [gradients_lib.transform_gradient(gradient, self._cut) for gradient in gradients]

    def _cut(self, values: tf.Tensor) -> tf.Tensor:
        clipped = tf.clip_by_value(values, -self.max_value, self.max_value)
        return tf.where(tf.math.is_nan(values), values, clipped)


@checks.dataclass
class ByPattern:
    """Clips groups of variables by different clippings, with a separate norm for each group.

    Attributes:
      parts: {pattern (see `mtl.variables.patterns`): a clipping}. A variable is in the group of the
        first pattern that matches it. The gradients of variables that match no pattern are not
        clipped.
    """

    parts: Annotated[
        Mapping[str, Annotated[types.Clipping, checks.Part("clipping.GlobalNorm", arguments=3)]],
        checks.Map("map patterns to clippings"),
        checks.Filled("not be empty"),
    ]

    def __post_init__(self):
        patterns.check_patterns("ByPattern.parts", list(self.parts))

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> Gradients:
        """Clip the gradients of N variables; see `types.Clipping`.

        Raises:
          UserError: a pattern matches no variable, or only variables of earlier patterns.
        """
        del norm
        outputs, remaining = list(gradients), list(range(len(variables)))
        for index, (pattern, part) in enumerate(self.parts.items()):
            patterns.select_variables("ByPattern.parts", pattern, [variables[n] for n in remaining])
            group = [n for n in remaining if patterns.matches(pattern, variables[n])]
            remaining = [n for n in remaining if n not in group]
            group_gradients = [gradients[n] for n in group]
            # The argument `norm` covers all variables, but the clipping of a group needs the norm
            # of the group.
            squares = gradients_lib.squared_norms(group_gradients)
            group_norm = gradients_lib.norm_from_squares(squares)
            group_variables = [variables[n] for n in group]
            # Clippings with state, such as AutoClip, need separate variables for each group.
            with tf1.variable_scope(f"group_{index}"):
                group_gradients = part(group_gradients, group_variables, group_norm)
            for n, gradient in zip(group, group_gradients, strict=True):
                outputs[n] = gradient
        return outputs


def find_factor(norm: tf.Tensor, max_norm: float | tf.Tensor) -> tf.Tensor:
    """Compute the factors that reduce norms to at most `max_norm`.

    Args:
      norm: norms of any shape, at least 0.
      max_norm: bounds above 0: a scalar, or a tensor that broadcasts to the shape of `norm`.

    Returns:
      Factors in the shape of `norm`; a factor is 1 if the norm or its bound is not finite.
    """
    scale = max_norm / tf.maximum(norm, max_norm)
    # With an infinite bound, `scale` is inf / inf = NaN, and the factor must be 1.
    return tf.where(tf.math.is_finite(norm) & tf.math.is_finite(scale), scale, 1.0)


def scale_gradient(gradient: types.Connected, scale: tf.Tensor) -> types.Connected:
    """Multiply a gradient by a scalar.

    Args:
      gradient: a dense or sparse gradient.
      scale: a float scalar, or a float tensor that broadcasts to the values of the gradient.

    Returns:
      The scaled gradient, dense or sparse as before, and with the same dtype as before.
    """
    return gradients_lib.transform_gradient(
        gradient, lambda values: values * tf.cast(scale, values.dtype)
    )


def _scale_each(
    gradients: Sequence[types.Connected], norms: tf.Tensor, max_norm: float
) -> Gradients:
    """Scale N gradients with norms [N], so that each norm is at most `max_norm`."""
    return [
        scale_gradient(gradient, find_factor(norm, max_norm))
        for gradient, norm in zip(gradients, tf.unstack(norms), strict=True)
    ]


def _of_tables(values: tf.Tensor, variables: Sequence[tf.Variable]) -> tf.Tensor:
    """Replace the values of all shards of a table by their sum; keep those of other variables."""
    names = list(map(patterns.variable_name, variables))
    owners = list(map(names.index, names))
    if owners == list(range(len(names))):
        return values
    return tf.gather(tf.math.unsorted_segment_sum(values, owners, len(names)), owners)


def _num_entries(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.cast(tf.size(values), tf.float32)


ENTRYWISE = (GlobalNorm, Value)
"""The clippings that treat an entry in the same way, whichever variable has the entry."""
