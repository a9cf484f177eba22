"""Defines hooks that act at exact global steps, even if a session call makes many steps.

hooks.Summaries(result, model_dir, every_steps=100, batch_size=64)     # TensorBoard

Estimator's hooks assume one step for each session call, and count steps from the start of the
process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import features
from mtl.deferred import tf, tf1
from mtl.monitoring import doubts
from mtl.step import training_loop
from mtl.tf_internals import repeated_calls

_log = logging.getLogger(__name__)

# If a task has more than this share of the sum of losses, a warning says that the task dominates.
_DOMINANT_SHARE = 0.9
# If more than this share of the steps was skipped, a warning reports the skipped steps.
_SKIPPED_SHARE = 0.1
# If more than this share of a table's rows is used, most new keys find no free row.
_FULL_SHARE = 0.95


@dataclasses.dataclass
class TrainingTime:
    """Measures the time in session calls, without pauses between calls, such as evaluations.

    Attributes:
      secs: the total time in seconds.
      waited_secs: the seconds that steps spent waiting for their batches; None if unknown.
    """

    secs: float = 0.0
    waited_secs: float | None = None


class StepHook:
    """Calls `on_step` after every session call that made a step, with the values of the last step.

    Step hooks run inside `StepHooks`, which sets their attribute `time`.
    """

    def __init__(self, result: training_loop.StepResult):
        self._result = result
        self.time = TrainingTime()

    def begin(self) -> None:
        """Prepare before the session is created, like `SessionRunHook.begin`."""

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Read variables after they are restored, like `SessionRunHook.after_create_session`."""

    def end(self, session: tf.compat.v1.Session) -> None:
        """Act at the end of training, like `SessionRunHook.end`."""

    def choose_more(self, step: int) -> Sequence[tf.Tensor]:
        """Return additional tensors whose values `on_step` needs; by default, none.

        Args:
          step: the first global step that the next session call makes.

        Returns:
          Tensors that this session call fetches; their values are additional arguments of
          `on_step`.
        """
        return ()

    def on_step(self, run_context, step: int, values: np.ndarray) -> None:
        """Read the fetched tensors after a session call; each subclass says for what.

        `on_step` also gets the values of the tensors from `choose_more`, as additional arguments.

        Args:
          run_context: the context of the session call, which can end the training.
          step: the global step after the call.
          values: the values of the scalars `result.names` in the last step of the call, float [N].
        """
        raise NotImplementedError


