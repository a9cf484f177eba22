"""Schedules: learning rates, or other factors, as functions of the global step.

    from mtl.optimization import schedules
    optimizers.LazyAdam.learning_rate = @schedules.Cosine()
    schedules.Cosine.value = 0.01
    schedules.Cosine.warmup_steps = 500

A schedule counts from global step 0, so a resumed run continues its schedule. During the warm-up,
the rate is multiplied by `(step + 1) / warmup_steps`, so the first rate is above 0. The decay of a
rate starts at step 0, not at the end of the warm-up.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Annotated, Any

from mtl import checks, types
from mtl.deferred import tf


def evaluate_rate(learning_rate: float | types.Schedule, step: tf.Tensor) -> tf.Tensor:
    """Compute the learning rate at a step.

    Args:
      learning_rate: a number, or a schedule.
      step: the global step, an int64 scalar.

    Returns:
      A float32 scalar.

    Raises:
      UserError: a schedule returns neither a scalar tensor nor a number.
    """
    if not callable(learning_rate):
        return tf.constant(learning_rate, tf.float32)
    rate, rule = learning_rate(step), "return a scalar"
    name = f"the schedule {type(learning_rate).__name__}"
    checks.is_a(name, rate, (tf.Tensor, tf.Variable, numbers.Real), rule)
    rate = tf.cast(rate, tf.float32)
    checks.require(rate.shape.is_compatible_with([]), name, rule, rate)
    return rate


@checks.dataclass
class _Schedule(abc.ABC):
    warmup_steps: checks.Natural = 0

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Compute the rate at a step, int64 scalar -> float32 scalar."""
        # float32 rounds steps above 2^24, so a change could come a step early.
        step = tf.cast(step, tf.float64)
        rate = self._compute_rate(step)
        if self.warmup_steps:
            rate *= tf.minimum(tf.constant(1, step.dtype), (step + 1) / self.warmup_steps)
        return tf.cast(rate, tf.float32)

    @abc.abstractmethod
    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Compute the rate without the warm-up, float64 scalar -> float64 scalar."""


@checks.dataclass
class Constant(_Schedule):
    """`rate = value`, after the warm-up.

    Attributes:
      value: the rate, above 0.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    value: checks.Positive

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.value, step.dtype)


@checks.dataclass
class Exponential(_Schedule):
    """`rate = value * decay_rate ^ (step / decay_steps)`.

    Attributes:
      value: the rate at step 0, above 0.
      decay_rate: the factor of the rate for each `decay_steps` steps, in (0, 1].
      decay_steps: the number of steps after which the rate is `decay_rate` times as large, at least
        1.
      staircase: True rounds the exponent down, so the rate falls in jumps.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    value: checks.Positive
    decay_rate: Annotated[float, checks.In("(0, 1]")]
    decay_steps: checks.Count
    staircase: bool = False

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        exponent = step / self.decay_steps
        if self.staircase:
            exponent = tf.floor(exponent)
        return self.value * tf.pow(tf.constant(self.decay_rate, step.dtype), exponent)


@checks.dataclass
class Cosine(_Schedule):
    """`rate = end + (value - end) * (1 + cos(pi * step / decay_steps)) / 2`, then `end`.

    I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017,
    arXiv:1608.03983, but without restarts.

    Attributes:
      value: the rate at step 0, above 0.
      decay_steps: the step at which the rate reaches `end_value`; by default `Run.train_steps`. Set
        `decay_steps` if you may add steps to the run later: the curve then does not change.
      end_value: the rate from `decay_steps` on, at least 0.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    value: checks.Positive
    decay_steps: checks.Count | None = None
    end_value: checks.NotNegative = 0.0

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        progress = _compute_progress(self, step)
        share = (1 + tf.cos(math.pi * progress)) / 2
        return self.end_value + (self.value - self.end_value) * share


@checks.dataclass
class Piecewise(_Schedule):
    """`rate = values[i]` from step `boundaries[i - 1]` on.

    Attributes:
      boundaries: N increasing global steps at which the rate changes.
      values: N + 1 rates, above 0.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    boundaries: Sequence[int]
    values: Sequence[checks.Positive]

    def __post_init__(self):
        super().__post_init__()
        rising = all(a < b for a, b in itertools.pairwise([0, *self.boundaries]))
        checks.require(rising, "Piecewise.boundaries", "increase from above 0", self.boundaries)
        fits = len(self.values) == len(self.boundaries) + 1
        rule = f"hold one more than the {len(self.boundaries)} boundaries"
        checks.require(fits, "Piecewise.values", rule, self.values)

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        index = tf.reduce_sum(tf.cast(step >= tf.constant(self.boundaries, step.dtype), tf.int32))
        return tf.gather(tf.constant(self.values, step.dtype), index)


@checks.dataclass
class Polynomial(_Schedule):
    """`rate = end + (value - end) * (1 - step / decay_steps) ^ power`, then `end`.

    Attributes:
      value: the rate at step 0, above 0.
      decay_steps: the step at which the rate reaches `end_value`; by default `Run.train_steps`. Set
        `decay_steps` if you may add steps to the run later: the curve then does not change.
      end_value: the rate from `decay_steps` on, at least 0.
      power: the exponent, above 0; with 1, the rate falls linearly.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    value: checks.Positive
    decay_steps: checks.Count | None = None
    end_value: checks.NotNegative = 0.0
    power: checks.Positive = 1.0

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        remaining = 1 - _compute_progress(self, step)
        return self.end_value + (self.value - self.end_value) * tf.pow(remaining, self.power)


