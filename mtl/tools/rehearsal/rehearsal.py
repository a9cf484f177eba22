"""Rehearses a run: reads its data, builds its model, and times some steps.

print(rehearsal_text.describe(rehearsal.rehearse(experiment, "runs/digits")))

A rehearsal runs the code of a training in a temporary folder. An error that would stop the training
before its first steps stops the rehearsal with the same message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics as statistics_lib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, distribution, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.deferred import compat, tf, tf1
from mtl.distribution import memory, tf_config
from mtl.files import storage
from mtl.model import graph_options
from mtl.runs import diagnosis, estimators, evaluation_graph, fitting, preparation, training
from mtl.step import training_loop
from mtl.tools import attached, tensorboard
from mtl.tools.debugging import inspection, layers
from mtl.variables import patterns

# Limits in seconds, for reading a split, and for timing batches or steps.
_READ_SECS = 10.0
_TIMED_SECS = 5.0
_TIMED_CALLS = 5
_BATCHES_AT_ONCE = 10


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows that a rehearsal reads from a split, and the time to evaluate them.

    Attributes:
      rows: the number of rows read.
      batches: the number of batches read.
      secs: the seconds of reading and evaluating the batches, without the first of several batches.
      is_whole: True if the rehearsal has read all rows of the split.
    """

    rows: int
    batches: int
    secs: float
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Pace:
    """The measured time of a batch or a step.

    Attributes:
      first_secs: the seconds of the first batch or step, which includes all work that is done only
        once.
      secs: the median of the seconds of later batches or steps.
    """

    first_secs: float
    secs: float


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """The result of a rehearsal.

    Attributes:
      first_step: the step from which the run would continue.
      last_step: the step at which the run ends.
      splits: {split: the rows that the rehearsal has read}; the training split comes first.
      batch: the first batch of training.
      batch_size: the number of rows in a batch, over all replicas.
      tree: the layers of the model.
      tasks: the names of the tasks.
      predictions: {name of a prediction: (type, shape for one row)}.
      num_bytes: the bytes of all variables of a training on one device.
      batches: how long the input takes for one batch; None if no step is left to train.
      steps: how long one step takes with its input; None if no step is left to train.
      evaluations: the number of evaluations in the run; 0 if the run evaluates every few seconds
        instead of every few steps.
      checkpoint_secs: the seconds between two checkpoints; None if the run saves a checkpoint after
        a number of steps.
    """

    first_step: int
    last_step: int
    splits: Mapping[str, Split]
    batch: inspection.Batch
    batch_size: int
    tree: Sequence[layers.Scope]
    tasks: Sequence[str]
    predictions: Mapping[str, tuple[str, tuple[int | None, ...]]]
    num_bytes: int
    batches: Pace | None
    steps: Pace | None
    evaluations: int
    checkpoint_secs: float | None


def rehearse(experiment: experiment_lib.Experiment, model_dir: str) -> Rehearsed:
    """Prepare a run, and time some of its batches and steps, without a change to `model_dir`.

    If the run exists, the rehearsal continues a copy of the run from its last checkpoint.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run; it need not exist.

    Raises:
      UserError: `verbs.train` would fail before its first step, or the run has several processes.
    """
    storage.require_plain("--model_dir", model_dir)
    storage.require_possible("--model_dir", model_dir, "a folder", model_dir)
    latest = run_directory.find_latest(model_dir)
    first = run_directory.step_in_name(latest) if latest else 0
    with tempfile.TemporaryDirectory() as scratch, _name_folder(scratch, model_dir):
        rehearsal = _Rehearsal(experiment, scratch, first)
        if latest:
            run_directory.copy_checkpoint(latest, scratch)
            run_directory.copy_notes(model_dir, scratch)
        return rehearsal.rehearse_from(run_directory.find_latest(scratch), first)


@contextlib.contextmanager
def _name_folder(scratch: str, model_dir: str) -> Iterator[None]:
    """Replace the path of the temporary folder in errors by the path of the run."""
    try:
        yield
    except checks.UserError as error:
        raise checks.UserError(str(error).replace(scratch, model_dir)) from error