class UnseenSteps(NamedTuple):
    """Makes training steps that no hook needs to see, by session calls without hooks.

    Calls without hooks save time if each session call makes a single step, such as with replicas:
    hooks take a tenth of the time of a small network's step. Hooks see the steps of `due_every` and
    `due_at`, the last step, and one step each second, as with a loop over steps in the graph.

    Attributes:
      last_step: the last step of the run.
      due_every: hooks see each step that is a multiple of one of these numbers.
      due_at: hooks see these steps.
    """

    last_step: int
    due_every: Sequence[int]
    due_at: Sequence[int] = ()

    def take(self, session: tf.compat.v1.Session, fetches: Any, step: int, pace: float) -> int:
        """Run the training steps after `step`, up to the next step that a hook needs to see.

        If steps take longer than a second, hooks see every step, so that a request to stop ends the
        run after the current step.

        Args:
          session: the session of the training.
          fetches: the tensors and ops that `Session.run` fetches to make a training step.
          step: the last step so far.
          pace: an estimate of the time for a step, in seconds.

        Returns:
          The last step that was made; the next session call makes a step that hooks see.
        """
        due = [(step // every + 1) * every for every in self.due_every]
        due += [later for later in self.due_at if later > step]
        # Stop one step before the next step that a hook needs to see: the following session call
        # makes that step with hooks.
        end = min([self.last_step, *due]) - 1
        deadline = time.perf_counter() + training_loop.SECS_PER_CALL
        while step < end and time.perf_counter() + pace < deadline:
            session.run(fetches)
            step += 1
        return step


class StepHooks(tf.compat.v1.train.SessionRunHook):
    """Runs step hooks in order, and fetches the values of a step once for all hooks.

    If each hook fetched its values separately, the hooks would take a tenth of a small network's
    step.

    Args:
      result: the tensors that a training step computes, such as its losses.
      hooks: the step hooks, in order.
      unseen: makes steps that no hook needs to see; None lets hooks see every step.
    """

    def __init__(
        self,
        result: training_loop.StepResult,
        hooks: Sequence[StepHook],
        unseen: UnseenSteps | None = None,
    ):
        self._hooks, self._unseen = hooks, unseen
        self._pace = 0.0
        self._common, self._time = [result.step, result.values], TrainingTime()
        if result.waited is not None:
            self._common, self._time.waited_secs = [*self._common, result.waited], 0.0
        for hook in hooks:
            hook.time = self._time

    def begin(self):
        for hook in self._hooks:
            hook.begin()

    def after_create_session(self, session, coord):
        repeated_calls.prepare(session)
        self._last_step = int(session.run(tf1.train.get_global_step()))
        for hook in self._hooks:
            hook.after_create_session(session, coord)

    def before_run(self, run_context):
        self._call_time, self._call_step = time.perf_counter(), self._last_step
        if self._unseen:
            session, fetches = run_context.session, run_context.original_args.fetches
            self._last_step = self._unseen.take(session, fetches, self._last_step, self._pace)
        more = [hook.choose_more(self._last_step + 1) for hook in self._hooks]
        self._counts = [len(tensors) for tensors in more]
        return tf1.train.SessionRunArgs([*self._common, *itertools.chain(*more)])

    def after_run(self, run_context, run_values):
        secs = time.perf_counter() - self._call_time
        self._time.secs += secs
        results = iter(run_values.results)
        step, values = int(next(results)), next(results)
        if self._time.waited_secs is not None:
            self._time.waited_secs += next(results)
        # If `unseen` makes steps without hooks, several steps lie between two calls of `after_run`.
        self._pace = secs / max(1, step - self._call_step)
        # A call without a step, such as the last call of a run, has no values.
        if step == self._last_step:
            return
        self._last_step = step
        for hook, count in zip(self._hooks, self._counts, strict=True):
            hook.on_step(run_context, step, values, *itertools.islice(results, count))

    def end(self, session):
        for hook in self._hooks:
            hook.end(session)


class Summaries(StepHook):
    """Writes the scalars of a step and the speed for TensorBoard, every `every_steps` steps.

    The hook also writes summaries that `tf1.summary` made in the same step. An asynchronous worker
    does not know the next global step, so values of `tf1.summary` may come from the following step.

    Args:
      result: the tensors that a training step computes, such as its losses.
      model_dir: the folder of the run.
      every_steps: the number of training steps between two summaries.
      batch_size: the number of rows of a step.
      writes_graph: True also writes the graph of the training for TensorBoard.
    """

    def __init__(
        self, result, model_dir: str, every_steps: int, batch_size: int, writes_graph: bool = True
    ):
        super().__init__(result)
        self._model_dir, self._every, self._batch_size = model_dir, every_steps, batch_size
        self._writes_graph = writes_graph

    def begin(self):
        self._writer = open_writer(self._model_dir)

    def after_create_session(self, session, coord):
        step = session.run(tf1.train.get_global_step())
        self._last, self._is_summary_missed = (0.0, step), False
        self._last_waited = 0.0
        purge_from(self._writer, step + 1)
        if self._writes_graph:
            self._writer.add_graph(session.graph)

    def choose_more(self, step):
        summary = self._result.summary
        # A loop in the graph may end at any later step, so always fetch its summary.
        may_be_due = self._result.is_repeated or self._is_summary_missed or self._is_due(step)
        return () if summary is None or not may_be_due else (summary,)

    def _is_due(self, step: int) -> bool:
        # A session call may pass a multiple of `every_steps` without ending at this multiple.
        return step // self._every != self._last[1] // self._every

    def on_step(self, run_context, step, values, summary=None):
        is_due = self._is_due(step)
        # If a summary is due, but was not fetched, write the summary of the next step.
        self._is_summary_missed |= is_due
        if self._is_summary_missed and summary is not None:
            self._writer.add_summary(summary, step)
            self._writer.flush()
            self._is_summary_missed = False
        if is_due:
            self._write(step, values)

    def _write(self, step: int, values: np.ndarray) -> None:
        secs, waited_secs = self.time.secs - self._last[0], self.time.waited_secs
        speed = (step - self._last[1]) / secs
        self._last = (self.time.secs, step)
        scalars = dict(zip(self._result.names, values.tolist(), strict=True))
        if waited_secs is not None:
            scalars["input_wait_share"] = (waited_secs - self._last_waited) / secs
            self._last_waited = waited_secs
        scalars |= {"steps_per_sec": speed, "examples_per_sec": speed * self._batch_size}
        summary = tf1.Summary(
            value=[tf1.Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()]
        )
        self._writer.add_summary(summary, step)
        # Write to the disk at once, because the last values may explain a failure.
        self._writer.flush()


def open_writer(folder: str) -> tf.compat.v1.summary.FileWriter:
    """Return the event writer of a folder, without writing the current graph to the folder."""
    with tf.Graph().as_default():
        return tf1.summary.FileWriterCache.get(folder)


@contextlib.contextmanager
def closing_writers(folder: str) -> Iterator[None]:
    """Close the event writers of a folder and its subfolders at the end of a `with` block.

    TensorFlow caches writers by the names of their folders until the process ends. If a folder is
    removed, and another training starts in a new folder of the same name, the cached writer would
    write into a removed file. If the process changes its current folder, the cached writer of a
    relative name would write into the wrong folder.
    """
    try:
        yield
    finally:
        writers = tf1.summary.FileWriterCache._cache
        names = [name for name in writers if f"{name}/".startswith(f"{folder.rstrip('/')}/")]
        for name in names:
            writers.pop(name).close()
            _set_aside(name)


def _set_aside(folder: str) -> None:
    """Rename event files that were created in the current second.

    The name of an event file contains the second of its creation, so another writer would overwrite
    a file of the same second. TensorBoard reads files in the order of their names, in which
    "-0001." comes before ".".
    """
    for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []:
        match = re.fullmatch(r"(.*tfevents\.)(\d+)(\..*)", name)
        # Rename only files of the current second, because a new writer never uses an earlier
        # second.
        if match and int(match[2]) >= int(time.time()):
            start, second, end = match.groups()
            names = (f"{start}{second}-{number:04}{end}" for number in itertools.count(1))
            path = next(filter(_is_free, (os.path.join(folder, new) for new in names)))
            tf.io.gfile.rename(os.path.join(folder, name), path)


def _is_free(path: str) -> bool:
    return not tf.io.gfile.exists(path)


def purge_from(writer: tf.compat.v1.summary.FileWriter, step: int) -> None:
    """Let TensorBoard ignore earlier events from a step on, because the run repeats these steps.

    Args:
      writer: the event writer of the folder.
      step: the first global step whose events are ignored.
    """
    start = tf1.SessionLog(status=tf1.SessionLog.START)
    writer.add_session_log(start, step)
    writer.flush()


def forget_from(folder: str, step: int) -> None:
    """Let TensorBoard ignore the events of a folder from a step on, if the folder exists.

    Args:
      folder: the folder with the event files.
      step: the first global step whose events are ignored.
    """
    if tf.io.gfile.isdir(folder):
        purge_from(open_writer(folder), step)


class Dominance(StepHook):
    """Warns at the first summary of a run if one loss is nearly the whole sum of losses."""

    def __init__(self, result, model_dir: str, model: Any, run: Any):
        super().__init__(result)
        self._model_dir = model_dir
        self._tasks, names = model.tasks, model.loss_names
        self._names = names if model.adds_losses and len(names) > 1 else ()
        self._at = min(run.summary_steps, run.train_steps)

    def after_create_session(self, session, coord):
        self._is_due = bool(self._names) and session.run(tf1.train.get_global_step()) == 0

    def on_step(self, run_context, step, values):
        if not self._is_due or step < self._at:
            return
        self._is_due = False
        scalars = dict(zip(self._result.names, values.tolist(), strict=True))
        losses = {name: scalars[f"weight/{name}"] * scalars[f"{name}/loss"] for name in self._names}
        total, name = sum(losses.values()), max(losses, key=losses.get)
        # Shares are undefined if a loss is negative, because of a term that some weightings add.
        is_sum = math.isfinite(total) and min(losses.values()) >= 0
        if is_sum and losses[name] > _DOMINANT_SHARE * total:
            is_task = name in self._tasks
            kind = "Task" if is_task else "Auxiliary loss"
            fix = "Scale the task's label, or balance tasks." if is_task else "Lower its weight."
            line = (
                f"{kind} {name!r} makes up {losses[name]:.3g} of the loss of {total:.3g} at step "
                f"{step}: other {'tasks' if is_task else 'losses'} hardly count. {fix}"
            )
            doubts.record_doubts(self._model_dir, "training", [line])


class Skipped(StepHook):
    """Warns at the end if many steps were skipped because a loss or gradient was not finite."""

    def __init__(self, result, model_dir: str):
        super().__init__(result)
        self._model_dir = model_dir
        self._step, self._values = 0, np.zeros(len(result.names))

    def on_step(self, run_context, step, values):
        self._step, self._values = step, values

    def end(self, session):
        scalars = dict(zip(self._result.names, self._values.tolist(), strict=True))
        # If `lines` stays empty, `record_doubts` removes the warning of an earlier start.
        skipped, lines = scalars.get("skipped_steps", 0), []
        if skipped > _SKIPPED_SHARE * self._step:
            lines = [
                f"{skipped:.0f} of {self._step} steps were skipped, since a loss or a gradient was "
                "not finite: the model learned nothing in them."
            ]
        doubts.record_doubts(self._model_dir, "skipped", lines)


class FullTables(StepHook):
    """Warns at the end if a growing table without eviction is nearly full."""

    def __init__(self, result, model_dir: str, model):
        super().__init__(result)
        self._model_dir = model_dir
        tables = features.list_growing_tables(model.columns)
        self._capacities = {n: part.num_rows for n, part in tables.items() if not part.eviction}
        self._values = np.zeros(len(result.names))

    def on_step(self, run_context, step, values):
        self._values = values

    def end(self, session):
        scalars = dict(zip(self._result.names, self._values.tolist(), strict=True))
        sizes = {name: scalars.get(f"table/{name}/size", 0.0) for name in self._capacities}
        lines = [
            f"Table {name!r} holds {sizes[name]:,.0f} keys of {capacity:,}: most new keys find no "
            "free row, and stay unknown. Raise Growing.capacity, or set Growing.eviction."
            for name, capacity in self._capacities.items()
            if sizes[name] > _FULL_SHARE * capacity
        ]
        doubts.record_doubts(self._model_dir, "tables", lines)


class Callbacks(tf.compat.v1.train.SessionRunHook):
    """Calls functions before the first step, when the model is restored, and after session calls.

    Args:
      on_start: a function to call once, before the first step.
      on_call: a function to call after each session call.
    """

    def __init__(
        self,
        on_start: Callable[[], None] = lambda: None,
        on_call: Callable[[], None] = lambda: None,
    ):
        self._on_start, self._on_call = functools.cache(on_start), on_call

    def after_create_session(self, session, coord):
        self._on_start()  # A second session gets the cached result of `on_start`.

    def after_run(self, run_context, run_values):
        self._on_call()
