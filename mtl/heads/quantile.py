"""Quantiles of a number, such as the time by which 9 of 10 deliveries arrive.

minutes/heads.Quantile.name = "minutes"
minutes/heads.Quantile.levels = [0.1, 0.5, 0.9]
"""

from __future__ import annotations

import itertools
import math
import statistics as python_statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import coverage, objectives, regression, standardized


@checks.dataclass
class Quantile(standardized.Standardized):
    """Predicts several quantiles of a number, which never cross.

    `loss_i = mean_k max(l_k e_k, (l_k - 1) e_k)` for the levels l_k and the errors
    `e_k = y_i - q_k`. This pinball loss, in the unit of the label, is from Koenker and Bassett,
    "Regression Quantiles", 1978.

    For logits (a, c), and the mean m and the standard deviation d of the label, the first quantile
    is `m + d a`. Each further quantile is `d softplus(c)` above the previous quantile, so quantiles
    are always in order.

    Predicts `quantiles` [B, Q] and `value` [B]. `value` is the quantile with the level nearest to
    0.5, or the mean of two equally near quantiles, such as 0.1 and 0.9.

    Attributes:
      levels: the levels of the quantiles, ascending, in [0.001, 0.999]; a level is the share of
        labels below its quantile.
    """

    levels: Annotated[Sequence[float], coverage.check_levels, checks.Filled("hold a level")] = (
        0.1,
        0.5,
        0.9,
    )

    directions: ClassVar[Mapping[str, bool]] = {
        "average_loss": False,
        "coverage_error": False,
        **regression.Number.directions,
    }

    def __post_init__(self):
        super().__post_init__()
        where = self._where("levels")
        rises = all(level < next_level for level, next_level in itertools.pairwise(self.levels))
        checks.require(rises, where, "be ascending", list(self.levels))

    @property
    def size(self) -> int:
        """The number of logits: one logit for each level."""
        return len(self.levels)

    def initial_bias(self) -> list[float]:
        """Return the logits that predict the quantiles of a Gaussian."""
        start = list(map(python_statistics.NormalDist().inv_cdf, self.levels))
        steps = [after - before for before, after in itertools.pairwise(start)]
        # log(exp(x) - 1) is the inverse of softplus.
        return [start[0], *(math.log(math.expm1(step)) for step in steps)]

    def _order_quantiles(self, logits: tf.Tensor) -> tf.Tensor:
        """Compute ordered quantiles from logits: [B, Q], or [B] if Q is 1, -> [B, Q]."""
        logits = tf.reshape(logits, [-1, self.size])
        steps = tf.concat([logits[:, :1], tf.math.softplus(logits[:, 1:])], axis=1)
        return self._shift + self._unit * tf.cumsum(steps, axis=1)

    def value(self, logits: tf.Tensor) -> tf.Tensor:
        """Compute the quantile nearest to the median, or the mean of two equally near quantiles.

        Args:
          logits: the predicted quantiles, [B, Q], or [B] if Q is 1.

        Returns:
          The predicted numbers, [B], in the unit of the label.
        """
        distances = [abs(level - 0.5) for level in self.levels]
        # Levels such as 0.4 and 0.6 are equally near to 0.5, except for rounding errors.
        middle = [
            i for i, distance in enumerate(distances) if math.isclose(distance, min(distances))
        ]
        quantiles = self._order_quantiles(logits)
        if len(middle) == 1:
            return quantiles[:, middle[0]]
        return tf.reduce_mean(tf.gather(quantiles, middle, axis=1), 1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits, [B, Q] -> quantiles [B, Q] and value [B]."""
        return {"quantiles": self._order_quantiles(logits), "value": self.value(logits)}

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example: [B, Q], [B] -> [B]."""
        return objectives.pinball_loss(self._order_quantiles(logits), targets, self.levels)

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Compute half of the mean squared distance between the quantiles of two predictions.

        Args:
          logits: the quantiles of one prediction, [B, Q].
          others: the quantiles of the other prediction, [B, Q].

        Returns:
          Half of the mean squared distances, [B], in the squared unit of the label.
        """
        distances = objectives.gaussian_divergence(
            self._order_quantiles(logits), self._order_quantiles(others)
        )
        return tf.reduce_mean(distances, -1)

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the errors, and the weights of labels at or below each quantile.

        Returns:
          The sums that `regression.Number.sums` returns, and `below`, the weights of labels at or
          below each quantile, float64 [Q].
        """
        quantiles = self._order_quantiles(examples.logits)
        below = coverage.sum_below(quantiles, examples.targets, examples.weights)
        return {**super().sums(examples), "below": below}

    def summary(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Compute the metrics of `Number`, and the coverage of each quantile.

        Returns:
          The metrics of `regression.Number`; `coverage/<level>`, the share of labels at or below
          each quantile; and `coverage_error`, the mean distance between share and level.
        """
        shares = coverage.compare_shares(self.levels, sums["below"], sums["weight"])
        return {**super().summary(sums), **shares}
