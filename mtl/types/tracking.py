"""Protocols of experiment trackers, such as MLflow, to which a run reports its metrics."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from mtl import checks
from mtl.types import parts

FINISHED, FAILED, KILLED = "finished", "failed", "killed"
"""The final states of a training run: finished, stopped by an error, or stopped on request."""


@dataclasses.dataclass(frozen=True)
class RunPart:
    """One stage of a run that consists of several trainings.

    Attributes:
      name: the name of the stage, a prefix of the metrics that the stage reports.
      folder: the folder of the whole run.
      is_first: True if the run begins with this stage.
    """

    name: str
    folder: str
    is_first: bool


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """The description of a run that a tracker gets when a process begins to report.

    Attributes:
      name: the name of the run, from its folder.
      folder: the path of the run's folder.
      parameters: {setting: value}, values as texts of at most 500 characters; {} if the process
        only adds to an existing run.
      run_id: the tracker's identifier of an existing run; None for a new run.
      is_beside: True if another process may report to the same run at the same time.
    """

    name: str
    folder: str
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_id: str | None = None
    is_beside: bool = False


class TrackedRun(Protocol):
    """A run that a tracker has begun or continued.

    One thread, separate from the training, calls all methods of the object. A call may be slow or
    raise any error; the training continues.
    """

    @property
    @abc.abstractmethod
    def run_id(self) -> str:
        """The tracker's identifier of the run, with which another process can continue the run."""

    @abc.abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a step.

        Args:
          step: the global step of the metrics.
          metrics: {name: value}; values may be NaN. The names of metrics begin with train/, with
            eval/, or with eval_<split>/. If a run has stages, the name of the stage precedes train/
            or eval/.
        """

    def add_file(self, path: str, folder: str) -> None:
        """Add a file or a whole folder to the tracked run.

        Args:
          path: the file or folder to add.
          folder: the target folder in the tracked run; "" is the root folder.
        """
        del path, folder

    def end(self, state: str | None) -> None:
        """End the reports of this process.

        Args:
          state: the final state of the run: FINISHED, FAILED or KILLED; None keeps the state.
        """
        del state


class Tracker(Protocol):
    """An experiment tracker; `start` begins or continues a run of the tracker."""

    @property
    def name(self) -> str:
        """The tracker's name in messages and in the path `<model_dir>/tracking/<name>`."""
        return type(self).__name__.lower()

    @property
    def destination(self) -> str:
        """The address of the tracked runs, such as a server; each address gets a new run."""
        return ""

    @property
    def flush_secs(self) -> float:
        """The longest time in seconds that a run waits for pending reports before it ends."""
        return 10.0

    @property
    def export_limit_mb(self) -> float:
        """The largest size, in megabytes, of an export for the tracked run; 0 adds no exports."""
        return 0.0

    def require(self) -> None:
        """Fail if a package that the tracker needs is missing; called before a run begins."""

    @abc.abstractmethod
    def start(self, run: RunDescription) -> TrackedRun:
        """Begin a new run of the tracker, or continue an existing run.

        If `start` raises an error, the process logs the error, and calls `start` again some seconds
        later.

        Args:
          run: the description of the run; if `run.run_id` is set, the tracker continues that run.

        Returns:
          The run to which this process reports.
        """


def check_trackers(where: str, trackers: Any) -> None:
    """Fail unless a setting is a list of trackers with different names.

    Args:
      where: the name of the setting, for error messages.
      trackers: the value of the setting.

    Raises:
      UserError: the value is not a list, an entry is not a tracker, or a name is invalid or occurs
        twice.
    """
    rule = "be a list of parts such as @tracking.MLflow()"
    checks.is_a(where, trackers, (list, tuple), rule)
    names = []
    for tracker in trackers:
        checks.has(where, tracker, ["start"], rule)
        names.append(parts.read_member(tracker, Tracker, "name"))
        checks.scope_name(f"{type(tracker).__name__}.name", names[-1])
    checks.unique(where, names)
