"""Evaluates the checkpoints of a run, exports them, and keeps the best checkpoint.

evaluator = evaluation.Evaluator(experiment, "runs/digits")
metrics = evaluator("runs/digits/model.ckpt-500")
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from mtl import checkpoints, checks, deferred, serving, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.deferred import compat, tf
from mtl.distribution import interruption as interruption_lib
from mtl.heads import slice_metrics
from mtl.monitoring import doubts, metrics_file, progress, summary
from mtl.runs import diagnosis, estimators, evaluation_graph, fitting, plausibility

with deferred.imports():
    from mtl.monitoring import curves, hooks
    from mtl.runs import exporters, measured, unknown_values

_log = logging.getLogger(__name__)

# Two values of a metric count as equal if their relative difference is at most this share.
_ROUNDING = 1e-5
_NO_OBSERVERS = types.RunObserver()

CurveWriter: TypeAlias = (
    "Callable[[str, Mapping[str, curves.Counted], Mapping[str, Sequence[str]]], list[str]]"
)
"""Writes curves from {task: sums} and {task: classes} to files in a folder; returns their paths."""


class Evaluator:
    """Evaluates each checkpoint of a run once, in the order of the steps.

    Args:
      experiment: the run's settings.
      model_dir: the folder of the run.
      interruption: records a request to stop; an evaluation then stops between batches.
      observers: the observers of the training, which watch each evaluation and may add hooks.

    Attributes:
      keeper: the record of the best checkpoint.
      metrics: the metrics of the last evaluation; None before the first evaluation.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        interruption: interruption_lib.Interruption,
        observers: types.RunObserver = _NO_OBSERVERS,
    ):
        self._experiment, self._model_dir, self._observers = experiment, model_dir, observers
        self._interruption = interruption
        doubts.record_doubts(model_dir, "best", _doubt_best(experiment))
        direction = experiment.model.find_direction(experiment.best.metric)
        # Ignore checkpoints from before the end of pruning: with more weights, they would be the
        # best.
        first = experiment.model.find_first_final_step(experiment.run.train_steps)
        best = experiment.best.with_direction(direction)
        self.keeper = checkpoints.BestKeeper(best, model_dir, from_step=first)
        self.metrics: dict[str, Any] | None = None
        self._unknown_from: int | None = None
        # Metrics of two evaluations are comparable if the digests of their rows are equal.
        self._rows, self._rows_vary = measured.Rows(), False
        self._measured_on: dict[str, Any] = {}

    def __call__(self, checkpoint: str) -> dict[str, Any]:
        """Evaluate a checkpoint, and export it as "latest" and, if it is the best so far, "best".

        A log line shows the main metric of every task. If rows or settings have changed since the
        evaluation of the best checkpoint, this function evaluates the best checkpoint again, too.

        Args:
          checkpoint: the path of the checkpoint.

        Returns:
          {metric: value}, with "global_step".
        """
        experiment = self._experiment
        watch = self._observers.watch_evaluation(checkpoint)
        self.metrics, self._measured_on = self._measure(checkpoint, watch)
        # Update the value of the best checkpoint before `is_best` compares with it.
        self._renew_best()
        main_metrics, best = (
            experiment.model.find_main_metrics(self.metrics),
            experiment.best.metric,
        )
        is_best = self.keeper.is_best(self.metrics)
        line = summary.describe_evaluation(self.metrics, main_metrics, best, is_best)
        fields = {"metrics": self.metrics, "is_best": is_best}
        _log.info("%s", line, extra={"fields": fields})
        metrics_file.add_row(self._model_dir, checkpoint, experiment.data.eval_split, self.metrics)
        self._tell_doubts()
        self._observers.log("eval", *split_step(self.metrics))
        self._export(checkpoint)
        return self.metrics

    def _measure(
        self,
        checkpoint: str,
        watch: types.EvaluationHooks | None = None,
        events: str | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics of a checkpoint, and a description of the rows and settings."""
        data, model = self._experiment.data, self._experiment.model
        split, rows = data.eval_split, self._rows
        passing = _Passing(self._interruption)
        pass_hooks = [passing, hooks.Callbacks(self.forget_later)]
        with (
            diagnosis.explain_run_errors(data, model, checkpoint, split),
            progress.tell_while(functools.partial(passing.describe, checkpoint, split)),
        ):
            if watch is None:
                metrics = self.graph.evaluate(checkpoint, pass_hooks, events)
            else:  # Build a new graph, as observers may add different ops to each evaluation.
                rows = measured.Rows()
                estimator = estimators.build_estimator(
                    self._experiment,
                    self._model_dir,
                    checkpoint,
                    evaluation_hooks=lambda *tensors: [*watch(*tensors), *rows.watch(*tensors)],
                )
                one_pass = functools.partial(data.one_pass, split)
                metrics = estimator.evaluate(one_pass, hooks=pass_hooks, checkpoint_path=checkpoint)
        description = {"rows": rows.describe(), "fields": rows.describe_fields()}
        return metrics, {**description, "settings": self._settings_digest}

    @functools.cached_property
    def _settings_digest(self) -> str:
        return measured.digest_settings(self._experiment.model)

    def _tell_doubts(self) -> None:
        """Warn once in a run if slices have no rows, or if the metric `Best.metric` is NaN."""
        experiment, metrics = self._experiment, cast(dict[str, Any], self.metrics)
        lines_by_kind = {
            "slices": describe_empty_slices(experiment, metrics, experiment.data.eval_split),
            "best_value": _describe_nan(experiment, metrics),
        }
        for kind, lines in lines_by_kind.items():
            # `record_doubts` logs the lines, so later evaluations must not record them again.
            if lines and not doubts.read_doubts(self._model_dir, kind):
                doubts.record_doubts(self._model_dir, kind, lines)

    @functools.cached_property
    def graph(self) -> evaluation_graph.EvaluationGraph:
        """The graph that evaluates all checkpoints; building it needs the statistics of the run."""
        experiment, rows = self._experiment, self._rows
        tell = functools.partial(doubts.record_doubts, self._model_dir, "unknown")
        statistics = fitting.load_statistics(self._model_dir)
        where = f"of split {experiment.data.eval_split!r}"
        columns = experiment.model.columns
        count = unknown_values.watch_evaluation(columns, statistics, where, tell)
        return evaluation_graph.EvaluationGraph(
            experiment, self._model_dir, lambda *tensors: [*rows.watch(*tensors), *count(*tensors)]
        )

    def _renew_best(self) -> None:
        """Evaluate the best checkpoint again if the last evaluation cannot be compared with it.

        If settings have changed, but the best checkpoint's metric has not, the count of
        `Best.patience` continues without a message. A record of an earlier version of mtl does not
        describe rows and settings; it counts as a record with other settings.
        """
        record, new_description = self.keeper.read(), self._measured_on
        old_description = record.get("measured_on")
        if not record or old_description == new_description or self._rows_vary:
            return
        rows_differ = _have_rows_changed(old_description, new_description)
        best = self.keeper.checkpoint
        if best is None:
            self.keeper.renew(new_description, None, is_other=rows_differ)
            return
        value = None
        if run_directory.is_checkpoint(best):
            value, rows = self._measure_best(best)
            # The evaluations of the best and of the last checkpoint have just read the split. If
            # these two evaluations read different rows, the rows of the split differ in each
            # evaluation.
            if rows != new_description["rows"]:
                self._rows_vary = True
                message = "The rows of split %r differ in each evaluation: values of %s cannot be "
                _log.warning(message + "compared.", *self._names_of_best)
                return
        is_other = rows_differ or value is None or not _are_close(value, record["value"])
        self.keeper.renew(new_description, value, is_other=is_other)
        if is_other:
            _log.warning("%s", self._tell_renewed(record, rows_differ, value))

    @property
    def _names_of_best(self) -> tuple[str, str]:
        """The split and the metric that choose the best checkpoint."""
        return self._experiment.data.eval_split, self._experiment.best.metric

    def _measure_best(self, checkpoint: str) -> tuple[float, str]:
        """Evaluate the best checkpoint; return its value, and a description of the rows."""
        split, metric = self._names_of_best
        metrics, measured_on = self._measure(checkpoint)
        metrics_file.add_row(self._model_dir, checkpoint, split, metrics)
        return float(metrics[metric]), measured_on["rows"]

    def _tell_renewed(
        self, record: Mapping[str, Any], rows_differ: bool, value: float | None
    ) -> str:
        """Return a line that says why the value of the best checkpoint was measured again."""
        split, metric = self._names_of_best
        rows, settings = f"the rows of split {split!r}", "settings of the model"
        subject = rows if rows_differ else settings
        if "measured_on" not in record:
            subject = f"{rows} or {settings}"
        had = f"{record['checkpoint']} had {metric} {record['value']:.6g}"
        now = "is gone" if value is None else f"has {value:.6g} now"
        reason = f"{subject[0].upper()}{subject[1:]} have changed since the best value was measured"
        return f"{reason}: {had} and {now}. Patience starts anew."

    def catch_up(self, is_evaluated_beside: bool = False) -> None:
        """Complete the evaluations of a run that was interrupted.

        The record of the best checkpoint forgets steps after the latest checkpoint. The latest
        checkpoint is evaluated now if it was not evaluated before.

        Args:
          is_evaluated_beside: True if a separate process evaluates checkpoints, including the
            latest.
        """
        path, step = (
            run_directory.find_latest(self._model_dir),
            run_directory.step_of(self._model_dir),
        )
        if line := self.keeper.describe_other_goal():
            _log.warning("%s", line)
        # A run that continues from an earlier checkpoint trains the later steps again.
        self.keeper.rewind(step)
        is_done = step <= self.keeper.last_step
        # Evaluations of steps after the latest checkpoint are no longer valid, because the steps
        # are trained again.
        self._unknown_from = step + 1 if path and is_done else step
        if not is_done and not is_evaluated_beside:
            self(cast(str, path))  # If there is no checkpoint, step 0 counts as evaluated.

    def forget_later(self) -> None:
        """Remove evaluations of steps that a restored run will train again."""
        if self._unknown_from is not None:
            hooks.forget_from(os.path.join(self._model_dir, "eval"), self._unknown_from)
            metrics_file.forget_from(self._model_dir, self._unknown_from)
            self._unknown_from = None

    def evaluate_again(self) -> dict[str, Any]:
        """Return the metrics of the latest checkpoint, which is already evaluated and exported.

        If rows or settings have changed, the checkpoint may now be the best, and is exported.
        """
        path, data = run_directory.checkpoint_path(self._model_dir, "latest"), self._experiment.data
        plausibility.look_at_labels(self._experiment.model, data, data.eval_split)
        # TensorBoard already shows this evaluation, so the new events go to a temporary folder.
        with tempfile.TemporaryDirectory() as scratch, hooks.closing_writers(scratch):
            self.metrics, self._measured_on = self._measure(path, events=scratch)
        self._renew_best()
        if self.keeper.last_step < run_directory.step_in_name(path):
            return self(path)
        metrics_file.add_row(self._model_dir, path, data.eval_split, self.metrics)
        return self.metrics

    def _export(self, checkpoint: str) -> None:
        estimator = estimators.build_exported(self._experiment, self._model_dir, checkpoint)
        for exporter in self._exporters:
            folder = os.path.join(self._model_dir, "export", exporter.name)
            describe = "exporting {} to {}, and checking its predictions".format
            try:
                with progress.tell_while(functools.partial(describe, checkpoint, folder)):
                    exporter.export(estimator, folder, checkpoint, self.metrics, False)
            except (tf.errors.OpError, OSError) as error:
                reason = run_directory.shorten_error(error)
                message = f"{checkpoint} cannot be exported to {folder}: {reason}."
                raise checks.UserError(message) from error

    @functools.cached_property
    def _exporters(self) -> list[compat.estimator.Exporter]:
        build, add_files = estimators.build_exporter, self._observers.add_to_export
        export = serving.or_warn(build(self._experiment, self._model_dir, add_files))
        best = exporters.BestExporter(self.keeper, export, lambda: self._measured_on)
        return [exporters.EachEvaluation(export), best]


def evaluate(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    split: str | None = None,
    checkpoint: str = "latest",
    is_attacked: bool = False,
    write_curves: CurveWriter | None = None,
) -> dict:
    """Evaluate a checkpoint on all rows of a split.

    The metrics are appended to `metrics.jsonl`. Unless `Experiment.attack` perturbs the inputs, the
    metrics of a split other than `Pipeline.eval_split` also go to the folder `eval_<split>` for
    TensorBoard, where they replace events of later steps.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      split: the split; None for `Pipeline.eval_split`.
      checkpoint: "latest", "best" or a path.
      is_attacked: True perturbs the inputs by `Experiment.attack`.
      write_curves: writes curves of tasks with classes to a folder in `<model_dir>/curves`.

    Returns:
      {metric: value}, with "global_step".
    """
    _require_attack(experiment, is_attacked)
    split = split or experiment.data.eval_split
    is_without_events = split == experiment.data.eval_split or is_attacked
    with (
        run_directory.hold_checkpoint(model_dir, checkpoint) as path,
        diagnosis.explain_run_errors(experiment.data, experiment.model, path, split),
        tempfile.TemporaryDirectory() as scratch,
    ):
        experiment.distribution.resources.take()
        plausibility.look_at_labels(experiment.model, experiment.data, split)
        estimator = estimators.build_estimator(
            experiment,
            model_dir,
            path,
            events=scratch if is_without_events else None,
            is_attacked=is_attacked,
            evaluation_hooks=_watch_rows(experiment, model_dir, split, is_attacked, write_curves),
        )
        name = None if is_without_events else _spell(split)
        passing = _Passing()
        watchers: list[Any] = [passing]
        if not is_without_events:
            forget = functools.partial(hooks.forget_from, estimator.eval_dir(name))
            step = run_directory.step_saved(path)
            watchers.append(hooks.Callbacks(functools.partial(forget, step)))
        one_pass = functools.partial(experiment.data.one_pass, split)
        with (
            hooks.closing_writers(estimator.eval_dir(name)),
            progress.tell_while(functools.partial(passing.describe, path, split)),
        ):
            metrics = estimator.evaluate(one_pass, hooks=watchers, checkpoint_path=path, name=name)
    for line in describe_empty_slices(experiment, metrics, split):
        _log.warning("Warning: %s", line)
    metrics_file.add_row(model_dir, path, split, metrics, is_attacked)
    return metrics


def _require_attack(experiment: experiment_lib.Experiment, is_attacked: bool) -> None:
    rule, fix = "be set", "Bind Experiment.attack = @attack/auxiliary.Adversarial()."
    has_attack = not is_attacked or experiment.attack is not None
    checks.require(has_attack, "Experiment.attack", rule, None, fix)


def _watch_rows(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    split: str,
    is_attacked: bool,
    write_curves: CurveWriter | None,
) -> types.EvaluationHooks:
    """Return a function that builds hooks which watch the rows of an evaluation."""
    builders: list[types.EvaluationHooks] = []
    if write_curves is not None:
        builders.append(watch_curves(experiment, model_dir, split, is_attacked, write_curves))
    statistics, where = fitting.load_statistics(model_dir), f"of split {split!r}"
    columns, warn = experiment.model.columns, unknown_values.warn
    builders.append(unknown_values.watch_evaluation(columns, statistics, where, warn))
    return lambda *rows: [hook for build in builders for hook in build(*rows)]


def watch_curves(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    split: str,
    is_attacked: bool,
    write_curves: CurveWriter,
) -> types.EvaluationHooks:
    """Return a function that builds the hook which writes curves of an evaluation.

    Raises:
      UserError: no task has classes, or the folder cannot be written.
    """
    heads = experiment.model.fitted(fitting.load_statistics(model_dir)).heads
    names = {head.name: types.read_member(head, types.ClassHead, "class_names") for head in heads}
    rule = "be left out if no task has classes"
    checks.require(any(names.values()), "--curves", rule, True)
    parent = os.path.join(model_dir, "curves")
    run_directory.require_writable("--model_dir", parent)
    stream = name_stream(experiment, split) + "_attacked" * is_attacked

    def write(step: int, counted: Mapping[str, curves.Counted]) -> None:
        folder = os.path.join(parent, f"{stream}_step_{step}")
        paths = write_curves(folder, counted, names)
        _log.info("Wrote %d files of curves to %s", len(paths), folder)

    def watch(features: Any, labels: Any, logits: types.Tensors) -> list[curves.Counting]:
        del features
        return [curves.Counting(heads, logits, labels, True, True, write)]

    return watch


def name_stream(experiment: experiment_lib.Experiment, split: str | None) -> str:
    """Return the name of an evaluation in TensorBoard and trackers.

    Args:
      experiment: the experiment of the run.
      split: the evaluated split; None for `Pipeline.eval_split`.

    Returns:
      "eval" for `Pipeline.eval_split`, else "eval_<split>" with "_" for special characters.
    """
    is_own = split in (None, experiment.data.eval_split)
    return "eval" if is_own else f"eval_{_spell(cast(str, split))}"


def _spell(split: str) -> str:
    return re.sub(r"\W+", "_", split)


def split_step(metrics: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Split the result of an evaluation into its global step and its metrics.

    Args:
      metrics: {metric: value}, with `global_step`.

    Returns:
      The global step, and {metric: value as a float} without `global_step`.
    """
    values = {name: float(value) for name, value in metrics.items() if name != "global_step"}
    return int(metrics["global_step"]), values


def _have_rows_changed(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    return before is not None and before["rows"] != now["rows"]


def _are_close(value: float, other: float) -> bool:
    """Return True if two values of a metric differ only by rounding errors."""
    both_nan = math.isnan(value) and math.isnan(other)
    return both_nan or math.isclose(value, other, rel_tol=_ROUNDING)


def _doubt_best(experiment: experiment_lib.Experiment) -> list[str]:
    """Return warnings about the choice of the best checkpoint."""
    heads, metric = experiment.model.heads, experiment.best.metric
    directions = [types.read_member(head, types.Head, "directions") for head in heads]
    if metric not in ("average_loss", "loss") or any(directions):
        return []
    names = ", ".join(experiment.model.tasks)
    return [
        f"Best.metric {metric!r} is the same for all checkpoints, as {names} trains nothing: the "
        "best checkpoint is the first. Use --checkpoint latest."
    ]


def describe_empty_slices(
    experiment: experiment_lib.Experiment, metrics: Mapping[str, Any], split: str
) -> list[str]:
    """Return a line that names the slices without a row in a split; [] if all slices have rows.

    Args:
      experiment: the settings of the run, whose model names the slices.
      metrics: {metric: value} of an evaluation.
      split: the name of the evaluated split, which the returned line contains.
    """
    empty = slice_metrics.list_empty(experiment.model.slices, metrics)
    if not empty:
        return []
    names = ", ".join(empty)
    return [
        f"Split {split!r} holds no labelled row of {names}, which MultiTaskModel.slices names: the "
        "metrics there are n/a. Are the values written as in the data, in upper or lower case?"
    ]


def _describe_nan(experiment: experiment_lib.Experiment, metrics: Mapping[str, Any]) -> list[str]:
    """Return a warning if `Best.metric`, which chooses the best checkpoint, is NaN."""
    best, step = experiment.best, int(metrics["global_step"])
    if not math.isnan(float(metrics[best.metric])):
        return []
    ends = f", and Best.patience ends the run after {best.patience} of them in a row"
    return [
        f"Best.metric {best.metric!r} is NaN at step {step} on split "
        f"{experiment.data.eval_split!r}, for example because all labels are of one class: such an "
        f"evaluation is never the best{'' if best.patience is None else ends}."
    ]


class _Passing(tf.compat.v1.train.SessionRunHook):
    """Counts the batches of an evaluation, and ends the process after a request to stop.

    The next start of the run repeats the interrupted evaluation of a checkpoint.
    """

    def __init__(self, interruption: interruption_lib.Interruption | None = None):
        self._interruption, self._batches = interruption, 0

    def describe(self, checkpoint: str, split: str) -> str:
        """Return a line about the progress of the evaluation."""
        return f"evaluating {checkpoint} on split {split!r}: {self._batches:,} batches"

    def after_run(self, run_context, run_values):
        self._batches += 1
        if self._interruption and self._interruption.requested:
            self._interruption.leave("while it evaluated")