class _Rehearsal(training.Training):
    """A training in a temporary folder, which ends after some steps."""

    def __init__(self, experiment: experiment_lib.Experiment, scratch: str, first: int):
        # Leave out observers, and also `Refit`, which would replace the training.
        plain = dataclasses.replace(experiment, refit=None)
        super().__init__(plain, scratch, lambda: None)
        run = types.ObservedRun(experiment=experiment, model_dir=scratch, place=self._place)
        # Build `TensorBoard` only for its checks: it refuses items that the run cannot show.
        for board in attached.select_observers(experiment, tensorboard.TensorBoard):
            board(run)
        rule = "be left out if TF_CONFIG makes this process one of several"
        checks.require(self._place.cluster is None, "--dry_run", rule, True)
        # Schedules ignore the larger number of steps, because schedules read the number of steps
        # from the experiment.
        self._run = dataclasses.replace(
            # Training never reaches the new last step, because `_Timing` stops it earlier.
            experiment.run,
            train_steps=max(first, experiment.run.train_steps) + 10**9,
        )
        self._num_bytes = 0

    def rehearse_from(self, checkpoint: str | None, first: int) -> Rehearsed:
        """Prepare the run, read its splits, and time its steps from a checkpoint."""
        experiment, data, folder = self._experiment, self._data, self._model_dir
        data.require_memory(data.batch_size)
        build = functools.partial(evaluation_graph.EvaluationGraph, experiment, folder)
        # Compute the statistics of the columns first, as a training does.
        preparation.prepare_run(experiment, folder, build)
        # A split for both training and evaluation is read only once.
        names = dict.fromkeys((data.train_split, data.eval_split))
        with diagnosis.explain_run_errors(data, experiment.model, None, *names):
            splits = self._read_splits(list(names))
        with diagnosis.explain_run_errors(data, experiment.model, None, data.train_split):
            batch, batches = self._time_input(first)
        steps = self._time_steps(checkpoint, first)
        tree, predictions = inspection.read_layers(experiment, folder)
        last, every = experiment.run.train_steps, experiment.run.checkpoint_steps
        is_left = first < last
        return Rehearsed(
            first_step=first,
            last_step=last,
            splits=splits,
            batch=batch,
            batch_size=data.batch_size,
            tree=tree,
            tasks=experiment.model.tasks,
            predictions={n: (t.dtype.name, tuple(t.shape)) for n, t in predictions.items()},
            num_bytes=self._num_bytes,
            batches=batches if is_left else None,
            steps=steps if is_left else None,
            evaluations=math.ceil(last / every) - first // every if every and is_left else 0,
            checkpoint_secs=experiment.run.checkpoint_secs,
        )

    def _read_splits(self, names: Sequence[str]) -> dict[str, Split]:
        """Read each split for some seconds, and compute the losses and metrics of all tasks."""
        model_dir, data = self._model_dir, self._data
        statistics = fitting.load_statistics(model_dir)
        model, mode = self._experiment.model.fitted(statistics), compat.estimator.ModeKeys.EVAL
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            passes = {n: tf1.data.make_initializable_iterator(data.one_pass(n)) for n in names}
            # Use handles, because a single iterator for all splits would refuse columns of lists.
            handles = {name: iterator.string_handle() for name, iterator in passes.items()}
            handle, first = tf1.placeholder(tf.string, []), next(iter(passes.values()))
            structure = (first.output_types, first.output_shapes, first.output_classes)
            features, labels = tf1.data.Iterator.from_string_handle(handle, *structure).get_next()
            spec = model.model_fn(
                features,
                labels,
                mode,
                options=graph_options.GraphOptions(statistics=statistics, may_stack=True),
            )
            updates = [update for _, update in spec.eval_metric_ops.values()]
            # `count` depends on losses and metrics, so the measured time of `count` includes losses
            # and metrics.
            with tf.control_dependencies([spec.loss, *updates]):
                count = tf.identity(types.count_rows(features))
            config = estimators.build_config(self._experiment, model_dir).session_config
            creator = tf1.train.ChiefSessionCreator(spec.scaffold, config=config)
            with contextlib.closing(creator.create_session()) as session:
                splits = {}
                for name, iterator in passes.items():
                    session.run(iterator.initializer)
                    feed = {handle: session.run(handles[name])}
                    splits[name] = _read_split(session, count, feed)
                return splits

    def _time_input(self, first: int) -> tuple[inspection.Batch, Pace]:
        """Return the first batch of training, and the time to read batches without training."""
        with tf.Graph().as_default():
            tf1.set_random_seed(self._run.seed)
            source = self._build_input(self._input_state(), first)
            # With several steps in a session call, the input is an iterator, not a batch.
            batch = source[0].get_next() if self._loop_settings else source
            # A group of ops has no output, so the time does not include a copy
            # of the batch to Python.
            read = tf.group(tf.nest.flatten(batch, expand_composites=True))
            with tf1.Session() as session:
                start = time.perf_counter()
                session.run(tf1.tables_initializer())
                features, labels = session.run(batch)
                first_secs, paces = time.perf_counter() - start, list[float]()
                end = time.perf_counter() + _TIMED_SECS
                while len(paces) < _TIMED_CALLS and time.perf_counter() < end:
                    start = time.perf_counter()
                    for _ in range(_BATCHES_AT_ONCE):
                        session.run(read)
                    paces.append((time.perf_counter() - start) / _BATCHES_AT_ONCE)
        return inspection.Batch(features, labels), Pace(first_secs, statistics_lib.median(paces))

    def _time_steps(self, checkpoint: str | None, first: int) -> Pace:
        """Train for some session calls with the code of the run, and return the time of a step."""
        strategy, config = self._experiment.distribution.build_strategy(self._place)
        timings: list[_Timing] = []

        def training_hooks(result: training_loop.StepResult) -> dict[str, Any]:
            variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
            if self._place.strategy == distribution.ONE:
                memory.require_variables(list(variables.values()))
            self._num_bytes = sum(map(memory.measure_variable, variables.values()))
            timings.append(_Timing(result))
            return {"training_hooks": timings[:1]}  # Only the first replica runs hooks.

        estimator = self._build_estimator(checkpoint, training_hooks, strategy, config)
        input_fn = functools.partial(self._build_input, self._input_state(), first)
        data, model = self._data, self._experiment.model
        explained = diagnosis.explain_run_errors(data, model, checkpoint, data.train_split)
        with explained, tf_config.hide_cluster():
            train = tf.autograph.experimental.do_not_convert(estimator.train)
            train(input_fn, max_steps=self._run.train_steps)
        return timings[0].pace


