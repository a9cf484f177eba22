"""Passes the reports of a run to its trackers, in a thread for each, so that steps do not wait.

reporters = reporter.Reporters([mlflow], "runs/digits")
reporters.start(description)
reporters.log("train", 100, {"loss": 0.5})                  # returns at once
lines = reporters.close(types.FINISHED)                     # waits at most `flush_secs`
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
from mtl.tools.tracking import records

_log = logging.getLogger(__name__)

# The most reports of metrics in a queue. With a report every 100 steps, it covers 100,000 steps.
_WAITING = 1000
# The time between two attempts to begin a run, in seconds.
_AGAIN_SECS = 10.0


class _Report(NamedTuple):
    """A report: its action, its name for messages, and True if a full queue may drop it."""

    act: Callable[[types.TrackedRun], None]
    what: str
    is_metric: bool


class Reporter:
    """One tracker of one process.

    `start` begins the thread. Each kind of error of the tracker is logged once. If the tracker is
    too slow or cannot be reached, the oldest metrics are dropped.

    Args:
      tracker: the settings of the tracker.
      model_dir: the folder of the run.
      is_owner: True if this process begins and ends the run; other processes wait for the id.
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
        self.record = records.Record(model_dir, self.name, destination, part)
        self._waiting: collections.deque[_Report] = collections.deque()
        # Guards the queue and the flags below, and wakes the thread.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._state: str | None = None
        self._is_closing = self._is_busy = False
        self._logged_kinds: set[str] = set()
        self._num_dropped = self._num_failed = self._num_taken = 0

    def start(self, run: types.RunDescription) -> None:
        """Begin to report; earlier reports in the queue come first."""
        if self._thread is None:
            self._thread = threading.Thread(
                # At its end, Python does not wait for a daemon, whose server may never answer.
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
            # `claim` writes a file, which may be slow, so it runs in the thread.
            if self.record.claim(stream, step):
                part = self.record.read_part()
                tracked.log(step, {os.path.join(part, name): x for name, x in values.items()})

        self._add_report(_Report(act, "metrics", is_metric=True))

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file or a folder; the tracker reads it later."""

        def act(tracked: types.TrackedRun) -> None:
            tracked.add_file(path, os.path.join(self.record.read_part(), folder).rstrip("/"))

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
        """End the thread after at most `flush_secs`.

        Args:
          state: the final state of the run; None does not set it.

        Returns:
          A line about lost reports; [] if no report is lost.
        """
        if self._thread is None:
            return []
        with self._changed:
            self._state, self._is_closing = state, True
            self._changed.notify()
        # Until then, the thread works on the queue.
        self._thread.join(self._flush_secs)
        with self._changed:
            # A report that the thread works on has left the queue, but may not arrive.
            metrics = sum(report.is_metric for report in self._waiting) + self._is_busy
            files = sum(not report.is_metric for report in self._waiting)
            self._waiting.clear()
        return self._tell_lost(metrics, files, is_open=self._thread.is_alive())

    def _tell_lost(self, metrics: int, files: int, is_open: bool) -> list[str]:
        """Return a line that counts the lost reports; [] if no report is lost."""
        within = f"within {self._flush_secs:g} s"
        counts = {
            f"{self._num_dropped} were dropped, as it was too slow or away": self._num_dropped,
            f"{self._num_failed} failed": self._num_failed,
            f"{metrics} were not taken {within}": metrics,
            f"{files} files were not taken {within}": files,
            f"its end was not taken {within}": is_open and not metrics and not files,
        }
        texts = ", ".join(text for text, count in counts.items() if count)
        if not texts:
            return []
        return [f"Tracker {self.name} took {self._num_taken} reports of this run; {texts}."]

    def _add_report(self, report: _Report) -> None:
        with self._changed:
            self._waiting.append(report)
            # Files are never dropped, as they are few and come only once.
            if sum(waiting.is_metric for waiting in self._waiting) > _WAITING:
                # Drop the oldest metrics, as the newest values say more about a run.
                self._waiting.remove(next(w for w in self._waiting if w.is_metric))
                self._num_dropped += 1
            self._changed.notify()

    def _report_all(self, run: types.RunDescription) -> None:
        """Report until the run is closed and the queue is empty."""
        tracked = self._begin_run(run)
        while tracked is not None and (report := self._take_report()):
            try:
                report.act(tracked)
                self._num_taken += 1
            except Exception as error:  # No error of a client may stop the run.
                self._num_failed += 1
                self._tell(report.what, error)
            with self._changed:
                self._is_busy = False
        if tracked is not None:
            try:
                tracked.end(self._state)
            except Exception as error:
                self._tell("the end of the run", error)

    def _begin_run(self, run: types.RunDescription) -> types.TrackedRun | None:
        """Begin or continue the run when the tracker can be reached; None if it never can."""
        while True:
            run_id = self.record.read_id()
            # Without an id, wait until another process has begun the run.
            if self._is_owner or run_id:
                try:
                    tracked = self._tracker.start(dataclasses.replace(run, run_id=run_id))
                    _check_started(self._tracker, tracked)
                    if self._is_owner:
                        self.record.write_id(tracked.run_id)
                    return tracked
                except Exception as error:
                    self._tell("the start of the run", error)
            # After the end of the run, do not try again.
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
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            line = checks.UserError(f"{kind}: {error}")  # A UserError has a single line.
            _log.warning(
                "Warning: tracker %s failed at %s, training goes on: %s", self.name, what, line
            )


class Reporters:
    """All trackers of one process; without trackers, every call does nothing.

    Args:
      trackers: the settings of the trackers.
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
        for reporter in self._all:
            other = reporter.record.tell_other()
            # A copied folder holds the id of another run, which this run must not continue.
            if is_new or other:
                reporter.record.forget()
            if other and not is_new:
                line = "Tracker %s: the earlier run in this folder belongs to %s; a new run begins"
                _log.info(line, reporter.name, other)

    def start(self, run: types.RunDescription) -> None:
        """Begin to report."""
        for reporter in self._all:
            reporter.start(run)

    def log(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a step, unless they were reported before."""
        for reporter in self._all:
            reporter.log(stream, step, metrics)

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file if it exists."""
        if self._all and tf.io.gfile.exists(path):
            for reporter in self._all:
                reporter.add_file(path, folder)

    def add_export(self, path: str, folder: str) -> None:
        """Add an export, unless it exceeds the limit of a tracker."""
        for reporter in self._all:
            reporter.add_export(path, folder)

    @property
    def are_waiting(self) -> bool:
        """True if a report still waits."""
        return any(reporter.is_waiting for reporter in self._all)

    def close(self, state: str | None) -> list[str]:
        """End all trackers in parallel; return a line for each that lost reports."""
        threads = []
        lines: list[list[str]] = [[] for _ in self._all]

        def end(number: int) -> None:
            lines[number] = self._all[number].close(state)

        for number in range(len(self._all)):
            # In parallel, a slow tracker does not delay other trackers.
            threads.append(threading.Thread(target=end, args=(number,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return [line for tracker_lines in lines for line in tracker_lines]


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
