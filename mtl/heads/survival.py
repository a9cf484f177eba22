"""Survival analysis: the time until an event, which some rows have not had yet.

churn/heads.Survival.name = "churn"
churn/heads.Survival.label = "days"        # until the event, or the end of observation
churn/heads.Survival.event = "churned"     # 1: an event; 0: none so far
churn/heads.Survival.boundaries = [7, 14, 30, 60, 90]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from mtl import checks, types
from mtl.deferred import compat, tf
from mtl.heads import base, metrics, ranking, values

_EVENT_RULE = "be 0 or 1"


@checks.dataclass
class Survival(base.Base):
    """The probability of an event in each time interval, if no event happened before.

    A row may be censored: no event happened up to some time, and later times are unknown.

    The intervals `(t_(j-1), t_j]` have the hazards `h_j = sigmoid(logit_j)`. For an event in
    interval k, `loss = -log h_k - sum_(j<k) log(1 - h_j)`. For a row that is censored at time c,
    `loss = -sum_(t_j <= c) log(1 - h_j)`, as no event happened up to c. The model is from
    Gensheimer and Narasimhan, "A Scalable Discrete-Time Survival Model for Neural Networks", 2019,
    arXiv:1805.00917. In the paper, a row that is censored in the second half of an interval counts
    as having survived this interval. Here, a row counts as having survived an interval only if it
    is censored at the end of the interval or later. An event after the last boundary counts as
    censored at the last boundary. The hazards of different intervals are predicted independently.

    Predicts `survival` [B, T], the probability of no event up to each boundary, and `value` [B],
    the mean time without an event up to the last boundary, with linear interpolation of survival
    within an interval.

    `concordance` is the share of pairs of rows in the right order: the row with the earlier event
    has the smaller predicted `value`. Two rows form a pair if one row has an event, and the other
    row has survived the interval of this event. A pair with equal predictions counts as half a pair
    in the right order. Harrell and others, "Evaluating the Yield of Medical Tests", 1982, compare
    times; the metric `concordance` compares intervals.

    Attributes:
      event: the label field with 1 for an event and 0 for a censored row. If the event field is
        missing in a row, the head's label counts as missing, too.
      boundaries: t_1 < ... < t_T, the ends of the intervals, above 0 and in the label's unit.
      prior: the hazard of each interval, between 0 and 1, that the initial bias predicts.
    """

    event: Annotated[str, checks.Is(str, "name a label field")]
    boundaries: Annotated[Sequence[Annotated[float, checks.number]], checks.Filled("hold a time")]
    prior: Annotated[float, base.check_share] = 0.1

    has_ids: ClassVar[bool] = False  # A time of -1 is a value, but an event of -1 is missing.
    directions: ClassVar[Mapping[str, bool]] = {
        "concordance": True,
        **base.Base.directions,
    }
    metrics_of_labels: ClassVar[frozenset[str]] = frozenset({"event_share"})

    def __post_init__(self):
        super().__post_init__()
        where = self._where("boundaries")
        ends = [0.0, *self.boundaries]
        rises = all(end < next_end for end, next_end in zip(ends, ends[1:], strict=False))
        checks.require(rises, where, "be ascending and above 0", list(self.boundaries))

    @property
    def size(self) -> int:
        """The number of logits: one logit for each interval."""
        return len(self.boundaries)

    def initial_bias(self) -> float:
        """Return the logit of the prior hazard."""
        return base.logit(self.prior)

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a time."""
        del dtype
        return "be a finite time of at least 0"

    def accepts(self, value: Any) -> bool:
        """Return True if the value is a finite time of at least 0."""
        return 0 <= value < math.inf

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse times.

        Args:
          label: the times in the label field, [B].

        Returns:
          Times, float64 [B], with 0 for missing labels, and a mask of present labels, bool [B].

        Raises:
          InvalidArgumentError: when the op runs, if a label that is not missing is below 0 or
            infinite.
        """
        present = self.are_present(label)
        times = tf.where(present, tf.cast(label, tf.float64), 0.0)
        valid = tf.math.is_finite(times) & (times >= 0)
        return self.checked(times, valid, label, self.rule(label.dtype)), present

    def _targets_and_weights(self, labels: types.Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Return targets [B, 2] (number of survived intervals, 1 for an event) and weights [B]."""
        times, weights = super()._targets_and_weights(labels)
        events = self.read_field(labels, self.event, self.label_types, ())
        weights = tf.where(values.are_ids_present(events), weights, 0)
        if self.within is not None:
            _, outside = self._space.locate(labels, self._where("within"))
            is_allowed = ~(outside & values.is_any(events, [1]))
            events = self.checked(events, is_allowed, events, self._space_rule, self.event)
        counted_events = tf.where(weights > 0, events, tf.zeros_like(events))
        counted_events = self.checked(
            counted_events,
            values.is_any(counted_events, [0, 1]),
            counted_events,
            _EVENT_RULE,
            self.event,
        )
        # Boundaries get the label's precision, as 0.3 differs between float32 and float64.
        kind = tf.float32 if labels[self.field].dtype.is_floating else tf.float64
        ends = tf.cast(tf.constant(list(self.boundaries), kind), tf.float64)
        # An event at a boundary belongs to the interval that ends at this boundary. A row that is
        # censored at a boundary has survived the interval that ends at this boundary.
        before = tf.searchsorted(ends, times, side="left")
        through = tf.searchsorted(ends, times, side="right")
        is_event = tf.equal(tf.cast(counted_events, tf.int32), 1) & (before < self.size)
        num_survived = tf.where(is_event, before, through)
        return tf.stack([num_survived, tf.cast(is_event, tf.int32)], axis=1), weights

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example.

        Args:
          logits: the logits of the T intervals, [B, T].
          targets: int32 [B, 2]: the number of survived intervals, and 1 for an event up to the last
            boundary, else 0.

        Returns:
          The losses of the rows, [B], in nats.
        """
        survives, has_event = (
            tf.cast(mask, logits.dtype) for mask in self._find_intervals(targets)
        )
        losses = survives * tf.math.softplus(logits) + has_event * tf.math.softplus(-logits)
        return tf.reduce_sum(losses, axis=1)

    def _find_intervals(self, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return masks of survived intervals, and of the interval with the event, [B, T] each."""
        num_survived, is_event = (part[:, tf.newaxis] for part in tf.unstack(targets, axis=1))
        places = tf.range(self.size)[tf.newaxis]
        return places < num_survived, tf.equal(places, num_survived) & tf.equal(is_event, 1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits, [B, T] -> survival [B, T] and value [B]."""
        # Survival is the product of `1 - h`. A sum of `log(1 - h) = -softplus(logit)` is more
        # precise.
        survival = tf.exp(-tf.cumsum(tf.math.softplus(logits), axis=1))
        return {"survival": survival, "value": self._mean_time(survival)}

    def _mean_time(self, survival: tf.Tensor) -> tf.Tensor:
        widths = tf.constant(np.diff([0.0, *self.boundaries]), survival.dtype)
        # The area under the curve of survival, by trapezoids; all rows survive up to time 0.
        before = tf.concat([tf.ones_like(survival[:, :1]), survival[:, :-1]], axis=1)
        return tf.reduce_sum(0.5 * (before + survival) * widths, axis=1)

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: all predictions, and the mean time as regression output."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["value"]),
        }

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor | metrics.Total]:
        """Sum the weights of events, and collect the predicted risks of rows for the concordance.

        For interval j, each row with an event in the interval is compared with each row that has
        survived the interval.

        Returns:
          `events`, the weight of the rows with an event up to the last boundary, a float64 scalar;
          and `risks`, a `metrics.Total` with the value `ranking.Cells`, in which the T intervals
          are the classes.
        """
        logits, targets, weights = examples
        late, early = (
            weights[:, tf.newaxis] * tf.cast(mask, weights.dtype)
            for mask in self._find_intervals(targets)
        )
        risks = -self.predictions(logits)["value"]
        # [B, T]: a row has the same risk in each interval, but its weight differs.
        risks = tf.broadcast_to(risks[:, tf.newaxis], tf.shape(early))
        return {
            "events": metrics.sum_weighted(tf.cast(targets[:, 1], tf.float64), weights),
            "risks": ranking.stream_scores(
                tf.ensure_shape(risks, early.shape), early, late, are_tasks=True
            ),
        }

    def summary(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Returns:
          `concordance` and `concordance_error_bound`, both NaN without pairs; and `event_share`,
          the share of rows with an event up to the last boundary, NaN without labelled rows.
        """
        concordance, bound = ranking.share_ordered(sums["risks"])
        return {
            "concordance": concordance,
            f"concordance{ranking.BOUND}": bound,
            "event_share": metrics.ratio(sums["events"], sums["weight"]),
        }

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about the time, event or weight of a record, or None."""
        events, has_weight = labels.get(self.event, []), self.has_weight(labels)
        for value in values.flatten_values(events):
            # Check events only in rows with a label and a weight above 0.
            if has_weight and not values.is_id_missing(value) and value not in (0, 1):
                return f"{self.message(self.event, _EVENT_RULE)} {values.show(value)}"
            if value == 1 and self.within is not None and self._space.place(labels) is False:
                return f"{self.message(self.event, self._space_rule)} {values.show(value)}"
        return super().check(labels)
