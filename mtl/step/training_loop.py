"""Several training steps per session call, inside the graph, with exact step counts.

A session call costs about as much as a small step: hooks, fetches, the way through Python. So a
call runs a `tf.while_loop` over steps. It ends at the next step on which something is due
(checkpoint, summary, end of training), or after about a second, so that what a run writes
and when does not depend on `steps_per_call`.

    from mtl import experiment
    experiment.Run.steps_per_call = 100          # 1 turns the loop off
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mtl.step import monitors as monitors_lib
from mtl.step import summaries

tf1 = tf.compat.v1

SECS_PER_CALL = 1.0
"""Hooks see a step after about so long: progress, signals and stop requests."""

StepFn = Callable[[Any, Any], tuple[tf.Operation, Mapping[str, tf.Tensor]]]
"""(features, labels) -> the op that updates the variables and {name: scalar} to watch."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What the last step of a session call left behind.

    Attributes:
      step: int64 scalar, the global step after the call; evaluating it runs the call.
      values: float32 [M], the monitors of the call's last step; those of `monitors.add_where_due`
        are NaN where a call of several steps ends because of its time.
      names: their M names.
      summary: string scalar, what `tf1.summary` made in the call's last step, None where nothing
        did. A call of one step makes it only where it is fetched.
      due: string scalar, the summaries that were due in the call's last step, "" where none was;
        None where none ever is.
      is_repeated: whether a call may run several steps.
      waited: float64 scalar, the seconds that the call's steps waited for their batches; None where
        a call runs one step, whose batch comes from outside.
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


Due = tuple[tf.Tensor, ...]
"""The summaries that were due, one string scalar; none where nothing ever is."""


class Clock(NamedTuple):
    """When the last step ended, and how long a call has waited for batches: seconds, float64."""

    read: tf.Tensor
    waited: tf.Tensor


def run_once(step_fn: StepFn, features: Any, labels: Any) -> StepResult:
    """Take one step per session call."""
    with summaries.collect_due() as due:
        train_op, monitors = step_fn(features, labels)
    values, summary = _stack(monitors), summaries.take_summaries()
    with tf.control_dependencies([train_op, values, *due]):
        step = tf1.train.get_global_step().read_value()
    return StepResult(step, tf.identity(values), tuple(monitors), summary, _join(due))


def run_repeatedly(
    step_fn: StepFn,
    iterator: Any,
    steps_per_call: int,
    last_step: int,
    due_every: tuple[int, ...],
    due_at: tuple[int, ...] = (),
    has_due: bool = False,
) -> StepResult:
    """Take up to `steps_per_call` steps per session call.

    Args:
      step_fn: one training step; it is traced once, as the body of a `tf.while_loop`.
      iterator: its `get_next()` gives (features, labels).
      steps_per_call: the most steps a call runs.
      last_step: no call passes this global step.
      due_every: no call passes a multiple of any of these.
      due_at: no call passes any of these steps.
      has_due: whether the step adds summaries that are due at some steps.
    """
    start = tf1.train.get_or_create_global_step().read_value()
    end = _find_end(start, steps_per_call, last_step, due_every, due_at)
    started = tf.timestamp()
    # One string more in the loop, and none where nothing is ever due.
    no_due = (tf.constant(""),) if has_due else ()
    steps = _Steps(step_fn, iterator, end, no_due)

    def goes_on(state: _State) -> tf.Tensor:
        in_time = state.clock.read - started < SECS_PER_CALL
        return (state.step < end) & (in_time | tf.equal(state.step, start))

    nothing = tf.zeros([0]), tf.constant(""), Clock(started, tf.zeros([], tf.float64)), no_due
    scalar = tf.TensorShape([])
    rest = scalar, Clock(scalar, scalar), tuple(scalar for _ in no_due)
    (ended,) = tf.while_loop(
        goes_on,
        steps.take_one,
        [_State(start, *nothing)],
        shape_invariants=[_State(scalar, tf.TensorShape([None]), *rest)],
        parallel_iterations=1,
    )
    # A call after the last step runs no step and leaves no values.
    count = len(steps.names)
    values = tf.concat([ended.values, tf.zeros([count])], 0)[:count]
    return StepResult(
        ended.step,
        tf.ensure_shape(values, [count]),
        tuple(steps.names),
        ended.summary if steps.has_summary else None,
        ended.due[0] if has_due else None,
        is_repeated=True,
        waited=ended.clock.waited,
    )


class _State(NamedTuple):
    """What a step of a call hands to the next one.

    Attributes:
      step: the global step.
      values: the monitors of the step before, [M]; [0] before the first step.
      summary: what `tf1.summary` made in it.
      clock: the time.
      due: the summaries that were due in it.
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
      iterator: gives its batch.
      end: the global step at which the call ends.
      no_due: stands for the summaries of a step at which none is due.

    Attributes:
      names: of the monitors, once a step is traced.
      has_summary: whether it makes summaries.
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
        given = tf.nest.flatten((features, labels), expand_composites=True)
        with tf.control_dependencies([tensor for tensor in given if tensor is not None][:1]):
            waited = clock.waited + (tf.timestamp() - clock.read)
        # Whatever is written is of a call's last step, and every step that is due ends its call.
        is_last = tf.equal(step + 1, self._end)
        with monitors_lib.compute_where(is_last), summaries.collect_due() as added:
            train_op, monitors = self._step_fn(features, labels)
        self.names, made = tuple(monitors), summaries.take_summaries()
        self.has_summary = made is not None
        values = _stack(monitors)
        with tf.control_dependencies([train_op, *added]):
            step, values = step + 1, tf.identity(values)
        # The time is read after the step's values, or it would be read once for all steps.
        with tf.control_dependencies([step, values]):
            clock = Clock(tf.timestamp(), waited)
        joined = _join(added) if self._no_due else None
        due = self._no_due if joined is None else (joined,)
        return [_State(step, values, state.summary if made is None else made, clock, due)]


def _find_end(
    start: tf.Tensor,
    steps_per_call: int,
    last_step: int,
    due_every: tuple[int, ...],
    due_at: tuple[int, ...],
) -> tf.Tensor:
    """Return the global step at which a call that begins at `start` ends."""
    due = [(start // every + 1) * every for every in due_every]
    if due_at:
        chosen = tf.constant(due_at, start.dtype)
        due.append(tf.reduce_min(tf.where(chosen > start, chosen, start.dtype.max)))
    return tf.reduce_min(tf.stack([start + steps_per_call, last_step, *due]))


def _stack(monitors: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.cast(value, tf.float32) for value in monitors.values()])


def _join(due: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Join serialized summaries: those of two messages one after the other are one message."""
    return tf.strings.join(due) if due else None
