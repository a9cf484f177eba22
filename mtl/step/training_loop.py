"""Several training steps per session call, inside the graph, with exact step counts.

A session call costs about as much as a small step: hooks, fetches, the way through Python. So a
call runs a `tf.while_loop` over steps. It ends at the next step with a checkpoint or a summary, at
the last step, or after about a second. A run therefore writes the same files at the same steps,
whatever `steps_per_call` is.

    from mtl import experiment
    experiment.Run.steps_per_call = 100          # 1 turns the loop off
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl.deferred import tf, tf1
from mtl.step import outlets

SECS_PER_CALL = 1.0
"""Seconds after which a call ends, to let hooks see progress, signals and stop requests."""

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]
"""(features, labels) -> the op that updates the variables and {name: scalar} to watch."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The results of the last step of a session call.

    Attributes:
      step: int64 scalar, the global step after the call; evaluating it runs the call.
      values: float32 [M], the monitors of the call's last step. If a call of several steps ends
        because of its time, the monitors of `outlets.add_scalars_where_due` are NaN.
      names: the names of the M monitors.
      summary: string scalar, the `tf1.summary` output of the call's last step; None if the step
        makes none. A call of a single step computes it only if it is fetched.
      due: string scalar, the summaries that were due in the call's last step, "" if none was due;
        None if a step never adds any.
      is_repeated: True if a call may run several steps.
      waited: float64 scalar, the seconds that the call's steps waited for their batches; None if a
        call runs a single step, whose batch comes from outside.
    """

    step: tf.Tensor
    values: tf.Tensor
    names: tuple[str, ...]
    summary: tf.Tensor | None = None
    due: tf.Tensor | None = None
    is_repeated: bool = False
    waited: tf.Tensor | None = None

    def __getitem__(self, name: str) -> tf.Tensor:
        return self.values[self.names.index(name)]


Due = tuple["tf.Tensor", ...]
"""The summaries that were due, one string scalar; () if a step never adds any."""


class Clock(NamedTuple):
    """The time at which the last step ended, and the call's wait for batches: seconds, float64."""

    read: tf.Tensor
    waited: tf.Tensor


def run_once(step_fn: StepFn, features: Any, labels: Any) -> StepResult:
    """Build a step that each session call takes once.

    Args:
      step_fn: builds the step.
      features: {field: [B, ...]} of the next batch.
      labels: {field: [B, ...]} of the next batch.

    Returns:
      The results of the step.
    """
    with outlets.collect_summaries() as due_summaries:
        train_op, monitors = step_fn(features, labels)
    values, summary = _stack(monitors), outlets.take_summaries()
    with tf.control_dependencies([train_op, values, *due_summaries]):
        step = tf1.train.get_global_step().read_value()
    return StepResult(step, tf.identity(values), tuple(monitors), summary, _join(due_summaries))


def run_repeatedly(
    step_fn: StepFn,
    iterator: Any,
    steps_per_call: int,
    last_step: int,
    due_every: tuple[int, ...],
    due_at: tuple[int, ...] = (),
    has_due: bool = False,
) -> StepResult:
    """Build a loop that takes up to `steps_per_call` steps per session call.

    Args:
      step_fn: one training step; it is traced once, as the body of a `tf.while_loop`.
      iterator: an iterator whose `get_next()` returns (features, labels).
      steps_per_call: the largest number of steps of a call.
      last_step: no call passes this global step.
      due_every: no call passes a multiple of any of these.
      due_at: no call passes any of these steps.
      has_due: True if the step adds summaries that are due at some steps.
    """
    start = tf1.train.get_or_create_global_step().read_value()
    # Computed once, before the loop: the steps of a call must agree on the last step, as only the
    # last step makes summaries.
    end = _find_end(start, steps_per_call, last_step, due_every, due_at)
    start_time = tf.timestamp()
    # The loop carries this string only if a step can add summaries.
    no_due = (tf.constant(""),) if has_due else ()
    steps = _Steps(step_fn, iterator, end, no_due)

    def goes_on(state: _State) -> tf.Tensor:
        in_time = state.clock.read - start_time < SECS_PER_CALL
        return (state.step < end) & (in_time | tf.equal(state.step, start))

    clock = Clock(start_time, tf.zeros([], tf.float64))
    initial_values = tf.zeros([0]), tf.constant(""), clock, no_due
    scalar = tf.TensorShape([])
    rest = scalar, Clock(scalar, scalar), tuple(scalar for _ in no_due)
    # TensorFlow runs several iterations of a loop at once by default. Steps must run one by one:
    # each step reads the weights that the step before has moved.
    (final_state,) = tf.while_loop(
        goes_on,
        steps.take_one,
        [_State(start, *initial_values)],
        shape_invariants=[_State(scalar, tf.TensorShape([None]), *rest)],
        parallel_iterations=1,
    )
    # A call after the last step runs no step and leaves no values.
    count = len(steps.names)
    values = tf.concat([final_state.values, tf.zeros([count])], 0)[:count]
    return StepResult(
        final_state.step,
        tf.ensure_shape(values, [count]),
        tuple(steps.names),
        final_state.summary if steps.has_summary else None,
        final_state.due[0] if has_due else None,
        is_repeated=True,
        waited=final_state.clock.waited,
    )


