"""Runs several training steps per session call, in a loop inside the graph.

Because of hooks, fetches and Python, each session call takes extra time, about as much as a small
step. To save the extra time of session calls, one call runs a `tf.while_loop` over several steps.
The loop ends at the next step with a checkpoint or a summary, at the last step of the run, or after
about a second. A run therefore writes the same files at the same steps, for any value of
`steps_per_call`.

    from mtl import experiment
    experiment.Run.steps_per_call = 100          # 1 turns the loop off
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.step import outlets

SECS_PER_CALL = 1.0
"""Seconds after which a call ends, to let hooks see progress, signals and stop requests."""

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]
"""A function (features, labels) -> (the op that updates the variables, {name: scalar})."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The results of the last step of a session call.

    Attributes:
      step: int64 scalar, the global step after the call; evaluating it runs the call.
      values: float32 [M], the scalars of the call's last step. If the limit of a second ends a call
        of several steps, the scalars of `outlets.add_scalars_where_due` are NaN.
      names: the names of the M scalars.
      summary: string scalar, the `tf1.summary` output of the call's last step; None if the step
        makes no summary. A session call that runs a single step computes the summary only if the
        summary is fetched.
      due: string scalar, the summaries of `outlets.add_summary` in the call's last step; "" if none
        was due, None if steps never add a summary.
      is_repeated: True if a session call may run several steps.
      waited: float64 scalar, the seconds that the call's steps waited for their batches; None if a
        call runs a single step, because its batch is an input of the graph.
    """

    step: tf.Tensor
    values: tf.Tensor
    names: tuple[str, ...]
    summary: tf.Tensor | None = None
    due: tf.Tensor | None = None
    is_repeated: bool = False
    waited: tf.Tensor | None = None

    def __getitem__(self, name: str) -> tf.Tensor:
        checks.one_of("the name of a scalar of a step", name, self.names)
        return self.values[self.names.index(name)]


Due = tuple["tf.Tensor", ...]
"""The serialized summaries of a step, joined to a string scalar; () if no step adds a summary."""


class Clock(NamedTuple):
    """The times of a session call, in seconds.

    Attributes:
      read: float64 scalar, the time at the end of the last step; before the first step, the time at
        the start of the session call.
      waited: float64 scalar, the seconds that the call has waited for batches.
    """

    read: tf.Tensor
    waited: tf.Tensor


def run_once(step_fn: StepFn, features: Any, labels: Any) -> StepResult:
    """Build a training step that each session call runs once.

    Args:
      step_fn: a function that builds the step.
      features: {field: [B, ...]} of the next batch.
      labels: {field: [B, ...]} of the next batch.

    Returns:
      The outputs of the step.
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
    """Build a loop that runs up to `steps_per_call` training steps per session call.

    Args:
      step_fn: a function that builds a step; it is traced once, as the body of a `tf.while_loop`.
      iterator: an iterator whose `get_next()` returns (features, labels).
      steps_per_call: the largest number of steps of a call.
      last_step: the last global step of the run.
      due_every: numbers of steps; a session call ends at each multiple of each number.
      due_at: global steps at which a session call ends.
      has_due: True if the step calls `outlets.add_summary`.
    """
    start = tf1.train.get_or_create_global_step().read_value()
    # The end step of the session call is computed once, before the loop. All steps of a call must
    # agree on the last step, because only the last step writes summaries.
    end = _find_end(start, steps_per_call, last_step, due_every, due_at)
    start_time = tf.timestamp()
    # The loop carries a string of summaries only if a step can add summaries.
    no_due = (tf.constant(""),) if has_due else ()
    steps = _Steps(step_fn, iterator, end, no_due)

    def goes_on(state: _State) -> tf.Tensor:
        in_time = state.clock.read - start_time < SECS_PER_CALL
        return (state.step < end) & (in_time | tf.equal(state.step, start))

    clock = Clock(start_time, tf.zeros([], tf.float64))
    initial_values = tf.zeros([0]), tf.constant(""), clock, no_due
    scalar = tf.TensorShape([])
    rest = scalar, Clock(scalar, scalar), tuple(scalar for _ in no_due)
    # TensorFlow runs several iterations of a loop at once by default. Training steps must run one
    # by one, because each step reads the weights that the step before has changed.
    (final_state,) = tf.while_loop(
        goes_on,
        steps.take_one,
        [_State(start, *initial_values)],
        shape_invariants=[_State(scalar, tf.TensorShape([None]), *rest)],
        parallel_iterations=1,
    )
    # A call after the run's last step runs no step, and returns zeros as the scalars of the step.
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
    """The values that the loop over steps passes from one step to the next.

    Attributes:
      step: the global step.
      values: the M scalars of the last step, [M]; before the first step, an empty vector.
      summary: the `tf1.summary` output of the last step.
      clock: the time at the end of the last step, and the seconds spent on waiting for batches.
      due: the summaries of `outlets.add_summary` in the last step.
    """

    step: tf.Tensor
    values: tf.Tensor
    summary: tf.Tensor
    clock: Clock
    due: Due


class _Steps:
    """Builds the steps of a session call.

    Args:
      step_fn: a function that builds a step.
      iterator: an iterator whose `get_next()` returns a batch.
      end: the global step at which the call ends.
      no_due: the value of `Due` for a step without summaries.

    Attributes:
      names: the names of the scalars, after a step was traced.
      has_summary: True if a step makes summaries, after a step was traced.
    """

    def __init__(self, step_fn: StepFn, iterator: Any, end: tf.Tensor, no_due: Due):
        self._step_fn, self._iterator, self._end, self._no_due = step_fn, iterator, end, no_due
        self.names: tuple[str, ...] = ()
        self.has_summary = False

    def take_one(self, state: _State) -> list[_State]:
        """Build one step, as the body of the loop over steps."""
        step, values, clock = state.step, state.values, state.clock
        with tf.control_dependencies([step, values, clock.read]):
            features, labels = self._iterator.get_next()
        # The measured wait for a batch ends when the first label is there. The wait for features is
        # not measured, because some features are computed only if the step reads them.
        tensors = tf.nest.flatten((labels, features), expand_composites=True)
        with tf.control_dependencies([tensor for tensor in tensors if tensor is not None][:1]):
            waited = clock.waited + (tf.timestamp() - clock.read)
        # A call ends at each step that must write summaries, so only the last step of a call writes
        # summaries.
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
        # The loop returns only its state. Every step replaces the values in the state, so the
        # returned values come from the last step.
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
    """Join serialized summaries: concatenated protocol buffers parse as one merged message."""
    return tf.strings.join(summaries) if summaries else None
