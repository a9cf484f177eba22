"""L1 and L2 penalties on variables, chosen by patterns; balancing does not change the penalties.

from mtl.optimization import regularization
update.Update.regularization = @regularization.Regularization()
regularization.Regularization.l2 = {"^network/.*/kernel$": 1e-4, "^head/": 1e-3}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import gradients as gradients_lib
from mtl.step import penalties, replicas
from mtl.variables import freezing, patterns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regularization:
    """`R = sum_v (l1_v * |w_v|_1 + l2_v / 2 * |w_v|_2^2)`, plus REGULARIZATION_LOSSES of the graph.

    The gradient of the penalty R is added after balancing and before clipping. With an adaptive
    optimizer, an L2 penalty differs from weight decay; use `AdamW` for weight decay.

    In an embedding table, a step penalises only the rows in the batch, and each row only once.
    Therefore, the time of a step does not grow with the vocabulary, and frequent rows shrink more
    than rare rows. For a table, the scalar `regularization` covers only the rows in the batch.

    Attributes:
      l1: {pattern (see `mtl.variables.patterns`): factor above 0} for the sum of absolute values.
        If several patterns match a variable, their factors add up.
      l2: {pattern: factor above 0} for half the squared norm. If several patterns match a variable,
        their factors add up.
    """

    l1: Mapping[str, float] = dataclasses.field(default_factory=dict)
    l2: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for setting in ("l1", "l2"):
            where = f"Regularization.{setting}"
            factors = getattr(self, setting)
            checks.mapping(where, factors, "map patterns to factors")
            patterns.check_patterns(where, list(factors))
            for pattern, factor in factors.items():
                checks.positive(f"{where}[{pattern!r}]", factor)

    def __call__(
        self, gradients: Sequence[types.Gradient], variables: Sequence[tf.Variable]
    ) -> tuple[list[types.Gradient], tf.Tensor | None]:
        """Add the gradients of the penalties to the gradients of N variables.

        Args:
          gradients: N gradients; a sparse gradient contains each row only once.
          variables: N variables.

        Returns:
          The N gradients, and the value R of all penalties: a scalar, or None without penalties.

        Raises:
          UserError: a pattern matches no variable.
        """
        gradients, values = list(gradients), []
        if self.l1 or self.l2:
            values = self._add_penalties(gradients, variables)
        losses, sources = tf1.losses.get_regularization_losses(), list(variables)
        if losses and replicas.count() > 1:
            losses, sources = penalties.share_terms(losses, variables)
        if losses:
            values.append(tf.add_n(losses))
            # The gradient is computed separately from the losses of tasks, because balancing must
            # not change it.
            terms = tf.gradients(values[-1], sources)
            gradients = list(map(gradients_lib.add_gradients, gradients, terms))
        return gradients, tf.add_n(values) if values else None

    def _add_penalties(
        self, gradients: list[types.Gradient], variables: Sequence[tf.Variable]
    ) -> list[tf.Tensor]:
        """Add the gradients of the penalties to `gradients`; return the values of the penalties."""
        values = []
        l1 = _sum_factors("Regularization.l1", self.l1, variables)
        l2 = _sum_factors("Regularization.l2", self.l2, variables)
        for i, variable in enumerate(variables):
            name = patterns.variable_name(variable)
            if name in l1 or name in l2:
                penalty = _penalise_variable(
                    gradients[i], variable, l1.get(name, 0), l2.get(name, 0)
                )
                gradients[i] = gradients_lib.add_gradients(gradients[i], penalty[0])
                values.append(penalty[1])
        return values


def _sum_factors(
    where: str, by_pattern: Mapping[str, float], variables: Sequence[tf.Variable]
) -> dict[str, float]:
    """Return the sum of the factors of each variable that matches a pattern, {name: sum}."""
    factors: dict[str, float] = {}
    for pattern, factor in by_pattern.items():
        selected = patterns.select_variables(where, pattern, [*variables, *freezing.frozen_names()])
        # The shards of a table have the same name, and the set prevents that each shard adds the
        # factor.
        for name in set(map(patterns.variable_name, selected)):
            factors[name] = factors.get(name, 0.0) + factor
    return factors


def _penalise_variable(
    gradient: types.Gradient, variable: tf.Variable, l1: float, l2: float
) -> tuple[types.Gradient, tf.Tensor]:
    """Compute the gradient and the value of a variable's penalty, for the rows of `gradient`."""
    if isinstance(gradient, tf.IndexedSlices):
        # A table in bfloat16 has a gradient in float32, so the weights are cast to float32.
        weights = tf.cast(tf.gather(variable, gradient.indices), gradient.dtype)
    else:
        weights = tf.convert_to_tensor(variable)
    slope = l1 * tf.sign(weights) + l2 * weights
    # `l2_loss` is half of the squared norm, whose gradient is the weights.
    value = l1 * tf.reduce_sum(tf.abs(weights)) + l2 * tf.nn.l2_loss(weights)
    if isinstance(gradient, tf.IndexedSlices):
        slope = tf.IndexedSlices(slope, gradient.indices, gradient.dense_shape)
    return slope, value
