"""Rehearses a run: reads its data, builds its model, and times some steps.

print(rehearsal_text.describe(rehearsal.rehearse(experiment, "runs/digits")))

The rehearsal uses the code of training in a scratch folder. Errors before the first steps of the
run therefore end the rehearsal with the same message.
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

# Time limits: for reading each split, and for timing batches or steps.
_READ_SECS = 10.0
_TIMED_SECS = 5.0
_TIMED_CALLS = 5
_BATCHES_AT_ONCE = 10


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows read of a split, through the graph of an evaluation.

    Attributes:
      rows: the number of rows.
      batches: the number of batches.
      secs: the time in seconds, without the first batch.
      is_whole: True if the split has no further rows.
    """

    rows: int
    batches: int
    secs: float
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Pace:
    """The seconds of a batch or a step.

    Attributes:
      first_secs: seconds of the first one, with all work that is done once.
      secs: the median of the later ones.
    """

    first_secs: float
    secs: float


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """The result of a rehearsal.

    Attributes:
      first_step: the step from which the run would go on.
      last_step: the step at which it ends.
      splits: {split: the rows read}; the training split comes first.
      batch: the first batch of training.
      batch_size: the batch size of all replicas together.
      tree: the layers of the model.
      tasks: the names of the tasks.
      predictions: {name: (type, shape for one row)}.
      num_bytes: bytes of all variables of a training, on one device.
      batches: the time of one batch of the input; None if no step is left to train.
      steps: the time of one step with its input; None if no step is left to train.
      evaluations: the number of evaluated checkpoints; 0 if it depends on the time.
      checkpoint_secs: seconds between checkpoints, if their number depends on the time.
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
    """Prepare a run, and time a few of its batches and steps; write nothing into `model_dir`.

    A run that exists goes on from its last checkpoint, in a copy.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run, which may be missing.

    Raises:
      UserError: an error that ends `verbs.train` before its first steps, or several processes.
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
    """Name the folder of the run in errors, not that of its copy."""
    try:
        yield
    except checks.UserError as error:
        raise checks.UserError(str(error).replace(scratch, model_dir)) from error


