"""Writes the epochs of each source of a mixture for TensorBoard, as the scalars `epochs/<source>`.

In TensorBoard, the loss of a task is NaN, not 0, in steps whose batch has no label of the task.

training.Training(made, "runs/a", on_start, observers=[*observers, source_epochs.observe])
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.data import pipeline
from mtl.deferred import tf, tf1
from mtl.heads import together
from mtl.monitoring import hooks
from mtl.runs import preparation
from mtl.step import outlets, replicas


def observe(run: types.ObservedRun) -> SourceEpochs:
    """Return the observer that writes the epochs of each source of a run.

    Raises:
      UserError: rates follow a schedule, and several workers train asynchronously.
    """
    rates = getattr(run.experiment.data.source, "rates", None)
    if isinstance(rates, Mapping) and any(map(callable, rates.values())):
        # Each asynchronous worker counts the batches that it reads itself, not the global step.
        is_one = run.place.workers == 1 or not run.place.known_cluster.num_servers
        rule = "be numbers for several workers with parameter servers"
        checks.require(is_one, "Mixture.rates", rule, "schedules")
    return SourceEpochs(run.model_dir, run.experiment.run.summary_steps, run.place)


class SourceEpochs(types.RunObserver):
    """Writes the epochs of each source of a mixture, every `every` steps.

    Args:
      model_dir: the folder of the run.
      every: the number of training steps between two summaries.
      place: the role of this process, a `distribution.settings.Place`.
    """

    def __init__(self, model_dir: str, every: int, place: Any):
        self._model_dir, self._every, self._place = model_dir, every, place
        self._data: pipeline.Pipeline | None = None

    def change_data(self, data: pipeline.Pipeline) -> pipeline.Pipeline:
        self._data = data
        return data

    def list_extensions(self, model: Any, statistics: Any) -> list[types.MakeExtension]:
        del model, statistics
        return [_AbsentLosses]

    def build_hooks(self, result: Any, metrics: Any) -> types.RunHooks:
        del metrics
        assert self._data is not None  # `change_data` comes first.
        count = preparation.limit_to_step(self._data, self._place).count_epochs
        return types.RunHooks(of_steps=[_Write(result, self._model_dir, self._every, count)])


class _Write(hooks.StepHook):
    """Writes the epochs of each source of a mixture as a scalar."""

    def __init__(
        self,
        result: Any,
        model_dir: str,
        every: int,
        count: Callable[[int], Mapping[str, float]],
    ):
        super().__init__(result)
        self._model_dir, self._every, self._count = model_dir, every, count

    def begin(self) -> None:
        self._writer = hooks.open_writer(self._model_dir)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        del coord
        self._last = int(session.run(tf1.train.get_global_step()))

    def on_step(self, run_context: Any, step: int, values: np.ndarray, *more: Any) -> None:
        # A session call may pass a multiple of `every` without ending at this step.
        if step // self._every == self._last // self._every:
            return
        self._last = step
        scalars = [
            tf1.Summary.Value(tag=f"epochs/{name}", simple_value=epochs)
            for name, epochs in self._count(step).items()
        ]
        self._writer.add_summary(tf1.Summary(value=scalars), step)


class _AbsentLosses(types.StepExtension):
    """Shows the loss of a task as NaN if the batch has no label of the task."""

    suits_stacks = True

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del features
        self._heads, self._labels = model.heads_with_loss, labels

    @contextlib.contextmanager
    def around_update(self, found: Any, batch: Any) -> Iterator[None]:
        del batch
        weights = replicas.sum_over_replicas(together.sum_label_weights(self._heads, self._labels))
        for task, weight in weights.items():
            loss = found.losses[task]
            outlets.add_scalar(f"{task}/loss", tf.where(weight > 0, loss, math.nan))
        yield
