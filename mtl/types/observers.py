"""Observers add optional features, such as trackers and profiles, to a training run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from mtl import checks
from mtl.deferred import tf
from mtl.types import extensions, values
from mtl.types.tracking import RunPart

EvaluationHooks: TypeAlias = Callable[
    [values.Tensors, values.Tensors, values.Tensors], Sequence["tf.compat.v1.train.SessionRunHook"]
]
"""A function that builds the hooks of an evaluation from features, labels and logits."""


class ObservedRun(NamedTuple):
    """The facts about a training run that an observer gets in one process.

    Attributes:
      experiment: the settings, an `experiment.Experiment`.
      model_dir: the folder of the run.
      place: the place of this process in a cluster, a `distribution.settings.Place`.
      part: the stage of training, if a run consists of several trainings; None for a whole run.
    """

    experiment: Any
    model_dir: str
    place: Any
    part: RunPart | None = None


class RunHooks(NamedTuple):
    """Hooks of a training session, in the order in which they run.

    Attributes:
      first: hooks that run before all others.
      of_steps: `monitoring.hooks.StepHook`s, which share the fetches of a session call.
      before_saving: hooks that run after the hooks in `of_steps`, and before the session saves and
        evaluates checkpoints.
      last: hooks that run after the session has saved and evaluated checkpoints.
    """

    first: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    of_steps: Sequence[Any] = ()
    before_saving: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    last: Sequence[tf.compat.v1.train.SessionRunHook] = ()


class RunObserver(extensions.Optional):
    """Adds an optional feature to a training run; by default, each member does nothing.

    `runs/observers.py` opens the observers of a run in each process, and calls the members of an
    observer in the order of this class. Only the chief calls `prepare`, `build_hooks`, `save` and
    `write_results`. The process that evaluates, which is the chief or the evaluator of a cluster,
    calls `watch_evaluation` and `log`. `launch.debug` also opens observers, and calls the members
    that change the data and the graph of the step.

    Attributes:
      due_every: numbers of steps; a session call ends at every multiple, so hooks run at that step.
      due_at: global steps at which a session call ends, so hooks run at these steps.
      seen_at: global steps at which hooks run, even if hooks skip other session calls.
      has_due_items: True if the graph of a step holds ops that run only at the steps of `due_every`
        and `due_at`.
      writes_graph: True if the observer, in place of the run, writes the graph for TensorBoard.
    """

    due_every: Sequence[int] = ()
    due_at: Sequence[int] = ()
    seen_at: Sequence[int] = ()
    has_due_items = False
    writes_graph = False

    def change_data(self, data: Any) -> Any:
        """Change the input of the training.

        Args:
          data: the `pipeline.Pipeline` of the training data.

        Returns:
          The pipeline for the training; by default, `data` itself.
        """
        return data

    def around_run(self) -> contextlib.AbstractContextManager[object]:
        """Return a context around all the work of this process for the training."""
        return contextlib.nullcontext()

    def prepare(self, is_new: bool) -> None:
        """Prepare the run in its folder.

        Args:
          is_new: True if the folder holds no checkpoint.
        """

    def begin(self) -> None:
        """Act once the model is built and restored, before the first step."""

    def end_early(self) -> None:
        """Act in place of `begin` if all steps are already trained."""

    def go_on_from(self, step: int) -> None:
        """Prepare for the first step of this training, before the graph is built.

        Args:
          step: the global step from which training continues; 0 for a new run.
        """

    def list_extensions(self, model: Any, statistics: Any) -> Sequence[extensions.MakeExtension]:
        """Return extensions of a training step that act before the model's own extensions.

        Args:
          model: the fitted `MultiTaskModel`.
          statistics: the statistics of the training split.
        """
        return ()

    def list_last_extensions(self) -> Sequence[extensions.MakeExtension]:
        """Return extensions of a training step that act after the model's own extensions."""
        return ()

    def wrap_model_fn(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Change the `model_fn` that builds the graph of a training step.

        Args:
          model_fn: a function of features, labels and a mode that returns an EstimatorSpec.

        Returns:
          A function with the same names of parameters, by which Estimator decides which arguments
          it passes; by default, `model_fn` itself.
        """
        return model_fn

    def build_hooks(self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]) -> RunHooks:
        """Return the hooks for the graph of a training step.

        Args:
          result: the result of the step, a `training_loop.StepResult`.
          metrics: returns the last evaluation's metrics, or None before the first evaluation.
        """
        return RunHooks()

    def save(self, step: int) -> None:
        """Save the observer's state, before the checkpoint of this step is listed.

        Args:
          step: the global step of the checkpoint.
        """

    def watch_evaluation(self, checkpoint: str) -> EvaluationHooks | None:
        """Choose the hooks for the evaluation of a checkpoint.

        Args:
          checkpoint: the path of the checkpoint.

        Returns:
          A function that builds the hooks; None without hooks. If all observers return None, all
          evaluations of the run share one graph.
        """
        return None

    def add_to_export(self, written: Any) -> None:
        """Add files to the folder of an export, before it is published.

        Args:
          written: the export, a `serving.Written`.
        """

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a step.

        Args:
          kind: "eval" for an evaluation.
          step: the global step of the metrics.
          metrics: {name: value}; values may be NaN.
        """

    def close(self) -> None:
        """Release resources, such as open files, at the end of a session."""

    def write_results(self) -> None:
        """Write the results of the whole run, including the steps before a restart."""


OpenObserver: TypeAlias = Callable[[ObservedRun], RunObserver | None]
"""A function that returns an observer of a run in this process, or None."""


def check_span(where: str, steps: Any, rule: str = "be two steps, such as [100, 110]") -> None:
    """Fail unless a setting is two global steps in order, [first, last].

    Args:
      where: the name of the setting, for error messages.
      steps: the value of the setting.
      rule: the rule in errors about type and length, which follows the word "must".

    Raises:
      UserError: `steps` is not a list of two whole numbers, the first step is below 1, or the last
        step is less than 2 steps later.
    """
    checks.is_a(where, steps, (list, tuple), rule)
    checks.require(len(steps) == 2, where, rule, steps)
    for step in steps:
        checks.is_a(where, step, int, rule)
    first, last = steps
    checks.require(first >= 1, where, "begin at step 1 or later", steps)
    checks.require(last - first >= 2, where, "span two steps or more, in order", steps)
