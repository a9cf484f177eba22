"""Lists the parts that act beside a training; the only module that names the tools among them.

training.Training(made, "runs/a", on_start, observers=attached.list_observers(made))
"""

from __future__ import annotations

from typing import Any, TypeVar

from mtl import experiment as experiment_lib
from mtl import types
from mtl.tools import profiling, tracking
from mtl.tools.debugging import numerics
from mtl.tools.drawing import pictures

_Part = TypeVar("_Part")


def list_observers(experiment: experiment_lib.Experiment) -> list[types.OpenObserver]:
    """Return `Experiment.observers`, after a part for each other setting that adds one.

    The settings are `Experiment.trackers`, `clip_audit` and `tensorboard`, `Run.profile` and
    `Run.check_numerics`. Every run draws pictures.
    """
    run, trackers = experiment.run, experiment.trackers
    found: list[Any] = [
        tracking.Reporting(trackers=trackers) if trackers else None,
        pictures.observe,
        experiment.clip_audit,
        experiment.tensorboard,
        profiling.Profile(steps=run.profile) if run.profile else None,
        numerics.CheckNumerics() if run.check_numerics else None,
        *experiment.observers,
    ]
    return [part for part in found if part is not None]


def select_observers(experiment: experiment_lib.Experiment, kind: type[_Part]) -> list[_Part]:
    """Return the observers of a training that are of one class."""
    return [part for part in list_observers(experiment) if isinstance(part, kind)]


def list_trackers(experiment: experiment_lib.Experiment) -> list[types.Tracker]:
    """Return the trackers of a run."""
    reports = select_observers(experiment, tracking.Reporting)
    return [tracker for report in reports for tracker in report.trackers]
