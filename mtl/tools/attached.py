"""Lists the observers of a training, such as trackers, pictures, a clip audit and TensorBoard.

training.Training(made, "runs/a", on_start, observers=attached.list_observers(made))
"""

from __future__ import annotations

from typing import Any, TypeVar

from mtl import checks, deferred, types
from mtl import experiment as experiment_lib

with deferred.imports():  # A run loads only the tools that it uses.
    from mtl.tools import profiling, tracking
    from mtl.tools.debugging import numerics
    from mtl.tools.drawing import pictures
    from mtl.tools.runtimes import added

_Part = TypeVar("_Part")
_TOOLS = "mtl.tools."


def list_observers(experiment: experiment_lib.Experiment) -> list[types.OpenObserver]:
    """Return the observers that other settings add to a run, followed by `Experiment.observers`.

    The settings that add observers are the `trackers`, `clip_audit` and `tensorboard` of the
    `Experiment`, `Run.profile`, `Run.check_numerics` and `Serving.portable`. Every run draws
    pictures.

    Raises:
      UserError: two observers are tools of the same class, so they would write the same files.
    """
    run, trackers = experiment.run, experiment.trackers
    found: list[Any] = [
        tracking.Reporting(trackers=trackers) if trackers else None,
        pictures.observe,
        experiment.clip_audit,
        experiment.tensorboard,
        profiling.Profile(steps=run.profile) if run.profile else None,
        numerics.CheckNumerics() if run.check_numerics else None,
        added.observe if experiment.serving.portable else None,
        *experiment.observers,
    ]
    parts = [part for part in found if part is not None]
    names = [type(part).__name__ for part in parts if type(part).__module__.startswith(_TOOLS)]
    # Two tools of one class would write the same files.
    checks.unique("Experiment.observers, and the settings that add to it,", names)
    return parts


def select_observers(experiment: experiment_lib.Experiment, kind: type[_Part]) -> list[_Part]:
    """Return the observers of a training that are of one class."""
    return [part for part in list_observers(experiment) if isinstance(part, kind)]


def list_trackers(experiment: experiment_lib.Experiment) -> list[types.Tracker]:
    """Return the trackers of a run."""
    reports = select_observers(experiment, tracking.Reporting)
    return [tracker for report in reports for tracker in report.trackers]
