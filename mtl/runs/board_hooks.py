"""What writes the items of `Experiment.tensorboard` in a training, and in its evaluations.

board = board_hooks.open_board(experiment, place)                 # None where nothing is shown
hooks = board_hooks.build_hooks(board, experiment, "runs/digits", result)
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import distribution, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.compat import shards
from mtl.distribution import settings as places
from mtl.model import graph_options
from mtl.monitoring import curves, hooks
from mtl.monitoring.tensorboard import (
    board as board_lib,
)
from mtl.monitoring.tensorboard import (
    evaluations,
    once,
    projector,
    step_graph,
    writing,
)
from mtl.runs import fitting
from mtl.step import training_loop
from mtl.variables import patterns, row_names

tf1 = tf.compat.v1


def open_board(
    experiment: experiment_lib.Experiment, place: places.Place
) -> board_lib.Board | None:
    """Return what this process shows of the steps of a training; None where it shows nothing.

    Raises:
      UserError: an item cannot be shown in this run, or is never due in it.
    """
    settings = experiment.tensorboard
    if settings is None:
        return None
    has_servers = place.strategy == distribution.SERVERS
    model = experiment.model
    settings.check_run(
        experiment.run, model.adds_losses, len(model.loss_names), place.replicas, has_servers
    )
    return board_lib.Board(settings, experiment.run.summary_steps) if place.is_chief else None


def build_hooks(
    board: board_lib.Board | None,
    experiment: experiment_lib.Experiment,
    model_dir: str,
    result: training_loop.StepResult,
) -> list[hooks.StepHook]:
    """Build what writes the items of a training, once its graph is there."""
    if board is None:
        return []
    on, start = board.settings, {}
    if on.graph and board.graph is not None:
        start["graph"] = functools.partial(_make_graph, board.graph, experiment)
    if on.configuration:
        start["configuration"] = functools.partial(_make_configuration, model_dir)
    if on.custom_scalars:
        model = experiment.model
        layout = once.lay_out(model.heads, model.loss_names, not model.adds_losses)
        start["custom_scalars"] = functools.partial(_make_event, layout)
    if on.hparams:
        start["hparams"] = functools.partial(_make_session, experiment)
    if on.embeddings:
        _write_projector(model_dir)
    return [writing.Writing(result, model_dir, start)]


def build_last_hooks(
    board: board_lib.Board | None,
    experiment: experiment_lib.Experiment,
    model_dir: str,
    metrics: Callable[[], Mapping[str, Any] | None],
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Build what comes after all that evaluates; `metrics` are the last, None before the first."""
    if board is None or not board.settings.hparams:
        return []
    return [writing.Session(model_dir, metrics, list(_name_metrics(experiment)))]


def watch_evaluation(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str
) -> graph_options.EvaluationHooks:
    """Return what makes the hooks of an evaluation, for the items that are due at its step."""
    settings = experiment.tensorboard
    if settings is None:
        return watch_nothing
    board = board_lib.Board(settings, experiment.run.summary_steps)
    items = board.list_due(run_directory.step_in_name(checkpoint))
    if not items:
        return watch_nothing
    model = experiment.model.fitted(fitting.load_statistics(model_dir))

    def watch(
        features: Any, labels: Any, logits: types.Tensors
    ) -> Sequence[tf.compat.v1.train.SessionRunHook]:
        folder, heads = os.path.join(model_dir, "eval"), model.heads
        has_curves, has_matrices = (
            any(item in items for item in kind)
            for kind in (evaluations.CURVES, evaluations.MATRICES)
        )
        write = evaluations.CurveWriter(heads, items, folder)
        made: list[tf.compat.v1.train.SessionRunHook] = []
        if has_curves or has_matrices:
            counted = (heads, logits, labels, has_curves, has_matrices)
            made.append(curves.Counting(*counted, write))
        if "predictions" in items:
            shown = (heads, model.columns, folder, settings.num_images)
            made.append(evaluations.Rows(features, labels, logits, *shown))
        return made

    return watch


def watch_nothing(*_: Any) -> Sequence[tf.compat.v1.train.SessionRunHook]:
    """Return no hooks."""
    return ()


def _make_event(summary: tf.compat.v1.Summary, time: float) -> tf.compat.v1.Event:
    return tf1.Event(wall_time=time, summary=summary)


def _make_graph(
    graph: tf.compat.v1.GraphDef, experiment: experiment_lib.Experiment, time: float
) -> tf.compat.v1.Event:
    model = experiment.model
    optimizer = getattr(model.update, "optimizer", model.update)
    kinds = {
        "balancing/weighting": type(model.weighting).__name__,
        "balancing/surgery": type(model.surgery).__name__,
        "update/optimizer": type(optimizer).__name__,
    }
    whole = step_graph.add_training(graph, kinds, model.loss_names)
    return tf1.Event(wall_time=time, graph_def=whole.SerializeToString(deterministic=True))


def _make_configuration(model_dir: str, time: float) -> tf.compat.v1.Event:
    """Return the configuration; of a run that no gin file describes, that there is none."""
    path, text = os.path.join(model_dir, "config.gin"), "(no config.gin)"
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode(errors="replace")
    return _make_event(once.write_text("configuration", text), time)


def _make_session(experiment: experiment_lib.Experiment, time: float) -> tf.compat.v1.Event:
    return _make_event(once.start_session(experiment, _name_metrics(experiment), time), time)


def _name_metrics(experiment: experiment_lib.Experiment) -> dict[str, str]:
    """Return {metric: its name} of what tells most of each task, and of what picks the best."""
    metrics: dict[str, str] = {}
    for head in experiment.model.heads:
        names = types.read_member(head, types.Head, "directions")
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
        # What an optimizer keeps of a table is named after it.
        if variable.dtype.base_dtype == tf.float32 and name.rpartition("/")[0] not in variables
    }
    chosen = projector.choose(shapes, row_names.load(model_dir))
    projector.write(model_dir, chosen, shapes)
