"""A tracker that keeps what it is told, and can hang, raise or be slow."""

import dataclasses
import threading
import time
from collections.abc import Sequence

from mtl import types

HANGING = threading.Event()
"""Lets what hangs go on, at the end of a test."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told(types.Tracker):
    """Appends each call to `said`; the calls in `at` have the `fault` hang, raise or slow."""

    said: list = dataclasses.field(default_factory=list)
    fault: str = ""
    at: Sequence[str] = ("start", "log", "add_file", "end")
    name: str = "told"
    destination: str = ""
    flush_secs: float = 0.2
    export_limit_mb: float = 0.0

    def start(self, run):
        self.do("start", run)
        return ToldRun(self, run.run_id or f"run-{len(self.said)}")

    def do(self, what, *told):
        if what in self.at and self.fault == "hang":
            HANGING.wait(20)
        if what in self.at and self.fault == "raise":
            raise ConnectionError(f"no {what}\nof this")
        if what in self.at and self.fault == "slow":
            time.sleep(0.01)
        self.said.append((what, *told))

    def find(self, stream, step):
        """The metrics of a step of a stream."""
        logged = [one[2] for one in self.said if one[0] == "log" and one[1] == step]
        return next(own for own in logged if next(iter(own)).startswith(f"{stream}/"))

    def steps(self, stream="train"):
        """The steps that were logged of a stream, in order."""
        return [
            told[1]
            for told in self.said
            if told[0] == "log" and next(iter(told[2])).startswith(f"{stream}/")
        ]


class ToldRun(types.TrackedRun):
    run_id = ""

    def __init__(self, tracker, run_id):
        self._tracker, self.run_id = tracker, run_id

    def log(self, step, metrics):
        self._tracker.do("log", step, metrics)

    def add_file(self, path, folder):
        self._tracker.do("add_file", path, folder)

    def end(self, state):
        self._tracker.do("end", state)
