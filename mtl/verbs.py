"""Operations on an experiment: train, evaluate, predict, prune, audit, debug and export it.

metrics, steps = verbs.train(experiment, "runs/digits")
rows = verbs.predict(experiment, "runs/digits", checkpoint="best")
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtl import checks, deferred, distribution, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import storage
from mtl.monitoring import progress
from mtl.runs import (
    diagnosis,
    estimators,
    evaluation,
    failures,
    fitting,
    kept_fields,
    places,
    preparation,
    training,
)
from mtl.tools import attached

with deferred.imports():  # Each command imports only the tools that it uses.
    from mtl.runs import loss_rates, own_updates, source_epochs, text_codes, unknown_values
    from mtl.tools import clip_audit, scoring
    from mtl.tools.clip_audit import checkpoint_audit, report
    from mtl.tools.drawing import curve_files
    from mtl.tools.pruning import finished_pruning
    from mtl.tools.runtimes import added
    from mtl.tools.tracking import reporting
    from mtl.transfer import plan

__all__ = [
    "audit_clipping",
    "count_unknown",
    "debug",
    "evaluate",
    "export",
    "open_scorer",
    "plan_warm_start",
    "predict",
    "prune",
    "train",
]


def train(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    on_start: Callable[[], None] = lambda: None,
    part: types.RunPart | None = None,
) -> tuple[dict[str, Any], int]:
    """Train up to `run.train_steps`; evaluate every checkpoint, and export the latest and the best.

    Training continues from the last intact checkpoint in `model_dir`, as if there had been no
    interruption.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      on_start: called once the model is built and restored, before the first step.
      part: the place of this training in a run of several trainings, such as a stage; for trackers.

    Returns:
      The metrics of the last evaluation, {} if another process evaluates; and the number of
      steps trained by this call.

    Raises:
      UserError: the settings, the data or the files in `model_dir` have an error.
      SystemExit: a signal asked the process to stop; the trained steps are saved.
    """
    observers = [*attached.list_observers(experiment), text_codes.observe]
    if types.read_member(experiment.data.source, types.Source, "orders_rows"):
        observers.append(source_epochs.observe)
    if types.read_member(experiment.data.source, types.Source, "known_steps") is not None:
        observers.append(loss_rates.observe)
    if _has_own_parts(experiment.model):
        observers.append(own_updates.observe)
    return training.Training(experiment, model_dir, on_start, part, observers).run()


def _has_own_parts(model: Any) -> bool:
    """Return True if a column, the network or a head has a part that is not of this package."""
    parts = types.walk_parts([model.columns, model.network, model.heads])
    return any(not type(part).__module__.startswith("mtl.") for part in parts)


def evaluate(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    split: str | None = None,
    checkpoint: str = "latest",
    is_attacked: bool = False,
    with_curves: bool = False,
) -> dict[str, Any]:
    """Evaluate a checkpoint on a whole split.

    `evaluation.evaluate` lists the files that an evaluation writes. Metrics also go to the trackers
    of the run, unless `Experiment.attack` has perturbed the inputs.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      split: the split; None for `Pipeline.eval_split`.
      checkpoint: "latest", "best" or a path.
      is_attacked: True perturbs the inputs by `Experiment.attack`.
      with_curves: True writes the files of `curve_files.write_curves` to `<model_dir>/curves`.

    Returns:
      {metric: value}.
    """
    write_curves = curve_files.write_curves if with_curves else None
    metrics = evaluation.evaluate(
        experiment, model_dir, split, checkpoint, is_attacked, write_curves
    )
    trackers = attached.list_trackers(experiment)
    if trackers and not is_attacked:
        with reporting.go_on(trackers, model_dir) as reporters:
            reporters.log(
                evaluation.name_stream(experiment, split), *evaluation.split_step(metrics)
            )
    return metrics


def plan_warm_start(experiment: experiment_lib.Experiment) -> plan.Plan:
    """Plan the first value of every variable of a warm start, with reasons; write nothing.

    Raises:
      UserError: no warm start is set, or the warm start does not suit the run.
    """
    rule, fix = "be set", "Bind Experiment.warm_start = @transfer.WarmStart()."
    warm_start = experiment.warm_start
    if warm_start is None:
        checks.fail("Experiment.warm_start", rule, None, fix)
    with tempfile.TemporaryDirectory() as scratch:
        fitting.fit_statistics(experiment.data, experiment.model, warm_start, scratch)
        data, model, run = experiment.data, experiment.model, experiment.run
        with preparation.open_plan(warm_start, data, model, run, scratch) as plan:
            return plan


def predict(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    split: str | None = None,
    checkpoint: str = "latest",
    keep: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Predict every task for each example of a split.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      split: the split; None for `Pipeline.eval_split`.
      checkpoint: "latest", "best" or a path.
      keep: fields of the examples to return with the predictions: features, labels, or columns of a
        CSV file. Kept fields pass through the graph with their row, so they stay in row order.

    Yields:
      {"<task>/<name>": value} for each example in order; the fields of `keep` come first.
    """
    split = split or experiment.data.eval_split
    data = experiment.data.keep_fields(keep)

    def batches() -> tf.data.Dataset:
        if not data.spec.labels:
            return data.one_pass(split, with_labels=False)
        return data.one_pass(split).map(lambda features, labels: {**features, **labels})

    with (
        run_directory.hold_checkpoint(model_dir, checkpoint) as path,
        # A record may also be bad because of a field in `keep`, which only `data` reads.
        diagnosis.explain_run_errors(data, experiment.model, path, split),
    ):
        estimator = estimators.build_estimator(
            experiment, model_dir, path, keep, tell_unknown=unknown_values.warn
        )
        yield from kept_fields.restore_rows(estimator.predict(batches, checkpoint_path=path))


