"""An example of a tracker, which appends every metric of all runs to one CSV file.

from examples import csv_tracker
experiment.Experiment.trackers = [@csv_tracker.CsvTracker()]
csv_tracker.CsvTracker.path = "all_runs.csv"
"""

import csv
import dataclasses
import uuid

from mtl import checks, types


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvTracker(types.Tracker):
    """Appends a line `run, step, metric, value` for each metric."""

    path: str

    def __post_init__(self):
        checks.is_a("CsvTracker.path", self.path, str, "be a file")

    def start(self, run: types.RunDescription) -> "Lines":
        """Start to track a run, or continue to track it."""
        return Lines(self.path, run.run_id or f"{run.name}-{uuid.uuid4().hex[:6]}")


class Lines(types.TrackedRun):
    """Writes the lines of one run."""

    run_id = ""

    def __init__(self, path: str, run_id: str):
        self._path, self.run_id = path, run_id

    def log(self, step, metrics):
        with open(self._path, "a", newline="") as file:
            csv.writer(file).writerows([self.run_id, step, *pair] for pair in metrics.items())
