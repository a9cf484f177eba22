"""Passes the reports of a run to its trackers, in a thread for each: steps do not wait.

reporters = reporter.Reporters([mlflow], "runs/digits")
reporters.start(description)
reporters.log("train", 100, {"loss": 0.5})                  # returns at once
lines = reporters.close(types.FINISHED)                     # waits `flush_secs` at most
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks, types
from mtl.deferred import tf
from mtl.tools.tracking import kept

_log = logging.getLogger(__name__)

# The longest queue of reports of metrics: with one each 100 steps, it holds 100,000 steps.
_WAITING = 1000
# The time between two attempts to reach a tracker that failed to begin.
_AGAIN_SECS = 10.0


class _Report(NamedTuple):
    """A report: its action, its name, and True if it may be dropped from a full queue."""

    act: Callable[[types.TrackedRun], None]
    what: str
    is_metric: bool


class Reporter:
    """One tracker of one process.

    Its thread begins with `start`. An error of the tracker is logged once. If the tracker is slow
    or away, the oldest metrics are dropped.

    Args:
      tracker: the settings.
      model_dir: the folder of the run.
      is_owner: True if this process begins and ends the run; others wait for its id.
      part: the place of this part in a run of several parts.
    """

    def __init__(
        self,
        tracker: types.Tracker,
        model_dir: str,
        is_owner: bool = True,
        part: types.RunPart | None = None,
    ):
        read = types.read_member
        self.name: str = read(tracker, types.Tracker, "name")
        self._flush_secs: float = read(tracker, types.Tracker, "flush_secs")
        self._limit_mb: float = read(tracker, types.Tracker, "export_limit_mb")
        destination = read(tracker, types.Tracker, "destination")
        self._tracker, self._is_owner = tracker, is_owner
        self.kept = kept.Kept(model_dir, self.name, destination, part)
        self._waiting: collections.deque[_Report] = collections.deque()
        # Guards the queue and the flags below, and wakes the thread.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._state: str | None = None
        self._is_closing = self._is_busy = False
        self._told: set[str] = set()
        self._dropped = self._failed = self._taken = 0

    def start(self, run: types.RunDescription) -> None:
        """Begin to report; earlier reports in the queue come first."""
        if self._thread is None:
            self._thread = threading.Thread(
                # A daemon: Python does not wait at its end for a server that never answers.
                target=self._report_all,
                args=(run,),
                name=f"tracker {self.name}",
                daemon=True,
            )
            self._thread.start()

    def log(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a step, unless they were reported before.

        Args:
          stream: "train", "eval" or "eval_<split>", the beginning of the names.
          step: the global step.
          metrics: {name: value}.
        """
        values = {f"{stream}/{name}": float(value) for name, value in metrics.items()}

        def act(tracked: types.TrackedRun) -> None:
            # In the thread, not at the call: the mark writes a file, which may be slow.
            if self.kept.claim(stream, step):
                part = self.kept.read_part()
                tracked.log(step, {os.path.join(part, name): x for name, x in values.items()})

        self._add_report(_Report(act, "metrics", is_metric=True))

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file or a folder; the tracker reads it later."""

        def act(tracked: types.TrackedRun) -> None:
            tracked.add_file(path, os.path.join(self.kept.read_part(), folder).rstrip("/"))

        self._add_report(_Report(act, path, is_metric=False))

    def add_export(self, path: str, folder: str) -> None:
        """Add an export; if it exceeds the tracker's limit, log a line instead.

        Args:
          path: the folder of the export.
          folder: the folder in the tracked run.
        """
        if not self._limit_mb:
            return
        size = _measure_bytes(path) / 1e6
        if size <= self._limit_mb:
            self.add_file(path, folder)
        else:
            limit = f"{self.name}.export_limit_mb = {self._limit_mb:g}"
            _log.info("Not added to %s: %s of %.1f MB, as %s", self.name, path, size, limit)

    @property
    def is_waiting(self) -> bool:
        """True if a report still waits."""
        return bool(self._waiting)

    def close(self, state: str | None) -> list[str]:
        """End after at most `flush_secs`; return a line on lost reports, or [] if none is lost.

        Args:
          state: the final state of the run; None does not set it.
        """
        if self._thread is None:
            return []
        with self._changed:
            self._state, self._is_closing = state, True
            self._changed.notify()
        # The thread takes what is left in the queue until then.
        self._thread.join(self._flush_secs)
        with self._changed:
            # A report that the thread works on has left the queue, but may not arrive.
            left = sum(one.is_metric for one in self._waiting) + self._is_busy
            files = sum(not one.is_metric for one in self._waiting)
            self._waiting.clear()
        return self._tell_lost(left, files, is_open=self._thread.is_alive())

    def _tell_lost(self, left: int, files: int, is_open: bool) -> list[str]:
        """Return a line that counts the lost reports."""
        within = f"within {self._flush_secs:g} s"
        lost = {
            f"{self._dropped} were dropped, as it was too slow or away": self._dropped,
            f"{self._failed} failed": self._failed,
            f"{left} were not taken {within}": left,
            f"{files} files were not taken {within}": files,
            f"its end was not taken {within}": is_open and not left and not files,
        }
        told = [text for text, count in lost.items() if count]
        if not told:
            return []
        return [f"Tracker {self.name} took {self._taken} reports of this run; {', '.join(told)}."]

    def _add_report(self, report: _Report) -> None:
        with self._changed:
            self._waiting.append(report)
            # Files are never dropped: they are few, and come once.
            if sum(one.is_metric for one in self._waiting) > _WAITING:
                # The oldest: the newest values tell more about a run that goes on.
                self._waiting.remove(next(one for one in self._waiting if one.is_metric))
                self._dropped += 1
            self._changed.notify()

    def _report_all(self, run: types.RunDescription) -> None:
        """Report until the run is closed and the queue is empty."""
        tracked = self._begin_run(run)
        while tracked is not None and (report := self._take_report()):
            try:
                report.act(tracked)
                self._taken += 1
            except Exception as error:  # No error of a client may stop the run.
                self._failed += 1
                self._tell(report.what, error)
            with self._changed:
                self._is_busy = False
        if tracked is not None:
            try:
                tracked.end(self._state)
            except Exception as error:
                self._tell("the end of the run", error)

    def _begin_run(self, run: types.RunDescription) -> types.TrackedRun | None:
        """Begin or go on with the run once the tracker can be reached; None if it never can."""
        while True:
            run_id = self.kept.read_id()
            # Without an id, another process has not begun the run yet: wait for it.
            if self._is_owner or run_id:
                try:
                    tracked = self._tracker.start(dataclasses.replace(run, run_id=run_id))
                    _check_started(self._tracker, tracked)
                    if self._is_owner:
                        self.kept.write_id(tracked.run_id)
                    return tracked
                except Exception as error:
                    self._tell("the start of the run", error)
            # At the end of a run, a tracker out of reach gets no further attempt.
            if self._is_closing:
                return None
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, _AGAIN_SECS)

    def _take_report(self) -> _Report | None:
        """Return the next report; None if the run is closed and the queue is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            # Set under the same lock as the queue, so that `close` counts each report once.
            self._is_busy = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None

    def _tell(self, what: str, error: Exception) -> None:
        """Log an error, once for each kind of error."""
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            line = checks.UserError(f"{kind}: {error}")  # It shortens the text to one line.
            _log.warning(
                "Warning: tracker %s failed at %s, training goes on: %s", self.name, what, line
            )


