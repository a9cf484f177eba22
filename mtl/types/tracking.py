"""Trackers of experiments, to which a run reports beside its own folder."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from mtl import checks
from mtl.types import parts

FINISHED, FAILED, KILLED = "finished", "failed", "killed"
"""How a training ends: by itself, by an error, or by a request to stop."""


@dataclasses.dataclass(frozen=True)
class RunPart:
    """One of several trainings that form a run, such as a stage.

    Attributes:
      name: the name of the part, a prefix of the names that the part reports.
      folder: the folder of the whole run.
      is_first: True if the run begins with this part.
    """

    name: str
    folder: str
    is_first: bool


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """A run, as a tracker gets it when a process begins to report.

    Attributes:
      name: the name of the run, from its folder.
      folder: the run's folder.
      parameters: {setting: value}, as text of at most 500 characters; {} if the process only adds
        to an existing run.
      run_id: the tracker's own name of an existing run; None for a new run.
      is_beside: True if another process may report to the same run at the same time.
    """

    name: str
    folder: str
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_id: str | None = None
    is_beside: bool = False


class TrackedRun(Protocol):
    """A run that a tracker has begun or continued.

    All calls come from one thread, separate from the training. A call may be slow, and may raise
    any error: the training goes on.
    """

    @property
    @abc.abstractmethod
    def run_id(self) -> str:
        """The tracker's own name of the run, by which another process can continue it."""

    @abc.abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report {name: value} at a step; values may be NaN.

        Names begin with train/, with eval/, or with eval_<split>/. In a part of a run, the name of
        the part comes first.
        """

    def add_file(self, path: str, folder: str) -> None:
        """Add a file, or a whole folder, to a folder of the tracked run; "" is its root."""
        del path, folder

    def end(self, state: str | None) -> None:
        """End the report of this process; set the state of the run, or keep it with None."""
        del state


class Tracker(Protocol):
    """Settings of a tracker; `start` begins or continues a tracked run."""

    @property
    def name(self) -> str:
        """The name of the tracker in messages, and of its folder under `<model_dir>/tracking`."""
        return type(self).__name__.lower()

    @property
    def destination(self) -> str:
        """The place of tracked runs, such as a server; a new place gets a new tracked run."""
        return ""

    @property
    def flush_secs(self) -> float:
        """The longest time, in seconds, that the end of a run waits for pending reports."""
        return 10.0

    @property
    def export_limit_mb(self) -> float:
        """The largest export, in megabytes, whose files are added; 0 adds none."""
        return 0.0

    def require(self) -> None:
        """Fail if a package that it needs is not installed; called before a run begins."""

    @abc.abstractmethod
    def start(self, run: RunDescription) -> TrackedRun:
        """Begin a run, or continue `run.run_id`."""


def check_trackers(where: str, trackers: Any) -> None:
    """Fail unless a setting is a list of trackers with different names."""
    rule = "be a list of parts such as @tracking.MLflow()"
    checks.is_a(where, trackers, (list, tuple), rule)
    names = []
    for tracker in trackers:
        checks.has(where, tracker, ["start"], rule)
        names.append(parts.read_member(tracker, Tracker, "name"))
        checks.scope_name(f"{type(tracker).__name__}.name", names[-1])
    checks.unique(where, names)