class _Rehearsal(training.Training):
    """A training in a scratch folder that ends after its steps are timed."""

    def __init__(self, experiment: experiment_lib.Experiment, scratch: str, first: int):
        # Without observers, and without `Refit`, which would be the whole run.
        alone = dataclasses.replace(experiment, refit=None)
        super().__init__(alone, scratch, lambda: None)
        given = types.ObservedRun(experiment=experiment, model_dir=scratch, place=self._place)
        # It refuses items that the run cannot show, as in a training; nothing is shown.
        for shown in attached.select_observers(experiment, tensorboard.TensorBoard):
            shown(given)
        rule = "be left out where TF_CONFIG makes this process one of several"
        checks.require(self._place.cluster is None, "--dry_run", rule, True)
        # Schedules keep the run's number of steps, which they read from the experiment.
        self._run = dataclasses.replace(
            # Far enough that `_Timing` ends the training, not its last step.
            experiment.run,
            train_steps=max(first, experiment.run.train_steps) + 10**9,
        )
        self._num_bytes = 0

    def rehearse_from(self, checkpoint: str | None, first: int) -> Rehearsed:
        """Prepare the run, read its splits, and time it from a checkpoint."""
        experiment, data, folder = self._experiment, self._data, self._model_dir
        data.require_memory(data.batch_size)
        build = functools.partial(evaluation_graph.EvaluationGraph, experiment, folder)
        # Computes the statistics of the columns, as a training does first.
        preparation.prepare_run(experiment, folder, build)
        # Both may be the same split, which is then read once.
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
        """Read each split for some seconds, with the losses and metrics of all tasks."""
        model_dir, data = self._model_dir, self._data
        statistics = fitting.load_statistics(model_dir)
        model, mode = self._experiment.model.fitted(statistics), compat.estimator.ModeKeys.EVAL
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            passes = {n: tf1.data.make_initializable_iterator(data.one_pass(n)) for n in names}
            # An iterator that any of several data sets initializes refuses data sets of lists.
            handles = {name: one.string_handle() for name, one in passes.items()}
            chosen, some = tf1.placeholder(tf.string, []), next(iter(passes.values()))
            structure = (some.output_types, some.output_shapes, some.output_classes)
            features, labels = tf1.data.Iterator.from_string_handle(chosen, *structure).get_next()
            made = model.model_fn(
                features,
                labels,
                mode,
                options=graph_options.GraphOptions(statistics=statistics, may_stack=True),
            )
            updates = [update for _, update in made.eval_metric_ops.values()]
            # The count depends on them, so that reading it also pays for losses and metrics.
            with tf.control_dependencies([made.loss, *updates]):
                count = tf.identity(types.count_rows(features))
            config = estimators.build_config(self._experiment, model_dir).session_config
            creator = tf1.train.ChiefSessionCreator(made.scaffold, config=config)
            with contextlib.closing(creator.create_session()) as session:
                found = {}
                for name, one in passes.items():
                    session.run(one.initializer)
                    fed = {chosen: session.run(handles[name])}
                    found[name] = _read_split(session, count, fed)
                return found

    def _time_input(self, first: int) -> tuple[inspection.Batch, Pace]:
        """Return the first batch of training, and the time of batches without a step."""
        with tf.Graph().as_default():
            tf1.set_random_seed(self._run.seed)
            made = self._build_input(self._input_state(), first)
            # With several steps a call, the input is an iterator in place of a batch.
            batch = made[0].get_next() if self._loop_settings else made
            # A group has no output: no time goes into copies to Python.
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
        """Train for some session calls, in the same way as the run."""
        strategy, config = self._experiment.distribution.build_strategy(self._place)
        timings: list[_Timing] = []

        def training_hooks(result: training_loop.StepResult) -> dict[str, Any]:
            variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
            if self._place.strategy == distribution.ONE:
                memory.require_variables(list(variables.values()))
            self._num_bytes = sum(map(memory.measure_variable, variables.values()))
            timings.append(_Timing(result))
            return {"training_hooks": timings[:1]}  # Of replicas, the first one's are used.

        estimator = self._build_estimator(checkpoint, training_hooks, strategy, config)
        input_fn = functools.partial(self._build_input, self._input_state(), first)
        data, model = self._data, self._experiment.model
        explained = diagnosis.explain_run_errors(data, model, checkpoint, data.train_split)
        with explained, tf_config.hide_cluster():
            train = tf.autograph.experimental.do_not_convert(estimator.train)
            train(input_fn, max_steps=self._run.train_steps)
        return timings[0].pace


class _Timing(tf.compat.v1.train.SessionRunHook):
    """Times session calls, and ends the training after some."""

    def __init__(self, result: training_loop.StepResult):
        self._step = result.step
        self._paces: list[float] = []

    @property
    def pace(self) -> Pace:
        """The time of a step; the first call includes all work that is done once."""
        first, *later = self._paces
        # A median, as single calls wait for the disk or for other processes.
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
    session: tf.compat.v1.Session, count: tf.Tensor, fed: Mapping[tf.Tensor, bytes]
) -> Split:
    rows = batches = 0
    # If no batch is read at all, the whole attempt counts as time.
    start = first_end = time.perf_counter()
    is_whole = False
    while time.perf_counter() - start < _READ_SECS:
        try:
            rows += int(np.asarray(session.run(count, fed)))
        except tf.errors.OutOfRangeError:
            is_whole = True
            break
        batches += 1
        # TensorFlow optimizes the graph during the very first batch.
        first_end = time.perf_counter() if batches == 1 else first_end
    return Split(rows, batches, time.perf_counter() - first_end, is_whole)