class _State(NamedTuple):
    """The state of the loop between two steps.

    Attributes:
      step: the global step.
      values: the monitors of the last step, [M]; [0] before the first step.
      summary: the `tf1.summary` output of the last step.
      clock: the time.
      due: the summaries that were due in the last step.
    """

    step: tf.Tensor
    values: tf.Tensor
    summary: tf.Tensor
    clock: Clock
    due: Due


class _Steps:
    """The steps of a call.

    Args:
      step_fn: builds one step.
      iterator: an iterator whose `get_next()` returns a batch.
      end: the global step at which the call ends.
      no_due: the value of `Due` in a step without summaries.

    Attributes:
      names: the names of the monitors, once a step is traced.
      has_summary: True if a step makes summaries, once a step is traced.
    """

    def __init__(self, step_fn: StepFn, iterator: Any, end: tf.Tensor, no_due: Due):
        self._step_fn, self._iterator, self._end, self._no_due = step_fn, iterator, end, no_due
        self.names: tuple[str, ...] = ()
        self.has_summary = False

    def take_one(self, state: _State) -> list[_State]:
        """Build the body of the loop."""
        step, values, clock = state.step, state.values, state.clock
        with tf.control_dependencies([step, values, clock.read]):
            features, labels = self._iterator.get_next()
        # Labels come first: some features are made only if the step reads them.
        tensors = tf.nest.flatten((labels, features), expand_composites=True)
        with tf.control_dependencies([tensor for tensor in tensors if tensor is not None][:1]):
            waited = clock.waited + (tf.timestamp() - clock.read)
        # Only the last step of a call writes, and a call ends at each step with a summary that is
        # due.
        is_last = tf.equal(step + 1, self._end)
        with outlets.compute_where(is_last), outlets.collect_summaries() as due_summaries:
            train_op, monitors = self._step_fn(features, labels)
        self.names, summary = tuple(monitors), outlets.take_summaries()
        self.has_summary = summary is not None
        values = _stack(monitors)
        with tf.control_dependencies([train_op, *due_summaries]):
            step, values = step + 1, tf.identity(values)
        # Without this dependency, the loop would read the time once for all steps.
        with tf.control_dependencies([step, values]):
            clock = Clock(tf.timestamp(), waited)
        due_summary = _join(due_summaries) if self._no_due else None
        next_due = self._no_due if due_summary is None else (due_summary,)
        # Only the state leaves the loop. It holds values of the last step, as every step replaces
        # them.
        return [
            _State(step, values, state.summary if summary is None else summary, clock, next_due)
        ]


def _find_end(
    start: tf.Tensor,
    steps_per_call: int,
    last_step: int,
    due_every: tuple[int, ...],
    due_at: tuple[int, ...],
) -> tf.Tensor:
    """Return the global step at which a call that begins at `start` ends."""
    ends = [(start // interval + 1) * interval for interval in due_every]
    if due_at:
        steps = tf.constant(due_at, start.dtype)
        ends.append(tf.reduce_min(tf.where(steps > start, steps, start.dtype.max)))
    return tf.reduce_min(tf.stack([start + steps_per_call, last_step, *ends]))


def _stack(monitors: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.cast(value, tf.float32) for value in monitors.values()])


def _join(summaries: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Join serialized summaries: two serialized messages in a row are one message."""
    return tf.strings.join(summaries) if summaries else None
