"""What a run reports to its trackers: when it begins and ends, which settings, which files.

with reporting.report_training(experiment, "runs/a", place) as report:
    report.start(first=0)
    report.reporters.log("train", 100, {"loss": 0.5})
with reporting.go_on(experiment, "runs/a") as reporters:      # of a run that is trained
    reporters.log("eval_test", 500, metrics)
"""

import contextlib
import logging
import os
from collections.abc import Iterator

import tensorflow as tf

from mtl import checks, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import flat_settings, run_directory
from mtl.distribution import settings, tf_config
from mtl.files import storage
from mtl.monitoring import doubts
from mtl.serving import versions
from mtl.tracking import reporter

_log = logging.getLogger(__name__)

# As many letters as every version of every tracker takes.
_LONGEST = 500
_PICTURES = (".svg", ".txt", ".html")


class Report:
    """What one process of a training reports.

    Args:
      experiment: the run's settings.
      model_dir: of the run.
      place: of this process. The chief begins and ends the run, an evaluator adds its metrics, and
        others report nothing.
      part: what the training is of a run of several, such as a stage; None for a whole run.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        place: settings.Place,
        part: types.RunPart | None = None,
    ):
        is_evaluator = place.job == tf_config.EVALUATOR
        trackers = experiment.trackers if place.is_chief or is_evaluator else ()
        for tracker in trackers:
            types.read_member(tracker, types.Tracker, "require")()
        self._experiment, self._model_dir, self._part = experiment, model_dir, part
        self._is_owner = place.is_chief and not is_evaluator
        self._is_beside = bool(place.cluster) and experiment.distribution.evaluator
        self._has_begun = False
        self.reporters = reporter.Reporters(trackers, model_dir, self._is_owner, part)

    def prepare(self, is_new: bool) -> None:
        """Forget what an earlier run in the folder was, if this is a new one; the chief does."""
        self.reporters.prepare(is_new)

    def start(self) -> None:
        """Begin to report: the model is built and restored."""
        if not self.reporters:
            return
        folder, prefix = self._model_dir, ""
        if self._part:
            folder, prefix = self._part.folder, f"{self._part.name}/"
        parameters = _list_parameters(self._experiment) if self._is_owner else {}
        run = types.RunDescription(
            run_directory.name_run(folder),
            storage.make_absolute(folder),
            {f"{prefix}{name}": value for name, value in parameters.items()},
            is_beside=self._is_beside,
        )
        self.reporters.start(run)
        self._has_begun = True
        if self._is_owner:
            self.reporters.add_file(os.path.join(self._model_dir, "config.gin"))

    def start_if_waiting(self) -> None:
        """Begin to report where a run that trains nothing was evaluated, such as a `Refit`."""
        if self.reporters.are_waiting:
            self.start()

    def end(self, state: str | None) -> None:
        """Report the files of the run and how it ended; what was lost is a doubt of the run."""
        if not self.reporters:
            return
        if self._is_owner:
            _add_files(self.reporters, self._model_dir)
        lines = self.reporters.close(state if self._is_owner else None)
        if self._is_owner and self._has_begun:  # Else what an earlier process lost is still so.
            doubts.record_doubts(self._model_dir, "tracking", lines)


@contextlib.contextmanager
def report_training(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    place: settings.Place,
    part: types.RunPart | None = None,
) -> Iterator[Report]:
    """Yield what this process reports, and end it as the training ends.

    Raises:
      UserError: a tracker needs a package that is not installed.
    """
    report = Report(experiment, model_dir, place, part)
    try:
        yield report
    except (SystemExit, KeyboardInterrupt):
        report.end(types.KILLED)
        raise
    except BaseException:
        report.end(types.FAILED)
        raise
    report.end(types.FINISHED)


@contextlib.contextmanager
def go_on(experiment: experiment_lib.Experiment, model_dir: str) -> Iterator[reporter.Reporters]:
    """Yield what adds to the run that a training has reported; its state stays as it is.

    A tracker that knows no such run, or whose package is not installed, is told of in a line.
    """
    trackers = []
    for tracker in experiment.trackers:
        name = types.read_member(tracker, types.Tracker, "name")
        known = reporter.Reporter(tracker, model_dir).kept.read_id()
        try:
            types.read_member(tracker, types.Tracker, "require")()
        except checks.UserError as error:
            _log.warning("Warning: nothing is reported: %s", error)
            continue
        if known:
            trackers.append(tracker)
        else:
            _log.info("Nothing is reported: tracker %s knows no run of %s", name, model_dir)
    reporters = reporter.Reporters(trackers, model_dir, is_owner=False)
    name, folder = run_directory.name_run(model_dir), storage.make_absolute(model_dir)
    reporters.start(types.RunDescription(name, folder))
    try:
        yield reporters
    finally:
        for line in reporters.close(None):
            _log.warning("Warning: %s", line)


def _list_parameters(experiment: experiment_lib.Experiment) -> dict[str, str]:
    """Return {setting: value} of all settings; those that are too long are cut, and told."""
    found = {one.path: one.value for one in flat_settings.flatten(experiment)}
    found = {name: value for name, value in found.items() if not name.startswith("trackers")}
    long = [name for name, value in found.items() if len(value) > _LONGEST]
    if long:
        line = "Trackers get the first and last letters of settings longer than %d: %s"
        _log.info(line, _LONGEST, ", ".join(long))
    return {name: flat_settings.cut(value, _LONGEST) for name, value in found.items()}


def _add_files(reporters: reporter.Reporters, model_dir: str) -> None:
    """Add the pictures, the report and the export of a run, as far as there are any."""
    for folder in ("", "profile"):
        lying = os.path.join(model_dir, folder)
        names = tf.io.gfile.listdir(lying) if tf.io.gfile.isdir(lying) else []
        for name in sorted(names):
            if name.endswith(_PICTURES):
                reporters.add_file(os.path.join(lying, name), folder)
    for kind in ("best", "latest"):
        folder = os.path.join(model_dir, "export", kind)
        exported = versions.list_versions(folder)
        if exported:
            reporters.add_export(os.path.join(folder, str(exported[-1])), f"export/{kind}")
            return