class Reporters:
    """All trackers of one process; without any, every call does nothing.

    Args:
      trackers: the settings of each.
      model_dir: the folder of the run.
      is_owner: True if this process begins and ends the run.
      part: the place of this part in a run of several parts.
    """

    def __init__(
        self,
        trackers: Sequence[types.Tracker],
        model_dir: str,
        is_owner: bool = True,
        part: types.RunPart | None = None,
    ):
        self._model_dir = model_dir
        self._all = [Reporter(tracker, model_dir, is_owner, part) for tracker in trackers]

    def __bool__(self) -> bool:
        return bool(self._all)

    def prepare(self, is_new: bool) -> None:
        """Forget the ids of an earlier run in this folder, if this is a new run."""
        for one in self._all:
            other = one.kept.tell_other()
            # A copied folder brings the id of another run, which it must not go on with.
            if is_new or other:
                one.kept.forget()
            if other and not is_new:
                line = "Tracker %s: the earlier run in this folder belongs to %s; a new one begins"
                _log.info(line, one.name, other)

    def start(self, run: types.RunDescription) -> None:
        """Begin to report."""
        for one in self._all:
            one.start(run)

    def log(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a step, unless they were reported before."""
        for one in self._all:
            one.log(stream, step, metrics)

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file if it exists."""
        if self._all and tf.io.gfile.exists(path):
            for one in self._all:
                one.add_file(path, folder)

    def add_export(self, path: str, folder: str) -> None:
        """Add an export, unless it exceeds the limit of a tracker."""
        for one in self._all:
            one.add_export(path, folder)

    @property
    def are_waiting(self) -> bool:
        """True if a report still waits."""
        return any(one.is_waiting for one in self._all)

    def close(self, state: str | None) -> list[str]:
        """End all trackers in parallel; return a line for each that lost reports."""
        threads = []
        lines: list[list[str]] = [[] for _ in self._all]

        def end(number: int) -> None:
            lines[number] = self._all[number].close(state)

        for number in range(len(self._all)):
            # In parallel, a slow tracker does not take the time of the others.
            threads.append(threading.Thread(target=end, args=(number,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return [line for own in lines for line in own]


def _check_started(tracker: types.Tracker, tracked: Any) -> None:
    """Fail unless a tracker's `start` returned a `TrackedRun` with an id."""
    where, rule = f"{type(tracker).__name__}.start", "return a types.TrackedRun"
    lacking = [name for name in ("run_id", "log", "add_file", "end") if not hasattr(tracked, name)]
    checks.require(not lacking, where, f"{rule}, with {', '.join(lacking)}", tracked)
    checks.is_a(where, tracked.run_id, str, f"{rule}, whose run_id is a text")


def _measure_bytes(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if not tf.io.gfile.isdir(path):
        return tf.io.gfile.stat(path).length
    return sum(
        tf.io.gfile.stat(os.path.join(folder, file)).length
        for folder, _, files in tf.io.gfile.walk(path)
        for file in files
    )