def prune(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    output_dir: str,
    checkpoint: str = "latest",
    rows: int = 1024,
    on_start: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], float]:
    """Cut weights of a finished run in one step.

    The result in `output_dir` is a run that you can evaluate, export, and train further with its
    masks.

    Args:
      experiment: the settings of the run, with `model.pruning`; `run.train_steps` is the step of
        the checkpoint.
      model_dir: the folder of the run, which stays as it is.
      output_dir: the folder of the new run.
      checkpoint: "latest", "best" or a path.
      rows: the number of rows of the training split for a criterion that reads inputs or gradients.
      on_start: a function to call before the new run is written.

    Returns:
      The metrics of the new run, and the share of weights that were cut, in [0, 1].

    Raises:
      UserError: the settings cannot prune this run, or `output_dir` already holds a run.
    """
    with run_directory.hold_checkpoint(model_dir, checkpoint) as path:
        storage.require_plain("--output_dir", output_dir)
        is_new = run_directory.find_latest(output_dir) is None
        fix = "launch.train continues or evaluates a pruned run."
        checks.require(is_new, "--output_dir", "hold no run", output_dir, fix)
        cut = finished_pruning.choose_cut(experiment, model_dir, path, rows)
        with run_directory.lock_run(output_dir), run_directory.claim_run(output_dir) as keep:
            on_start()
            finished_pruning.write_run(experiment, model_dir, path, cut, output_dir)
            keep()
    return train(experiment, output_dir)[0], cut.sparsity


def audit_clipping(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str = "all",
    output: str | None = None,
    key: str | None = None,
    others: Sequence[str] = (),
) -> str:
    """Audit the gradients of the training split at each checkpoint; return the summary's path.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of a trained run.
      checkpoint: "all" for all checkpoints in the folder; "latest", "best" or a path for a single
        checkpoint.
      output: the folder of the report; `<model_dir>/clip_audit/checkpoints` by default.
      key: the field that identifies samples, instead of `ClipAudit.key`.
      others: reports of other runs on the same samples, for comparison.
    """
    audits = attached.select_observers(experiment, clip_audit.ClipAudit)
    settings = audits[0] if audits else clip_audit.ClipAudit()
    settings = dataclasses.replace(settings, key=key or settings.key)
    settings.check_key(experiment.data.spec)
    for other in others:
        report.read_samples(other)
    output = output or os.path.join(model_dir, "clip_audit", "checkpoints")
    storage.require_possible("--output", output, "a folder", output)
    guard = scoring.Protection(files=experiment.files_read)
    for name in report.FILES:
        guard.check(os.path.join(output, name))
    data, model, run = experiment.data, experiment.model, experiment.run
    with (
        run_directory.dropping_empty(output),
        _hold_checkpoints(model_dir, checkpoint) as paths,
        diagnosis.explain_run_errors(data, model, paths[-1], data.train_split),
    ):
        run_directory.require_writable("--output", output)
        checkpoint_audit.audit_checkpoints(data, model, run, model_dir, settings, paths, output)
    return report.write(output, settings, others)


@contextlib.contextmanager
def _hold_checkpoints(model_dir: str, checkpoint: str) -> Iterator[list[str]]:
    """Yield the paths of one or "all" checkpoints, which training does not delete meanwhile."""
    with contextlib.ExitStack() as locks:
        hold = functools.partial(run_directory.hold_checkpoint, model_dir)
        last = locks.enter_context(hold("latest" if checkpoint == "all" else checkpoint))
        paths = run_directory.list_checkpoints(model_dir) if checkpoint == "all" else []
        # Another process may delete older checkpoints before this process protects them.
        older = [path for path in paths if path != last and run_directory.is_checkpoint(path)]
        yield [*(locks.enter_context(hold(path)) for path in older), last]


