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
    due = [(start // every + 1) * every for every in due_every]
    if due_at:
        chosen = tf.constant(due_at, start.dtype)
        due.append(tf.reduce_min(tf.where(chosen > start, chosen, start.dtype.max)))
    end = tf.reduce_min(tf.stack([start + steps_per_call, last_step, *due]))
    started = tf.timestamp()
    names: list[str] = []
    taken: list[tf.Tensor] = []

    # One string more in the loop, and none where nothing is ever due.
    no_due = (tf.constant(""),) if has_due else ()

    def goes_on(
        step: tf.Tensor, values: tf.Tensor, summary: tf.Tensor, clock: Clock, due: Due
    ) -> tf.Tensor:
        del values, summary, due
        in_time = clock.read - started < SECS_PER_CALL
        return (step < end) & (in_time | tf.equal(step, start))

    def body(
        step: tf.Tensor, values: tf.Tensor, summary: tf.Tensor, clock: Clock, due: Due
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Clock, Due]:
        with tf.control_dependencies([step, values, clock.read]):
            features, labels = iterator.get_next()
        given = tf.nest.flatten((features, labels), expand_composites=True)
        with tf.control_dependencies([tensor for tensor in given if tensor is not None][:1]):
            waited = clock.waited + (tf.timestamp() - clock.read)
        # Whatever is written is of a call's last step, and every step that is due ends its call.
        with monitors_lib.compute_where(tf.equal(step + 1, end)), summaries.collect_due() as added:
            train_op, monitors = step_fn(features, labels)
        names.extend(monitors)
        made = summaries.take_summaries()
        taken.extend([] if made is None else [made])
        values = _stack(monitors)
        with tf.control_dependencies([train_op, *added]):
            step, values = step + 1, tf.identity(values)
        # The time is read after the step's values, or it would be read once for all steps.
        with tf.control_dependencies([step, values]):
            clock = Clock(tf.timestamp(), waited)
        if has_due:
            joined = _join(added)
            due = no_due if joined is None else (joined,)
        return step, values, summary if made is None else made, clock, due

    step, values, summary, clock, last_due = tf.while_loop(
        goes_on,
        body,
        [start, tf.zeros([0]), tf.constant(""), Clock(started, tf.zeros([], tf.float64)), no_due],
        shape_invariants=[
            tf.TensorShape([]),
            tf.TensorShape([None]),
            tf.TensorShape([]),
            Clock(tf.TensorShape([]), tf.TensorShape([])),
            tuple(tf.TensorShape([]) for _ in no_due),
        ],
        parallel_iterations=1,
    )
    # A call after the last step runs no step and leaves no values.
    values = tf.concat([values, tf.zeros([len(names)])], 0)[: len(names)]
    values = tf.ensure_shape(values, [len(names)])
    summary = summary if taken else None
    return StepResult(
        step,
        values,
        tuple(names),
        summary,
        last_due[0] if has_due else None,
        is_repeated=True,
        waited=clock.waited,
    )


def _stack(monitors: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.cast(value, tf.float32) for value in monitors.values()])


def _join(due: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Join serialized summaries: those of two messages one after the other are one message."""
    return tf.strings.join(due) if due else None
