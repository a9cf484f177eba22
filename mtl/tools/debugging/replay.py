"""Replays a training step of a run under TensorFlow's debugger.

with replay.open_step(experiment, "runs/a", step=1234) as replayed:
    findings.examine_step(replayed)

A run that continues from a checkpoint computes the same bits again, so the replayed step equals the
original step. A replay of step n copies the last checkpoint before step n into a temporary folder,
and trains from there to step n - 1. The last two steps of the replay, n - 1 and n, run one by one
with TensorFlow's graph optimizer off, so that each op keeps its name. The folder of the run does
not change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtl import checks, deferred, distribution
from mtl import experiment as experiment_lib
from mtl.checkpoints import input_state, run_directory
from mtl.deferred import tf, tf1
from mtl.distribution import interruption as interruption_lib
from mtl.distribution import tf_config
from mtl.optimization import finite
from mtl.runs import diagnosis, failures, training
from mtl.step import training_loop
from mtl.tools import attached, profiling, tensorboard, tracking
from mtl.tools.debugging import findings, numerics, step_dump

with deferred.imports():
    from mtl.checkpoints import saving
    from mtl.tf_internals import debugger


# The error of TensorFlow if its debugger watches gradients inside of `tf.cond`.
_LOST_RESULT = "Retval[0] does not have value"
_NUMERICS = "Train with Run.check_numerics = True, which names the op that fails."


@contextlib.contextmanager
def open_step(
    experiment: experiment_lib.Experiment, model_dir: str, step: int
) -> Iterator[findings.Replayed]:
    """Replay a training step, and yield its tensors and the tensors of the step before.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      step: the global step at which the training step starts, as in the message of a failure.

    Raises:
      UserError: no checkpoint exists before the step, the batches cannot be repeated, or the run
        fails at an earlier step.
    """
    with _prepare_replay(experiment, model_dir, step) as (replay, first, scratch):
        watching = replay.watch(first, step, os.path.join(scratch, "dumps"))
        yield replay.describe(watching, step)


def prompt_step(experiment: experiment_lib.Experiment, model_dir: str, step: int) -> None:
    """Replay a training step, and open the debugger tfdbg in the terminal before and after it.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      step: the global step at which the training step starts, as in the message of a failure.

    Raises:
      UserError: no checkpoint exists before the step, the batches cannot be repeated, or the run
        fails at an earlier step.
    """
    with _prepare_replay(experiment, model_dir, step) as (replay, first, _):
        replay.prompt(first, step)


@contextlib.contextmanager
def _prepare_replay(
    experiment: experiment_lib.Experiment, model_dir: str, step: int
) -> Iterator[tuple[_Replay, int, str]]:
    """Yield a replay that has reached `step` or the step before it, the step, and a folder."""
    checks.whole("--step", step, 0)
    with tempfile.TemporaryDirectory() as scratch:
        replay = _Replay(experiment, os.path.join(scratch, "run"), step)
        checkpoint = replay.find_checkpoint(model_dir, step)
        replay.copy(model_dir, checkpoint)
        first = run_directory.step_in_name(checkpoint)
        # Train without the debugger, as fast as the run, up to the last two steps.
        if first < step - 1:
            replay.go_on(first, step - 1)
            first = step - 1
        yield replay, first, scratch


class _Replay(training.Training):
    """Continues a copy of a run in a temporary folder, up to and including a step."""

    def __init__(self, experiment: experiment_lib.Experiment, scratch: str, step: int):
        # Switch XLA off, because the debugger would see compiled code as a single op.
        plain = dataclasses.replace(experiment.run.precision, xla=False)
        run = dataclasses.replace(experiment.run, precision=plain)
        # Leave out trackers, to report nothing, and items of TensorBoard,
        # which disturb the debugger.
        disturbing = tensorboard.TensorBoard, profiling.Profile, numerics.CheckNumerics
        left_out = (tracking.Reporting, *disturbing)
        observers = [
            part for part in attached.list_observers(experiment) if not isinstance(part, left_out)
        ]
        alone = dataclasses.replace(experiment, run=run)
        # Keep all other observers, because some of them change the data or the graph of a step.
        super().__init__(alone, scratch, lambda: None, observers=observers)
        self._step, self._fields = step, dict[str, str]()
        place, fix = self._place, f"Add --gin_param {failures.ONE_DEVICE}."
        rule = "be one process with one device to replay a step"
        is_one = place.strategy == distribution.ONE and not place.cluster
        checks.require(is_one, "Experiment.distribution", rule, place.strategy, fix)

    def find_checkpoint(self, model_dir: str, step: int) -> str:
        """Return the last checkpoint before a step, or else the checkpoint of the step itself.

        Raises:
          UserError: there is no checkpoint up to the step, or none with the saved state of the
            input.
        """
        steps = _find_steps(model_dir)
        states = input_state.InputState(model_dir, self._input_settings)
        names = ", ".join(map(str, sorted(steps))) or "none"
        candidates = [first for first in steps if first <= step]
        rule = "come at or after a checkpoint of --model_dir"
        checks.require(bool(candidates), "--step", rule, step, f"Steps with checkpoints: {names}.")
        ready = [first for first in candidates if states.is_saved(first)]
        # The replay needs the saved state of the input, too, to repeat the batches.
        rule = "come at or after a checkpoint with the input state of one process"
        fix = "The replay needs the input state to repeat the batches. "
        fix += f"Checkpoints of steps {names} lack it for these settings of data and seed."
        checks.require(bool(ready), "--step", rule, step, fix)
        # Prefer a checkpoint before the step, so that the replay includes the previous step, too.
        return steps[max([first for first in ready if first < step] or ready)]

    def copy(self, model_dir: str, checkpoint: str) -> None:
        """Copy the files that continuing the run from a checkpoint needs."""
        tf.io.gfile.makedirs(self._model_dir)
        run_directory.require_intact(checkpoint)
        run_directory.copy_checkpoint(checkpoint, self._model_dir)
        run_directory.copy_notes(model_dir, self._model_dir)
        step = run_directory.step_in_name(checkpoint)
        input_state.copy_states(model_dir, self._model_dir, step)

    def go_on(self, first: int, last: int) -> None:
        """Train from one step to another as the run did, and save a checkpoint at the end.

        Raises:
          UserError: the run fails at a step before `last`.
        """

        def make_hooks(result: training_loop.StepResult, inputs: input_state.InputState) -> list:
            return [self._make_saving(result, inputs, first)]

        self._train_steps(first, last, make_hooks)

    def watch(self, first: int, step: int, folder: str) -> _Watching:
        """Run single steps up to and including `step`, and let the debugger write all tensors.

        A failure of `step` itself raises no error.

        Raises:
          UserError: the step before `step` fails.
        """
        watches: list[_Watching] = []

        def make_hooks(result: training_loop.StepResult, inputs: input_state.InputState) -> list:
            watches.append(_Watching(result, folder))
            return [self._make_saving(result, inputs, first), *watches]

        # If the last step fails, its tensors up to the failing op are written, which is enough.
        with contextlib.suppress(_StepError):
            self._step_by_step(first, step + 1, make_hooks, lambda: watches[0].step == step)
        (watching,) = watches
        return watching

    def prompt(self, first: int, step: int) -> None:
        """Run single steps up to and including `step`, and open tfdbg in the terminal for `step`.

        Raises:
          UserError: the step before `step` fails.
        """
        counter = _Counting()
        prompt = debugger.Prompt(lambda: counter.step == step)

        def make_hooks(result: training_loop.StepResult, inputs: input_state.InputState) -> list:
            return [self._make_saving(result, inputs, first), counter, prompt]

        try:
            self._step_by_step(first, step + 1, make_hooks, lambda: counter.step == step)
        except _StepError as failed:
            prompt.show_failure(failed.error)

    def describe(self, watching: _Watching, step: int) -> findings.Replayed:
        """Return the replayed steps with their tensors.

        Raises:
          UserError: the replay did not reach the step.
        """
        # The monitored losses have the names of their tasks.
        names = {f"{task}/loss": task for task in self._experiment.model.loss_names}
        losses = {names[n]: t for n, t in watching.monitors.items() if n in names}
        dumps = {
            number: step_dump.StepDump(watching.folder(number))
            for number in (step - 1, step)
            # The step before the replayed step is missing if the replayed step is step 0, or the
            # first step after the copied checkpoint.
            if os.path.isdir(watching.folder(number))
        }
        rule = "be reached in the replay"
        checks.require(step in dumps, "--step", rule, step)
        return findings.Replayed(
            step,
            dumps[step],
            dumps.get(step - 1),
            watching.graph,
            losses,
            self._fields,
            self._data.batch_size,
            self._run.micro_batches,
        )

    def _step_by_step(
        self,
        first: int,
        last: int,
        make_hooks: Callable[..., Sequence[Any]],
        is_reached: Callable[[], bool],
    ) -> None:
        """Train one step per session call; raise `_StepError` if the last step fails."""
        # Several steps in one call form a loop, in which the debugger would mix
        # up tensors of the steps.
        self._run = dataclasses.replace(self._run, steps_per_call=1)
        self._train_steps(first, last, make_hooks, is_reached)

    def _train_steps(
        self,
        first: int,
        last: int,
        make_hooks: Callable[..., Sequence[Any]],
        is_reached: Callable[[], bool] | None = None,
    ) -> None:
        """Train from one step to another; given `is_reached`, switch the graph optimizer off."""
        # Change `_run` only, because schedules read the number of steps from the experiment.
        self._run = dataclasses.replace(self._run, train_steps=last)
        strategy, config = self._experiment.distribution.build_strategy(self._place)
        config = debugger.plain_session(config) if is_reached else config
        checkpoint = os.path.join(self._model_dir, f"model.ckpt-{first}")
        inputs = self._input_state()

        def training_hooks(result: training_loop.StepResult) -> dict[str, Any]:
            return {"training_hooks": list(make_hooks(result, inputs))}

        estimator = self._build_estimator(checkpoint, training_hooks, strategy, config)
        input_fn = functools.partial(self._build_input, inputs, first)
        model, split = self._experiment.model, self._data.train_split
        explained = diagnosis.explain_run_errors(self._data, model, checkpoint, split)
        with explained, self._tell_failures(is_reached), tf_config.hide_cluster():
            tf.autograph.experimental.do_not_convert(estimator.train)(input_fn, max_steps=last)

    @contextlib.contextmanager
    def _tell_failures(self, is_reached: Callable[[], bool] | None) -> Iterator[None]:
        """Raise different errors for a failure of the replayed step and of an earlier step.

        Raises:
          _StepError: the replayed step fails.
          UserError: a loss or a gradient of an earlier step is not finite, or the debugger cannot
            watch the surgery of the model.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if _LOST_RESULT in error.message:
                rule = "not compute gradients under a condition, which TensorFlow's debugger loses"
                surgery = type(self._experiment.model.surgery).__name__
                checks.fail("MultiTaskModel.surgery in launch.debug", rule, surgery, _NUMERICS)
            if is_reached and is_reached():
                raise _StepError(error) from error
            # Only the update's check for NaN names its step: raise all other InvalidArgumentErrors
            # again.
            failed = finite.find_step(error.message)
            if failed is None:
                raise
            rule = f"be at most {failed}, the step that fails"
            checks.fail("--step", rule, self._step)

    def _build_input(self, inputs, first, input_context=None):
        batch = super()._build_input(inputs, first, input_context)
        # With several steps per session call, the batch is an iterator without tensors.
        if not self._loop_settings:
            features, labels = batch
            self._fields = {
                name: value.name
                for name, value in {**features, **labels}.items()
                if isinstance(value, tf.Tensor)
            }
        return batch

    def _make_saving(
        self, result: training_loop.StepResult, inputs: input_state.InputState, first: int
    ) -> saving.Saving:
        return saving.Saving(
            result,
            self._model_dir,
            saved=os.path.join(self._model_dir, f"model.ckpt-{first}"),
            # Never save during the training: it cannot reach this number of steps.
            every=(2**62, None),
            inputs=inputs,
            votes=saving.Votes(interruption_lib.Interruption(), shared=False),
            evaluate=lambda path: False,
            keep=saving.ALL_CHECKPOINTS,
            evaluated=lambda: np.inf,
        )


