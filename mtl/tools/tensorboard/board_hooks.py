"""Builds hooks that write the items of `Experiment.tensorboard` in training and evaluation.

showing = board_hooks.TensorBoard(weights=True)(run)
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtl import deferred, distribution, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.deferred import tf, tf1
from mtl.runs import fitting
from mtl.tf_internals import shards
from mtl.tools.tensorboard import (
    board as board_lib,
)
from mtl.tools.tensorboard import settings as settings_lib
from mtl.variables import patterns, row_names

with deferred.imports():
    from mtl.monitoring import curves
    from mtl.tools.tensorboard import evaluations, once, projector, step_graph, watch, writing


class Showing(types.RunObserver):
    """Shows the items of a training in TensorBoard.

    Args:
      settings: the settings of `TensorBoard`, which switch its items on.
      run: the training to observe.
    """

    def __init__(self, settings: settings_lib.Items, run: types.ObservedRun):
        self._experiment, self._model_dir = run.experiment, run.model_dir
        self._is_chief = run.place.is_chief
        self._board = board_lib.Board(settings, run.experiment.run.summary_steps)
        # Workers other than the chief write nothing, so their session calls may end at any step.
        if self._is_chief:
            self.due_every, self.due_at = self._board.due_every, self._board.due_at
            self.has_due_items = bool(self._board.due_items)
            self.writes_graph = settings.graph

    def list_last_extensions(self) -> Sequence[types.MakeExtension]:
        """Return an extension that computes TensorBoard items, such as histograms."""
        return [watch.Watching(self._board)] if self._is_chief else []

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        """Return the hooks that write the items of a training, after its graph is built."""
        on, start = self._board.settings, {}
        if on.graph and self._board.graph is not None:
            # Pass functions that make events, because a continued run only writes those TensorBoard
            # items of its start that have changed.
            start["graph"] = functools.partial(_make_graph, self._board.graph, self._experiment)
        if on.configuration:
            start["configuration"] = functools.partial(_make_configuration, self._model_dir)
        if on.custom_scalars:
            model = self._experiment.model
            # With a plain sum of losses, there are no norms of task gradients.
            layout = once.lay_out(model.heads, model.loss_names, not model.adds_losses)
            start["custom_scalars"] = functools.partial(_make_event, layout)
        if on.hparams:
            start["hparams"] = functools.partial(_make_session, self._experiment)
        if on.embeddings:
            _write_projector(self._model_dir)
        last: list[tf.compat.v1.train.SessionRunHook] = []
        if on.hparams:
            names = list(_name_metrics(self._experiment))
            # This hook comes last, because it writes the metrics of hooks that evaluate.
            last.append(writing.Session(self._model_dir, metrics, names))
        writes = writing.Writing(result, self._model_dir, start)
        return types.RunHooks(of_steps=[writes], last=last)

    def watch_evaluation(self, checkpoint: str) -> types.EvaluationHooks | None:
        """Return a function that builds the hooks of an evaluation; None if no item is due."""
        # An evaluation belongs to the step of its checkpoint, even if training has continued
        # meanwhile.
        items = self._board.list_due(run_directory.step_in_name(checkpoint))
        if not items:
            return None
        statistics = fitting.load_statistics(self._model_dir)
        model = self._experiment.model.fitted(statistics)
        num_images = self._board.settings.num_images

        def watch(
            features: Any, labels: Any, logits: types.Tensors
        ) -> Sequence[tf.compat.v1.train.SessionRunHook]:
            folder, heads = os.path.join(self._model_dir, "eval"), model.heads
            has_curves, has_matrices = (
                any(item in items for item in kind)
                for kind in (settings_lib.CURVES, settings_lib.MATRICES)
            )
            # All curves and matrices share one pass over the rows.
            write = evaluations.CurveWriter(heads, items, folder)
            hooks: list[tf.compat.v1.train.SessionRunHook] = []
            if has_curves or has_matrices:
                hooks.append(
                    curves.Counting(heads, logits, labels, has_curves, has_matrices, write)
                )
            if "predictions" in items:
                settings = (heads, model.columns, folder, num_images)
                hooks.append(evaluations.Rows(features, labels, logits, *settings))
            return hooks

        return watch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorBoard(settings_lib.Items):
    """Shows items of a run in TensorBoard, such as histograms; docs/tensorboard.md shows all items.

    The setting of an item of training steps or evaluations is False (off), True (at every multiple
    of `Run.summary_steps`, or at every evaluation), a number n (at every n-th step) or a list of
    global steps. At all steps and evaluations that the setting does not name, the item is not
    computed. If an item, such as `pr_curves`, is drawn from evaluations, its steps must be steps at
    which the run evaluates.

    Histograms skip entries that are not finite, because TensorFlow's histograms would end the run.
    """

    def __call__(self, run: types.ObservedRun) -> Showing:
        """Return an observer that writes the TensorBoard items of a training.

        Raises:
          UserError: an item cannot be shown in the run, or is never due.
        """
        model = run.experiment.model
        self.check_run(
            run.experiment.run,
            model.adds_losses,
            len(model.loss_names),
            run.place.replicas,
            run.place.strategy == distribution.SERVERS,
        )
        return Showing(self, run)


def _make_event(summary: tf.compat.v1.Summary, time: float) -> tf.compat.v1.Event:
    return tf1.Event(wall_time=time, summary=summary)


def _make_graph(
    graph: tf.compat.v1.GraphDef, experiment: experiment_lib.Experiment, time: float
) -> tf.compat.v1.Event:
    model = experiment.model
    # The update may be a class of the user, without the setting `optimizer`.
    optimizer = getattr(model.update, "optimizer", model.update)
    kinds = {
        "balancing/weighting": type(model.weighting).__name__,
        "balancing/surgery": type(model.surgery).__name__,
        "update/optimizer": type(optimizer).__name__,
    }
    full_graph = step_graph.add_training(graph, kinds, model.loss_names)
    return tf1.Event(wall_time=time, graph_def=full_graph.SerializeToString(deterministic=True))


def _make_configuration(model_dir: str, time: float) -> tf.compat.v1.Event:
    """Return an event with the text of config.gin, or with "(no config.gin)"."""
    path, text = os.path.join(model_dir, "config.gin"), "(no config.gin)"
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            # A byte that is not UTF-8 must not end the run.
            text = file.read().decode(errors="replace")
    return _make_event(once.write_text("configuration", text), time)


def _make_session(experiment: experiment_lib.Experiment, time: float) -> tf.compat.v1.Event:
    return _make_event(once.start_session(experiment, _name_metrics(experiment), time), time)


def _name_metrics(experiment: experiment_lib.Experiment) -> dict[str, str]:
    """Return {metric: name in HParams} for the main metric of each task, and for `Best.metric`."""
    metrics: dict[str, str] = {}
    for head in experiment.model.heads:
        names = types.read_member(head, types.Head, "directions")
        # A name with "*" is a pattern for the metrics of all classes.
        first = next((name for name in names if "*" not in name), None)
        metrics |= {f"{head.name}/{first}": f"{head.name} {first}"} if first else {}
    best = experiment.best.metric
    metrics.setdefault(best, best)
    return metrics


def _write_projector(model_dir: str) -> None:
    variables = {patterns.variable_name(variable): variable for variable in tf1.global_variables()}
    shapes = {
        name: shards.whole_shape(variable)
        for name, variable in variables.items()
        # Leave out slots of the optimizer, whose names begin with the name of a variable.
        if variable.dtype.base_dtype == tf.float32 and name.rpartition("/")[0] not in variables
    }
    tables = projector.choose(shapes, row_names.load(model_dir))
    projector.write(model_dir, tables, shapes)
