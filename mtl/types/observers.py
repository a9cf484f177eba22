"""What a feature does beside a training, from outside of it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from mtl.types import extensions, values
from mtl.types.tracking import RunPart

EvaluationHooks: TypeAlias = Callable[
    [values.Tensors, values.Tensors, values.Tensors], Sequence[tf.compat.v1.train.SessionRunHook]
]
"""Takes features, labels and logits of an evaluation's graph, and returns its hooks."""


class ObservedRun(NamedTuple):
    """A training, as one of its processes sees it.

    Attributes:
      experiment: the settings, an `experiment.Experiment`.
      model_dir: the folder of the run.
      place: of this process, a `distribution.settings.Place`.
      part: what the training is of a run of several, such as a stage; None for a whole run.
    """

    experiment: Any
    model_dir: str
    place: Any
    part: RunPart | None = None


class RunHooks(NamedTuple):
    """Hooks of a training's session, by when they run.

    Attributes:
      first: before all others.
      of_steps: hooks of the kind `monitoring.hooks.StepHook`, which share what they fetch.
      before_saving: after these, before checkpoints are saved and evaluated.
      last: after that.
    """

    first: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    of_steps: Sequence[Any] = ()
    before_saving: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    last: Sequence[tf.compat.v1.train.SessionRunHook] = ()


class RunObserver:
    """Acts beside a training; each member does nothing by default.

    `runs/observers.py` opens the observers of a run in each process, and calls their members in
    this order. The chief alone prepares, builds hooks, saves and writes results. The process that
    evaluates calls `watch_evaluation` and `log`: the chief, or the evaluator of a cluster.
    `launch.debug` opens observers, too, and calls what changes the data and the graph of the step.

    Attributes:
      due_every: a session call ends at every multiple of these steps, so that hooks see it.
      due_at: a session call ends at these steps.
      seen_at: hooks see these steps also if steps are taken by calls that they do not see.
      has_due_items: whether the graph of a step holds ops that run where something is due.
      writes_graph: whether it writes the graph for TensorBoard, which is not written twice.
    """

    due_every: Sequence[int] = ()
    due_at: Sequence[int] = ()
    seen_at: Sequence[int] = ()
    has_due_items = False
    writes_graph = False

    def change_data(self, data: Any) -> Any:
        """Return the `pipeline.Pipeline` that is trained on."""
        return data

    def around_run(self) -> contextlib.AbstractContextManager[object]:
        """Return a context around all that this process does of the training."""
        return contextlib.nullcontext()

    def prepare(self, is_new: bool) -> None:
        """Get ready, now that the folder of the run is; `is_new` if it holds no checkpoint."""

    def begin(self) -> None:
        """Begin: the model is built and restored, and its first step is next."""

    def end_early(self) -> None:
        """Act in place of `begin` where no step is left to train."""

    def go_on_from(self, step: int) -> None:
        """Get ready to train from a global step, before the graph is built."""

    def list_extensions(self, model: Any, statistics: Any) -> Sequence[extensions.MakeExtension]:
        """Return what acts in a training step of a `model.MultiTaskModel`, before its own."""
        return ()

    def list_last_extensions(self) -> Sequence[extensions.MakeExtension]:
        """Return what acts in a training step after the extensions of the model."""
        return ()

    def wrap_model_fn(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `model_fn` that builds the graph of a training step."""
        return model_fn

    def build_hooks(self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]) -> RunHooks:
        """Return hooks of the graph that was just built.

        Args:
          result: of the step, a `training_loop.StepResult`.
          metrics: returns the last evaluation's metrics, None before the first.
        """
        return RunHooks()

    def save(self, step: int) -> None:
        """Save what a checkpoint of this step goes on with, before it is listed."""

    def watch_evaluation(self, checkpoint: str) -> EvaluationHooks | None:
        """Return what makes hooks of an evaluation of a checkpoint; None for no hooks."""
        return None

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Hear of metrics: `kind` is "eval" for an evaluation."""

    def close(self) -> None:
        """Let go of what a session that ends has left open."""

    def write_results(self) -> None:
        """Write what follows from all steps, also if an earlier process has taken them."""


OpenObserver: TypeAlias = Callable[[ObservedRun], RunObserver | None]
"""Returns what acts beside a run in this process; None for nothing."""
