"""Where a run is reported to, beside its own folder: trackers of experiments."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Protocol

FINISHED, FAILED, KILLED = "finished", "failed", "killed"
"""How a training ends: by itself, by an error, or as it was asked to stop."""


@dataclasses.dataclass(frozen=True)
class RunPart:
    """What one of several trainings is of the run that they make up, such as a stage.

    Attributes:
      name: of the part; it stands before the names of what the part reports.
      folder: of the whole run.
      is_first: whether the run begins with this part.
    """

    name: str
    folder: str
    is_first: bool


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """What a tracker is told when a process begins to report.

    Attributes:
      name: of the run, by its folder.
      folder: the run's folder.
      parameters: {setting: value}, as text of at most 500 characters; {} where the process only
        adds to what is there.
      run_id: the tracker's own name for the run, where it has begun; None for a new one.
      is_beside: whether another process may report to the same run at the same time.
    """

    name: str
    folder: str
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_id: str | None = None
    is_beside: bool = False


class TrackedRun(Protocol):
    """A run that a tracker has begun, or goes on with.

    All calls come from one thread, which is not that of the training. A call may take its time, and
    may raise anything: the training goes on.
    """

    @property
    @abc.abstractmethod
    def run_id(self) -> str:
        """The tracker's own name for the run, by which another process goes on with it."""

    @abc.abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report {name: value} at a step; NaN is a value.

        Names begin with train/, with eval/, or with eval_<split>/; those of a part of the run with
        its name before that.
        """

    def add_file(self, path: str, folder: str) -> None:
        """Add a file, or a folder with all in it, to a folder of the tracker's; "" is its root."""
        del path, folder

    def end(self, state: str | None) -> None:
        """End what this process reports: in a state, or with the run's state as it was."""
        del state


class Tracker(Protocol):
    """Settings of a tracker; `start` makes what talks to it."""

    @property
    def name(self) -> str:
        """Names the tracker in messages, and its folder under `<model_dir>/tracking`."""
        return type(self).__name__.lower()

    @property
    def destination(self) -> str:
        """Where runs lie; a run that goes on with another destination is a new one there."""
        return ""

    @property
    def flush_secs(self) -> float:
        """How long the end of a run waits for what is not reported yet, in seconds."""
        return 10.0

    @property
    def export_limit_mb(self) -> float:
        """Up to which size an export is added as files, in megabytes; 0 adds none."""
        return 0.0

    def require(self) -> None:
        """Fail where what it needs is not installed; called before a run begins."""

    @abc.abstractmethod
    def start(self, run: RunDescription) -> TrackedRun:
        """Begin a run, or go on with `run.run_id`."""
