"""Builds the Estimator of a checkpoint, and the exporter of a run.

estimator = estimators.build_estimator(experiment, "runs/digits", "runs/digits/model.ckpt-500")
exporter = estimators.build_exporter(experiment, "runs/digits")
exporter(estimators.build_exported(experiment, "runs/digits", checkpoint), "models", checkpoint)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from mtl import deferred, serving, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import given_files, mismatch
from mtl.data import eager_pass
from mtl.deferred import compat, tf
from mtl.distribution import resources, tf_config
from mtl.model import graph_options
from mtl.runs import fitting, kept_fields
from mtl.tf_internals import eager

with deferred.imports():
    from mtl.data import file_settings
    from mtl.runs import unknown_values


def build_estimator(  # noqa: PLR0913  Callers name the arguments.
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str | None = None,
    keep: Sequence[str] = (),
    events: str | None = None,
    is_attacked: bool = False,
    may_stack: bool = True,
    evaluation_hooks: types.EvaluationHooks = lambda *_: (),
    tell_unknown: unknown_values.Tell | None = None,
) -> compat.estimator.Estimator:
    """Build an Estimator that evaluates and predicts with a checkpoint of a run.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      checkpoint: the checkpoint whose variables must match the model; None skips this check.
      keep: fields of the rows to return beside the predictions.
      events: the folder for TensorBoard's event files; `model_dir` by default.
      is_attacked: True evaluates inputs that `Experiment.attack` perturbs.
      may_stack: True allows the graph to stack the variables of equal tasks.
      evaluation_hooks: a function that builds the hooks of an evaluation.
      tell_unknown: a function to call with lines about unknown values in the rows of predictions.
    """
    given_files.check_unchanged(experiment.model.column_files, model_dir)
    statistics = fitting.load_statistics(model_dir)
    model_fn: Callable[..., Any] = functools.partial(
        experiment.model.fitted(statistics).model_fn,
        options=graph_options.GraphOptions(
            statistics=statistics,
            may_stack=may_stack and not is_attacked,
            attack=experiment.attack if is_attacked else None,
            evaluation_hooks=evaluation_hooks,
        ),
    )
    model_fn = serving.add_signatures(model_fn, experiment.serving)
    config = build_config(experiment, events or model_dir)
    if tell_unknown is not None:
        model_fn = unknown_values.count_in_predictions(
            model_fn, experiment.model.columns, statistics, "that are predicted", tell_unknown
        )
    model_fn = mismatch.refuse_mismatch(model_fn, checkpoint)
    model_fn = kept_fields.keep_fields(model_fn, keep, experiment.data.spec.features)
    return compat.estimator.Estimator(model_fn, config=config)


def build_exported(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str,
    is_converted: bool = False,
) -> compat.estimator.Estimator:
    """Build the Estimator that exports a checkpoint of a run.

    The variables of equal tasks are not stacked if `mtl.serving` rewrites the graph task by task,
    or for TensorFlow Lite, which cannot split a stacked tensor of texts or integers by task.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      checkpoint: the path of the checkpoint, whose variables must match the model.
      is_converted: True if the export is converted to another format, such as TensorFlow Lite.
    """
    may_stack = experiment.serving.keeps_graph and not is_converted
    return build_estimator(experiment, model_dir, checkpoint, may_stack=may_stack)


def build_config(
    experiment: experiment_lib.Experiment, model_dir: str
) -> compat.estimator.RunConfig:
    """Build the RunConfig of an Estimator that runs in a single process.

    Args:
      experiment: the experiment, which sets the seed, the threads and the GPU memory.
      model_dir: the folder to which the Estimator writes event files.
    """
    with tf_config.hide_cluster():
        config = compat.estimator.RunConfig(model_dir=model_dir, tf_random_seed=experiment.run.seed)
    session_config = experiment.distribution.resources.session_config()
    return resources.configure_session(config, session_config)


def build_exporter(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    add_files: serving.AddFiles = lambda written: None,
) -> serving.Exporter:
    """Build the exporter for checkpoints of a run.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run, whose statistics the exporter reads.
      add_files: adds files of other formats to each export.
    """
    data = experiment.data

    def read_rows(count: int) -> serving.Rows:
        # Read the rows in a new graph: during training, the default graph is the finalized graph of
        # training, and some datasets add functions to the default graph even in eager mode.
        with tf.Graph().as_default(), eager.execute_eagerly(), tf.device("/CPU:0"):
            in_one = dataclasses.replace(data, batch_size=count)
            batches = eager_pass.read(in_one, data.eval_split, with_labels=False)
            features, _ = next(batches)
        return serving.hold_rows(features, data.spec)

    def add_all_files(written: serving.Written) -> None:
        serving.add_metadata(written.directory, files_of_run=file_settings.describe(data.source))
        add_files(written)

    heads = experiment.model.fitted(fitting.load_statistics(model_dir)).heads
    is_pruned = len(experiment.model.pruning) > 0
    return serving.Exporter(
        experiment.serving,
        experiment.data.spec,
        heads,
        read_rows,
        model_dir,
        is_pruned,
        add_all_files,
    )