def debug(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    step: int | None = None,
    prompt: bool = False,
) -> str:
    """Replay a step of a run under TensorFlow's debugger, and find the op that made it fail.

    The replay writes only the folder `<model_dir>/debug/step_<n>`.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      step: the global step before the replayed step; by default the step at which the run failed.
      prompt: True opens tfdbg in the terminal at this step, and writes nothing.

    Returns:
      The findings, as a text to print.

    Raises:
      UserError: the step, an earlier checkpoint or the state of the input is missing.
    """
    # Import these modules only in `debug`, because they need private parts of TensorFlow's
    # debugger.
    from mtl.tools.debugging import findings, page, replay

    run_directory.checkpoint_path(model_dir, "latest")
    step = failures.read_step(model_dir) if step is None else step
    if step is None:
        rule = "be set, because the run has not failed at a NaN or infinity"
        checks.fail("--step", rule, None)
    last = experiment.run.train_steps
    checks.require(step < last, "--step", f"be less than Run.train_steps, {last}", step)
    if prompt:
        replay.prompt_step(experiment, model_dir, step)
        return ""
    folder = os.path.join(model_dir, "debug", f"step_{step}")
    with replay.open_step(experiment, model_dir, step) as replayed:
        result = findings.examine_step(replayed)
        run_directory.require_writable("--model_dir", folder)
        is_one = experiment.distribution.strategy == distribution.ONE
        command = failures.suggest_command(model_dir, step, tells_strategy=is_one)
        numbers = result.findings[0].rows.numbers if result.findings else ()
        where = places.find_places(experiment.data, findings.read_rows(replayed, numbers))
        return page.write(result, folder, command, where)


@contextlib.contextmanager
def open_scorer(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str = "latest"
) -> Iterator[scoring.Checkpoint]:
    """Open a checkpoint as a function that predicts every task for serialized tf.Examples.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      checkpoint: "latest", "best" or a path.

    Raises:
      UserError: the checkpoint does not exist, or does not fit the model.
    """
    with (
        run_directory.hold_checkpoint(model_dir, checkpoint) as path,
        diagnosis.explain_run_errors(experiment.data, experiment.model, path),
    ):
        estimator = estimators.build_estimator(experiment, model_dir, path)
        with scoring.Checkpoint.restored(estimator, experiment.data.spec, path) as model:
            yield model


@contextlib.contextmanager
def count_unknown(
    experiment: experiment_lib.Experiment, model_dir: str, model: Any
) -> Iterator[unknown_values.Counted]:
    """Yield a model that warns of fields with many unknown values, after its predictions.

    Args:
      experiment: the settings of the run, which has the same columns as the model.
      model_dir: the folder of the run; without its vocabularies, nothing is counted.
      model: a function that predicts for serialized tf.Examples.
    """
    with unknown_values.count_in(model, experiment, model_dir, unknown_values.warn) as counted:
        yield counted


def export(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    export_dir: str,
    checkpoint: str = "latest",
    before: Callable[[str, Any], None] = lambda written, held_out: None,
    is_converted: bool = False,
) -> str:
    """Write a SavedModel for TensorFlow Serving, `export_dir/<version>`.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      export_dir: the folder that gets the new version.
      checkpoint: "latest", "best" or a path.
      before: called with the unpublished export and the rows that checked it; if `before` raises an
        error, the export is not published.
      is_converted: True prepares the export for a `before` that converts it to another format.

    Returns:
      The path of the version.

    Raises:
      UserError: the checkpoint does not exist, or the export predicts other values.
    """
    storage.require_plain("--export_dir", export_dir)
    is_run = tf.io.gfile.exists(os.path.join(export_dir, "checkpoint"))
    fix = f"Exports of this run belong into {os.path.join(model_dir, 'export')}."
    checks.require(not is_run, "--export_dir", "hold no checkpoints", export_dir, fix)
    with (
        run_directory.hold_checkpoint(model_dir, checkpoint) as path,
        diagnosis.explain_run_errors(experiment.data, experiment.model, path),
        run_directory.dropping_empty(export_dir),
    ):
        run_directory.require_writable("--export_dir", export_dir)
        estimator = estimators.build_exported(experiment, model_dir, path, is_converted)
        add_files = added.choose_files(experiment.serving, is_converted)
        exporter = estimators.build_exporter(experiment, model_dir, add_files)
        message = f"exporting {path} to {export_dir}, and checking its predictions"
        with progress.tell_while(lambda: message):
            written = exporter(estimator, export_dir, path, before)
    trackers = attached.list_trackers(experiment)
    if trackers:
        with reporting.go_on(trackers, model_dir) as reporters:
            reporters.add_export(written, f"export/{os.path.basename(export_dir.rstrip('/'))}")
    return written