class _Timing(tf.compat.v1.train.SessionRunHook):
    """Times session calls, and stops the training after a few seconds or calls."""

    def __init__(self, result: training_loop.StepResult):
        self._step = result.step
        self._paces: list[float] = []

    @property
    def pace(self) -> Pace:
        """The time of a step; the first call includes all work that is done only once."""
        first, *later = self._paces
        # Use the median, as a single call may wait for the disk or for another process.
        return Pace(first, statistics_lib.median(later))

    def after_create_session(self, session, coord):
        self._last = int(session.run(tf1.train.get_global_step(session.graph)))

    def before_run(self, run_context):
        self._start = time.perf_counter()
        return tf1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        now, step = time.perf_counter(), int(run_values.results)
        self._paces.append((now - self._start) / max(1, step - self._last))
        self._last = step
        if len(self._paces) == 1:
            self._end = now + _TIMED_SECS
        elif len(self._paces) > _TIMED_CALLS or now > self._end:
            run_context.request_stop()


def _read_split(
    session: tf.compat.v1.Session, count: tf.Tensor, feed: Mapping[tf.Tensor, bytes]
) -> Split:
    rows = batches = 0
    start = first_end = time.perf_counter()
    is_whole = False
    while time.perf_counter() - start < _READ_SECS:
        try:
            rows += int(np.asarray(session.run(count, feed)))
        except tf.errors.OutOfRangeError:
            is_whole = True
            break
        batches += 1
        first_end = time.perf_counter() if batches == 1 else first_end
    # Leave out the first of several batches, because TensorFlow optimizes the graph during it.
    start = first_end if batches > 1 else start
    return Split(rows, batches, time.perf_counter() - start, is_whole)