def _find_steps(model_dir: str) -> dict[int, str]:
    """Return {step: path of its checkpoint} for all checkpoints of a run."""
    paths = run_directory.list_checkpoints(model_dir)
    return {run_directory.step_in_name(p): p for p in paths if run_directory.is_checkpoint(p)}


class _StepError(Exception):
    """Says that the replayed step failed, as it did in the run."""

    def __init__(self, error: tf.errors.InvalidArgumentError):
        super().__init__(error.message)
        self.error = error


class _Counting(tf.compat.v1.train.SessionRunHook):
    """Records the global step after each session call."""

    # Before a session exists, no step has begun.
    step = 0

    def after_create_session(self, session, coord):
        self.step = int(session.run(tf1.train.get_global_step(session.graph)))

    def after_run(self, run_context, run_values):
        self.step += 1


class _Watching(_Counting):
    """Lets the debugger write the tensors of every step to a folder of the step."""

    def __init__(self, result: training_loop.StepResult, folder: str):
        self._folder, self.graph = folder, tf1.get_default_graph()
        # `run_once` stacks the monitored tensors in the order of their names.
        stacked = result.values.op.inputs[0].op.inputs
        self.monitors = dict(zip(result.names, (t.name for t in stacked), strict=True))

    def folder(self, step: int) -> str:
        """Return the folder for the tensors of a step."""
        return os.path.join(self._folder, f"step_{step}")

    def before_run(self, run_context):
        # Use a new folder for every step: the debugger refuses a folder that holds tensors already.
        options = debugger.watch_tensors(self.graph, self.folder(self.step))
        return tf1.train.SessionRunArgs(None, options=options)
