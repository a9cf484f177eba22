"""Prepares the first step of a run: checks, statistics, names of table rows, first values.

is_written = preparation.prepare_run(experiment, "runs/digits", lambda: evaluator.graph)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from mtl import checkpoints, checks, deferred, transfer, types
from mtl import experiment as experiment_lib
from mtl import features as features_lib
from mtl import model as model_lib
from mtl.checkpoints import given_files, mismatch, run_directory, training_files
from mtl.data import chosen_rows, pipeline
from mtl.data import files as files_lib
from mtl.data import source as source_lib
from mtl.deferred import compat, tf, tf1
from mtl.distribution import settings
from mtl.model import graph_options
from mtl.monitoring import doubts
from mtl.optimization import idle
from mtl.runs import diagnosis, evaluation_graph, fitting, label_tallies, plausibility
from mtl.sparsity import cuts
from mtl.transfer import refit as refit_lib
from mtl.variables import patterns, row_names

with deferred.imports():
    from mtl.runs import unknown_values
    from mtl.transfer import plan as plan_lib

_log = logging.getLogger(__name__)

# The learning rate of a schedule may round to 0 in this last share of the steps.
_SHARE_AT_ZERO = 0.01
_STEPS = "Run.train_steps"


def prepare_run(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    build_evaluation: Callable[[], evaluation_graph.EvaluationGraph],
    place: settings.Place = settings.ALONE,
) -> bool:
    """Check the settings and the data of a run, and write the files for its first step.

    Args:
      experiment: the run's settings.
      model_dir: the folder of the run.
      build_evaluation: builds the graph of evaluation, which fails early if settings of metrics are
        wrong.
      place: the role of this process.

    Returns:
      True if a checkpoint was written, which only the new settings fit: `Experiment.refit` computes
        it, or its growing tables got more rows.

    Raises:
      UserError: a setting, a file or the data has an error.
    """
    model, is_new = experiment.model, run_directory.find_latest(model_dir) is None
    _check_files(experiment, model_dir, is_new)
    look = _fit_statistics(experiment, model_dir, is_new)
    if is_new:
        _describe_data(experiment, look, model_dir, place)
    else:
        _renew_doubts(experiment, model_dir)
        if experiment.refit:
            _log.info(
                "Experiment.refit applies to new runs only: the classifier is not fitted again"
            )
    _check_pruning(model, model_dir)
    _check_start(experiment, is_new)
    graph = build_evaluation()
    _check_best(experiment.best, model, graph.metrics)
    _check_moving(model, experiment.run.train_steps, graph.variables, model_dir)
    # Write after all checks, so that a failed check leaves the checkpoints unchanged.
    if is_new:
        return _write_start(experiment, model_dir)
    return _enlarge_tables(experiment, model_dir)


def _check_files(experiment: experiment_lib.Experiment, model_dir: str, is_new: bool) -> None:
    """Refuse or report changed files that the run reads, and record the checksums of the files."""
    if experiment.warm_start:
        experiment.warm_start.check_source(model_dir)
    given_files.keep_checksums(experiment.model.training_files, model_dir, is_new)
    paths = files_lib.named_by(experiment.data.source, experiment.data.train_split, connects=True)
    training_files.tell_changes(paths, model_dir, is_new)


def _fit_statistics(
    experiment: experiment_lib.Experiment, model_dir: str, is_new: bool
) -> plausibility.Look:
    """Write the statistics of the training split, and check its labels."""
    data, model = experiment.data, experiment.model
    look = plausibility.Look(model, data, data.train_split, whole=is_new)
    source = experiment.warm_start or experiment.refit
    fitting.fit_statistics(data, model, source, model_dir, look)
    look.require_labels()
    return look


def _describe_data(
    experiment: experiment_lib.Experiment,
    look: plausibility.Look,
    model_dir: str,
    place: settings.Place,
) -> None:
    """Write the warnings about the data of a new run, and the names of table rows."""
    data, model = experiment.data, experiment.model
    held_out = plausibility.look_at_labels(model, data, data.eval_split)
    rows_of_step = limit_to_step(data, place)
    lines_of_order = rows_of_step.describe_order(experiment.run.train_steps, place.workers)
    messages = (*lines_of_order, *look.describe_missing(), *held_out.describe_missing())
    for line in messages:
        _log.info("%s", line)
    untrained_lines = label_tallies.describe_untrained(
        look.classes, model.heads, data, look.is_whole
    )
    left_out = chosen_rows.describe_left_out(data.source, data.train_split)
    lines = [*left_out, *look.describe_doubts(), *held_out.describe_doubts(), *untrained_lines]
    doubts.record_doubts(model_dir, "data", lines)
    doubts.record_doubts(model_dir, "training", [])
    row_names.save(model.row_names(fitting.load_statistics(model_dir)), model_dir)


def _renew_doubts(experiment: experiment_lib.Experiment, model_dir: str) -> None:
    """Repeat the warnings of a continued run, and check its names of rows, classes and tasks."""
    for kind in ("data", "training"):
        doubts.record_doubts(model_dir, kind, doubts.read_doubts(model_dir, kind))
    unknown = unknown_values.describe_training(experiment, model_dir)
    doubts.record_doubts(model_dir, "unknown_in_training", unknown)
    _renew_names(experiment.model, model_dir)


def _renew_names(model: model_lib.MultiTaskModel, model_dir: str) -> None:
    """Refuse names in another order than in the run, if it matters, and save new names."""
    row_names.seal(model_dir)
    saved = row_names.load(model_dir, with_files=False)
    statistics = fitting.load_statistics(model_dir)
    named = model.row_names(statistics)
    model.require_order(saved, statistics)
    shapes = dict(tf.train.list_variables(run_directory.find_latest(model_dir)))
    # Each variable of balancing has one value, or values for all losses.
    states = [
        name for name in shapes if name.startswith("balancing/") and math.prod(shapes[name]) > 1
    ]
    states += ["MultiTaskModel.extensions"] if model.extensions else []
    if states:
        fix = f"{states[0]} may have a value for each loss. A new run with WarmStart starts anew."
        losses = {key: named[key] for key in (row_names.TASKS, row_names.LOSSES) if key in named}
        row_names.require_order(saved, losses, fix)
    row_names.renew(saved, named, model_dir)


def _check_start(experiment: experiment_lib.Experiment, is_new: bool) -> None:
    """Require a warm start if the network of a new run adds a task to another run."""
    network = experiment.model.network
    needs_run = types.read_member(network, types.Network, "starts_from_run")
    is_fit = not (is_new and needs_run) or experiment.warm_start is not None
    rule = f"be set, because {type(network).__name__} adds a task to a run"
    checks.require(is_fit, "Experiment.warm_start", rule, None)


def _write_start(experiment: experiment_lib.Experiment, model_dir: str) -> bool:
    """Write the first values of a new run; return True if the values are a checkpoint."""
    data, model, run = experiment.data, experiment.model, experiment.run
    if experiment.refit:
        _refit_classifier(experiment.refit, data, model, run.train_steps, model_dir)
        return True
    transfer.forget_warm_start(model_dir)
    if experiment.warm_start:
        if types.read_member(model.network, types.Network, "starts_from_run"):
            statistics = os.path.join(model_dir, "statistics")
            experiment.warm_start.require_statistics(statistics, model.columns, model.heads)
        with open_plan(experiment.warm_start, data, model, run, model_dir) as plan:
            experiment.warm_start.prepare(plan, model_dir)
    return False


def _enlarge_tables(experiment: experiment_lib.Experiment, model_dir: str) -> bool:
    """Enlarge growing tables in all checkpoints of a run; return True if a checkpoint changed."""
    tables = features_lib.list_growing_tables(experiment.model.columns)
    if not tables:
        return False
    # Enlarge the best checkpoint, too, because exports and evaluations build tables of the new
    # capacity.
    folders = (os.path.join(model_dir, "best"), model_dir)
    paths = [path for folder in folders for path in run_directory.list_checkpoints(folder)]
    capacities = {f"features/{name}": part.num_rows for name, part in tables.items()}

    @functools.cache
    def build_graph() -> tf.Graph:
        training_graph = tf.Graph()
        with training_graph.as_default():
            build_training(experiment.data, experiment.model, experiment.run, model_dir)
            # Refuse a mismatch here, before any checkpoint is rewritten.
            needed_shapes = {
                patterns.variable_name(v): v.shape.as_list() for v in tf1.global_variables()
            }
            saved_shapes = dict(tf.train.list_variables(paths[-1]))
            # Leave out the tables of keys, whose saved shapes still have the old capacity.
            keys = {f"{scope}/keys" for scope in capacities}
            shapes_without_keys = [
                {
                    name: shapes[name]
                    for name in shapes
                    if transfer.find_keys(name, shapes) not in keys
                }
                for shapes in (saved_shapes, needed_shapes)
            ]
            mismatch.require_same(paths[-1], *shapes_without_keys)
        return training_graph

    def read_initial(names: list[str]) -> dict[str, np.ndarray]:
        with build_graph().as_default(), tf1.Session() as session:
            variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
            unknown: dict[str, list[int]] = {name: [] for name in names if name not in variables}
            mismatch.require_same(paths[-1], unknown, {})
            return session.run({name: variables[name].initial_value for name in names})

    return transfer.enlarge_tables(paths, capacities, read_initial)


@contextlib.contextmanager
def open_plan(
    warm_start: transfer.WarmStart,
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    run: experiment_lib.Run,
    model_dir: str,
) -> Iterator[plan_lib.Plan]:
    """Yield the plan of a warm start, which names the first value of every training variable.

    Raises:
      UserError: the run that supplies first values does not suit this run, or the network cannot
        continue from it.
    """
    with tf.Graph().as_default():
        build_training(data, model, run, model_dir)
        statistics = fitting.load_statistics(model_dir)
        plan = warm_start.plan(tf1.global_variables(), model.row_names(statistics))
        pattern = types.read_member(model.network, types.Network, "ordered_variables")
        if any(patterns.matches(pattern, entry.name) for entry in plan.warmed()):
            model.require_task_order(plan.source.named)
        names = [entry.name for entry in plan.entries]
        types.read_member(model.network, types.Network, "check_start")(names, plan.read_start)
        yield plan


def build_training(
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    run: experiment_lib.Run,
    model_dir: str,
) -> None:
    """Build a training step for one device in the open graph.

    Args:
      data: the pipeline, of which no rows are read.
      model: the model; the function fills its schedules and fits its columns.
      run: the settings of the run.
      model_dir: the folder of the run, with the statistics of the training split.
    """
    statistics = fitting.load_statistics(model_dir)
    model = model.fill_schedules(run.train_steps).fitted(statistics)
    tf1.set_random_seed(run.seed)
    tf1.train.get_or_create_global_step()
    # Only the variables of this graph are used, and no rows are read. Set the batch size, because
    # parts of a step need a fixed number of rows, and the last batch of a pass may be smaller.
    batches = data.one_pass(data.train_split)
    features, labels = tf1.data.make_initializable_iterator(batches).get_next()
    for fields in (features, labels):
        source_lib.set_batch_size(fields, data.batch_size)
    mode, precision = compat.estimator.ModeKeys.TRAIN, run.precision
    model.model_fn(
        features,
        labels,
        mode,
        options=graph_options.GraphOptions(statistics=statistics, precision=precision),
    )


def _check_best(
    best: checkpoints.Best, model: model_lib.MultiTaskModel, metrics: Sequence[str]
) -> None:
    """Refuse a `Best.metric` that does not exist, or whose better direction is unknown."""
    checks.one_of("Best.metric", best.metric, metrics)
    best.with_direction(model.find_direction(best.metric)).require_direction()


def _check_pruning(model: model_lib.MultiTaskModel, model_dir: str) -> None:
    """Refuse a criterion of `launch.prune` for a run whose training must still cut weights."""
    latest = run_directory.find_latest(model_dir)
    reader = tf.train.load_checkpoint(latest) if latest else None
    for index, part in enumerate(model.pruning):
        name = cuts.share_name(index)
        cut = float(reader.get_tensor(name)) if reader and reader.has_tensor(name) else 0.0
        rule = f"be a criterion of a training, to cut {part.final_sparsity:g} of the weights"
        fix = f"The run has cut {cut:g}. launch.prune uses this criterion on a finished run."
        fits = not part.criterion.is_of_finished_runs or cut >= part.final_sparsity
        checks.require(fits, "Pruning.criterion", rule, part.criterion, fix)


def _check_moving(
    model: model_lib.MultiTaskModel, train_steps: int, variables: Sequence[str], model_dir: str
) -> None:
    """Refuse a run in which no variable changes; warn of variables that change in few steps."""
    first, last = run_directory.step_of(model_dir), train_steps
    model = model.fill_schedules(last)
    lines = [
        f"Pruning.schedule cuts up to step {part.schedule.last_step}, and the run ends at step "
        f"{last} ({_STEPS}): it ends less sparse than Pruning.sparsity says."
        for part in model.pruning
        if part.schedule.last_step >= last
    ]
    groups = idle.find_moving(model.update, model.held, variables, last)
    if first < last and groups and all(moving.is_idle(first, last) for moving in groups):
        _refuse_idle(groups, last)
    lines += _describe_idle(groups, last)
    doubts.record_doubts(model_dir, "settings", lines)


def _refuse_idle(groups: Sequence[idle.Moving], last: int) -> NoReturn:
    """Fail with the reason why no variable changes before step `last`."""
    ends = [moving.end for moving in groups if moving.end < last]
    if not ends:
        starts = min(moving.first for moving in groups)
        rule = f"go past step {starts}, up to which Freezing.until freezes all variables"
        checks.fail(_STEPS, rule, last)
    rule = f"go with the learning rate, which is 0 from step {max(ends)} on"
    checks.fail(_STEPS, rule, last, "Raise decay_steps of the schedule, or leave it out.")


def _describe_idle(groups: Sequence[idle.Moving], last: int) -> list[str]:
    """Return lines about variables that do not change in many of the steps before `last`."""
    ends = {moving.where: moving.end for moving in groups}
    rate_lines = [
        f"The learning rate of {setting} is 0 from step {end} to step {last}, the last ({_STEPS}): "
        "the model learns nothing in these steps. Without decay_steps, a schedule lasts as long as "
        "the run."
        for setting, end in ends.items()
        if last - end > _SHARE_AT_ZERO * last
    ]
    frozen_lines = [
        f"Freezing.until freezes {moving.example!r} up to step {moving.first}, and the run ends at "
        f"step {last} ({_STEPS}): it never changes."
        for moving in groups
        if moving.first >= last
    ]
    return rate_lines + frozen_lines


def _refit_classifier(
    refit: refit_lib.Refit,
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    train_steps: int,
    model_dir: str,
) -> None:
    refit.check_balance(model, data.sampler)
    statistics = fitting.load_statistics(model_dir)
    refit.check_order(model, statistics)
    model, split = model.fitted(statistics), refit.split_of(data.train_split, data.eval_split)
    error_context = diagnosis.explain_run_errors(data, model, None, split)
    with error_context, tf.Graph().as_default():
        refit(model, data.one_pass(split), statistics, model_dir, train_steps)


def divide_batch(data: pipeline.Pipeline, parts: int, uneven: str) -> pipeline.Pipeline:
    """Return the data with a batch size that can be cut into equal parts.

    Args:
      data: the pipeline.
      parts: the number of equal parts: replicas times micro-batches.
      uneven: "refuse" to fail, or "round" to take fewer rows in a batch.

    Raises:
      UserError: `parts` does not divide the batch size, and `uneven` does not allow rounding.
    """
    size = data.batch_size
    # A batch smaller than the number of parts cannot be rounded down.
    if size % parts and size > parts and uneven == "round":
        _log.info("Batches have %d rows, not %d, for %d parts", size // parts * parts, size, parts)
        return dataclasses.replace(data, batch_size=size // parts * parts)
    fix = "" if uneven == "round" else 'Distribution.uneven = "round" makes batches smaller.'
    subject = "Run.micro_batches times the number of replicas"
    checks.require(not size % parts, subject, f"divide Pipeline.batch_size, {size}", parts, fix)
    return data


def limit_to_step(data: pipeline.Pipeline, place: settings.Place) -> pipeline.Pipeline:
    """Return the data with the batch size of a step; asynchronous workers make steps alone.

    Args:
      data: the pipeline.
      place: the role of this process.
    """
    size = place.count_rows(data.batch_size)
    # A copy of the pipeline would read the blocks of a split again.
    return data if size == data.batch_size else dataclasses.replace(data, batch_size=size)


def check_added_rows(model: model_lib.MultiTaskModel, parts: int) -> None:
    """Fail unless the number of replicas and micro-batches divides the rows that heads add.

    Args:
      model: the model with the heads.
      parts: the number of equal parts of a batch: replicas times micro-batches.

    Raises:
      UserError: `parts` does not divide the rows of a head.
    """
    for head in model.heads:
        num_rows = types.read_member(head, types.AddingHead, "rows_added")
        subject = "Run.micro_batches times the number of replicas"
        rule = f"divide the {num_rows} rows that head {head.name!r} adds to a batch"
        checks.require(not num_rows % parts, subject, rule, parts)
