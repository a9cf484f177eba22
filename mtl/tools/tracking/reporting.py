"""Reports the start, end, settings, metrics and files of a run to trackers.

report = reporting.Reporting(trackers=[mlflow])(run)
with reporting.go_on([mlflow], "runs/a") as reporters:      # of a trained run
    reporters.log("eval_test", 500, metrics)
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, deferred, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import flat_settings, run_directory
from mtl.deferred import tf
from mtl.distribution import tf_config
from mtl.files import storage
from mtl.monitoring import doubts
from mtl.serving import versions
from mtl.tools.tracking import reporter

with deferred.imports():
    from mtl.tools.tracking import tracked

_log = logging.getLogger(__name__)

# The number of characters in a value that all versions of all trackers accept.
_LONGEST = 500
_PICTURES = (".svg", ".txt", ".html")


@checks.dataclass
class Reporting:
    """Reports the start, end, settings, metrics and files of a run to trackers.

    Setting `Experiment.trackers` adds this observer to a run.

    Attributes:
      trackers: the trackers, such as `tracking.MLflow`.
    """

    trackers: Annotated[Sequence[types.Tracker], types.check_trackers]

    def __call__(self, run: types.ObservedRun) -> Report | None:
        """Return the observer that reports a run; None in a process that does not report."""
        # The chief has all metrics of the workers and parameter servers, so only the chief and an
        # evaluator report.
        reports = run.place.is_chief or run.place.job == tf_config.EVALUATOR
        return Report(run, self.trackers) if reports and self.trackers else None


class Report(types.RunObserver):
    """Reports the work of one process of a training to trackers.

    Args:
      run: the training. The chief begins and ends the tracked run; an evaluator adds metrics.
      trackers: the trackers to report to.
    """

    def __init__(self, run: types.ObservedRun, trackers: Sequence[types.Tracker]):
        is_evaluator = run.place.job == tf_config.EVALUATOR
        self._trackers = trackers
        self._experiment, self._model_dir, self._part = run.experiment, run.model_dir, run.part
        self._place = run.place
        self._is_owner = run.place.is_chief and not is_evaluator
        # In a cluster, chief and evaluator report to the same tracked run.
        self._is_beside = bool(run.place.cluster) and run.experiment.distribution.evaluator
        self._has_begun = False
        self._reporters = reporter.Reporters(trackers, run.model_dir, self._is_owner, run.part)

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        """Report at the end of the training whether it finished, failed or was killed.

        Raises:
          UserError: a tracker needs a package that is not installed.
        """
        for tracker in self._trackers:
            # Check for packages before the training, so that a missing package does not waste
            # training steps.
            types.read_member(tracker, types.Tracker, "require")()
        try:
            yield
        # A signal, such as Ctrl-C, is not a failure.
        except (SystemExit, KeyboardInterrupt):
            self._end_run(types.KILLED)
            raise
        except BaseException:
            self._end_run(types.FAILED)
            raise
        self._end_run(types.FINISHED)

    def prepare(self, is_new: bool) -> None:
        """Make trackers forget an earlier run in the folder if a new run begins."""
        self._reporters.prepare(is_new)

    def begin(self) -> None:
        """Start the trackers, after the model is built and restored."""
        folder, prefix = self._model_dir, ""
        # If a run consists of several trainings, all of them report to one tracked run, which has
        # the name of the whole run.
        if self._part:
            folder, prefix = self._part.folder, f"{self._part.name}/"
        parameters = _list_parameters(self._experiment) if self._is_owner else {}
        run = types.RunDescription(
            run_directory.name_run(folder),
            storage.make_absolute(folder),
            {f"{prefix}{name}": value for name, value in parameters.items()},
            is_beside=self._is_beside,
        )
        self._reporters.start(run)
        self._has_begun = True
        if self._is_owner:
            self._reporters.add_file(os.path.join(self._model_dir, "config.gin"))

    def end_early(self) -> None:
        """Start the trackers after the evaluation of a run without training steps (`Refit`)."""
        if self._reporters.are_waiting:
            self.begin()

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        """Return a hook that reports the scalars of training steps."""
        every = self._experiment.run.summary_steps
        num_rows = self._place.count_rows(self._experiment.data.batch_size)
        return types.RunHooks(of_steps=[tracked.Tracked(result, every, num_rows, self.log)])

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics of a step."""
        self._reporters.log(kind, step, metrics)

    def _end_run(self, state: str) -> None:
        """Report the files and the final state of the run; add lost reports to its warnings."""
        if self._is_owner:
            _add_files(self._reporters, self._model_dir)
        # An evaluator may end before the training, so an evaluator leaves the state of the run
        # unchanged.
        lines = self._reporters.close(state if self._is_owner else None)
        # If the tracking of this process has not begun, keep the warnings of an earlier process.
        if self._is_owner and self._has_begun:
            doubts.record_doubts(self._model_dir, "tracking", lines)


@contextlib.contextmanager
def go_on(trackers: Sequence[types.Tracker], model_dir: str) -> Iterator[reporter.Reporters]:
    """Yield reporters that add metrics and files to the tracked run of a finished training.

    Trackers that do not know the run, and trackers whose packages are not installed, are skipped
    with a line in the log.

    Args:
      trackers: the trackers of the run.
      model_dir: the folder of the run.
    """
    ready_trackers = []
    for tracker in trackers:
        name = types.read_member(tracker, types.Tracker, "name")
        run_id = reporter.Reporter(tracker, model_dir).record.read_id()
        try:
            types.read_member(tracker, types.Tracker, "require")()
        except checks.UserError as error:
            _log.warning("Warning: nothing is reported: %s", error)
            continue
        if run_id:
            ready_trackers.append(tracker)
        else:
            _log.info("Nothing is reported: tracker %s knows no run of %s", name, model_dir)
    # With `is_owner=False`, the state of the finished run stays unchanged.
    reporters = reporter.Reporters(ready_trackers, model_dir, is_owner=False)
    name, folder = run_directory.name_run(model_dir), storage.make_absolute(model_dir)
    reporters.start(types.RunDescription(name, folder))
    try:
        yield reporters
    finally:
        for line in reporters.close(None):
            _log.warning("Warning: %s", line)


def _list_parameters(experiment: experiment_lib.Experiment) -> dict[str, str]:
    """Return {setting: value} for all settings; shorten long values, and log their names."""
    values = {setting.path: setting.value for setting in flat_settings.flatten(experiment)}
    # Settings of trackers do not affect the training, and are not reported.
    values = {name: value for name, value in values.items() if not name.startswith("trackers")}
    long = [name for name, value in values.items() if len(value) > _LONGEST]
    if long:
        line = "Trackers get the first and last letters of settings longer than %d: %s"
        _log.info(line, _LONGEST, ", ".join(long))
    return {name: flat_settings.cut(value, _LONGEST) for name, value in values.items()}


def _add_files(reporters: reporter.Reporters, model_dir: str) -> None:
    """Add the existing pictures and reports and the best export of a run."""
    for folder in ("", "profile"):
        path = os.path.join(model_dir, folder)
        names = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []
        for name in sorted(names):
            if name.endswith(_PICTURES):
                reporters.add_file(os.path.join(path, name), folder)
    # Add only one export: the best, or the latest if there is no best export.
    for kind in ("best", "latest"):
        folder = os.path.join(model_dir, "export", kind)
        numbers = versions.list_versions(folder)
        if numbers:
            reporters.add_export(os.path.join(folder, str(numbers[-1])), f"export/{kind}")
            return