@checks.dataclass
class Sigmoid(_Schedule):
    """`rate = value * (2 / (1 + exp(-steepness * step / rise_steps)) - 1)`, then constant.

    The rate rises from 0. Use the schedule `Sigmoid` for weights of losses, and for the reversal of
    `auxiliary.GradientReversal`, as in Ganin et al., "Domain-Adversarial Training of Neural
    Networks", 2016, arXiv:1505.07818.

    Attributes:
      value: the limit of the rate, above 0. With the default `steepness`, the last rate is 0.9999
        of the limit.
      rise_steps: the step from which the rate is constant; by default `Run.train_steps`.
      steepness: the steepness of the rise, above 0; 10 in the paper.
      warmup_steps: the number of steps of linear warm-up; 0 for no warm-up.
    """

    value: checks.Positive = 1.0
    rise_steps: checks.Count | None = None
    steepness: checks.Positive = 10.0

    def _compute_rate(self, step: tf.Tensor) -> tf.Tensor:
        # tanh is 2 / (1 + exp(-x)) - 1, without its rounding error near 0.
        return self.value * tf.tanh(self.steepness / 2 * _compute_progress(self, step))


_LENGTHS = ("decay_steps", "rise_steps")
"""The settings for the length of a schedule; `fill_decay_steps` replaces None by a length."""


def _compute_progress(schedule: Any, step: tf.Tensor) -> tf.Tensor:
    """Compute the share of the schedule's steps that are done, in [0, 1]."""
    setting = next(name for name in _LENGTHS if hasattr(schedule, name))
    where, fix = (
        f"{type(schedule).__name__}.{setting}",
        "The default, Run.train_steps, exists only in the model of a run.",
    )
    steps = getattr(schedule, setting)
    checks.require(steps is not None, where, "be set here", None, fix)
    return tf.minimum(tf.constant(1, step.dtype), step / steps)


def fill_decay_steps(part: Any, steps: int) -> Any:
    """Set the length of those schedules in a part that have no length yet.

    Args:
      part: a part with schedules in its settings, or a list or dict of parts, at any depth.
      steps: the number of steps of the run.

    Returns:
      The part itself if all its schedules have a length, else a copy with the lengths.
    """
    values = _list_values(part)
    new_values = {place: fill_decay_steps(value, steps) for place, value in values.items()}
    if isinstance(part, (Cosine, Polynomial, Sigmoid)):
        new_values |= {name: steps for name in _LENGTHS if values.get(name, steps) is None}
    is_changed = any(new_values[place] is not value for place, value in values.items())
    return _rebuild_part(part, new_values) if is_changed else part


def zero_from(learning_rate: Any, last: int) -> int | None:
    """Find the first step such that a rate is 0 from this step up to step `last`.

    Args:
      learning_rate: a number, or a schedule.
      last: the last global step that is looked at, at least 0.

    Returns:
      The first step of the steps up to `last` whose rates are all 0; None if the rate at step
      `last` is above 0, if the learning rate is a number, or if the schedule comes from another
      module.
    """
    if not isinstance(learning_rate, _Schedule):
        return None
    # The graph is separate, because the caller may be building the graph of a step.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.placeholder(tf.int64, [])
        rate = session.make_callable(learning_rate(step), [step])
        steps = range(last + 1)
        return (
            # A schedule of this module does not rise again after a 0, so bisection finds the first
            # 0.
            bisect.bisect_left(steps, True, key=lambda at: rate(at) == 0)
            if rate(last) == 0
            else None
        )


def _list_values(part: Any) -> dict[Any, Any]:
    """Return the entries of a list or dict, or the settings of a part; {} for other values."""
    if type(part) in (list, tuple):
        return dict(enumerate(part))
    if type(part) is dict:
        return part
    if not checks.is_part(part):
        return {}
    return {
        field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init
    }


def _rebuild_part(part: Any, values: dict[Any, Any]) -> Any:
    """Return a copy of a list, dict or part with new values."""
    if type(part) in (list, tuple):
        return type(part)(values.values())
    return values if type(part) is dict else dataclasses.replace(part, **values)
