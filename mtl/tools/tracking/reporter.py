"""Passes the reports of a run to its trackers, in a thread for each tracker.

Training steps do not wait for trackers.

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

# The largest number of metric reports in a queue. With a report every 100 steps, the queue covers
# 100,000 steps.
_WAITING = 1000
# The number of seconds between two attempts to begin a run.
_AGAIN_SECS = 10.0


class _Report(NamedTuple):
    """A report to a tracker.

    Attributes:
      act: a function that sends the report to the tracked run.
      what: the name of the report in log messages.
      is_metric: True if a full queue may drop the report.
    """

    act: Callable[[types.TrackedRun], None]
    what: str
    is_metric: bool


class Reporter:
    """Reports to one tracker, in a separate thread.

    Each kind of error of the tracker is logged once. If the tracker is too slow or cannot be
    reached, the oldest metrics are dropped.

    Args:
      tracker: the settings of the tracker.
      model_dir: the folder of the run.
      is_owner: True if this process begins and ends the run. Other processes wait until the owner
        has stored the id of the run.
      part: the part of a run that consists of several parts; None for a whole run.
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
        # A condition variable guards the queue and the flags below, and wakes the thread.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._state: str | None = None
        self._is_closing = self._is_busy = False
        self._logged_kinds: set[str] = set()
        self._num_dropped = self._num_failed = self._num_sent = 0

    def start(self, run: types.RunDescription) -> None:
        """Start the thread, which first sends the reports that already wait in the queue."""
        if self._thread is None:
            self._thread = threading.Thread(
                # Python does not wait for a daemon thread at its end: the server may never answer.
                target=self._report_all,
                args=(run,),
                name=f"tracker {self.name}",
                daemon=True,
            )
            self._thread.start()

    def log(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a step, unless the step is already reported.

        Args:
          stream: "train", "eval" or "eval_<split>"; names of metrics begin with the stream.
          step: the global step.
          metrics: {name: value}.
        """
        values = {f"{stream}/{name}": float(value) for name, value in metrics.items()}

        def act(tracked: types.TrackedRun) -> None:
            # `claim` writes a file, which may take time, so call it in the tracker's thread.
            if self.record.claim(stream, step):
                part = self.record.read_part()
                tracked.log(step, {os.path.join(part, name): x for name, x in values.items()})

        self._add_report(_Report(act, "metrics", is_metric=True))

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file or a folder to the tracked run; the tracker reads it later.

        Args:
          path: the path of the file or folder.
          folder: the folder in the tracked run; "" for its top folder.
        """

        def act(tracked: types.TrackedRun) -> None:
            tracked.add_file(path, os.path.join(self.record.read_part(), folder).rstrip("/"))

        self._add_report(_Report(act, path, is_metric=False))

    def add_export(self, path: str, folder: str) -> None:
        """Add an export to the tracked run; log a line instead if the export exceeds the limit.

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
        """True if a report waits in a queue."""
        return bool(self._waiting)

    def close(self, state: str | None) -> list[str]:
        """End the tracked run, and wait at most `flush_secs` for unfinished reports.

        Args:
          state: the final state of the run; None to leave the state unchanged.

        Returns:
          A list with a line about lost reports; [] if no report is lost.
        """
        if self._thread is None:
            return []
        with self._changed:
            self._state, self._is_closing = state, True
            self._changed.notify()
        # While `join` waits, the thread sends the reports in the queue.
        self._thread.join(self._flush_secs)
        with self._changed:
            # The report that the thread is sending has left the queue, but may not arrive.
            metrics = sum(report.is_metric for report in self._waiting) + self._is_busy
            files = sum(not report.is_metric for report in self._waiting)
            self._waiting.clear()
        return self._count_losses(metrics, files, is_open=self._thread.is_alive())

    def _count_losses(self, metrics: int, files: int, is_open: bool) -> list[str]:
        """Return a line that counts the lost reports; [] if no report is lost."""
        within = f"within {self._flush_secs:g} s"
        reason = "as the tracker was too slow or away"
        counts = {
            f"{self._num_dropped} were dropped, {reason}": self._num_dropped,
            f"{self._num_failed} failed": self._num_failed,
            f"{metrics} did not arrive {within}": metrics,
            f"{files} files did not arrive {within}": files,
            f"the end of the run did not arrive {within}": is_open and not metrics and not files,
        }
        texts = ", ".join(text for text, count in counts.items() if count)
        if not texts:
            return []
        return [f"Tracker {self.name} got {self._num_sent} reports of this run; {texts}."]

    def _add_report(self, report: _Report) -> None:
        with self._changed:
            self._waiting.append(report)
            # Files are never dropped, because they are few and are added only once.
            if sum(waiting.is_metric for waiting in self._waiting) > _WAITING:
                # Drop the oldest metrics, because the newest values say more about a run.
                self._waiting.remove(next(w for w in self._waiting if w.is_metric))
                self._num_dropped += 1
            self._changed.notify()

    def _report_all(self, run: types.RunDescription) -> None:
        """Send reports until `close` is called and the queue is empty."""
        tracked = self._begin_run(run)
        while tracked is not None and (report := self._take_report()):
            try:
                report.act(tracked)
                self._num_sent += 1
            except Exception as error:  # An error of a tracker must not stop the training.
                self._num_failed += 1
                self._log_once(report.what, error)
            with self._changed:
                self._is_busy = False
        if tracked is not None:
            try:
                tracked.end(self._state)
            except Exception as error:
                self._log_once("the end of the run", error)

    def _begin_run(self, run: types.RunDescription) -> types.TrackedRun | None:
        """Begin or continue the run when the tracker can be reached; return None if it cannot."""
        while True:
            run_id = self.record.read_id()
            # If the run has no id yet, only the process that owns the record begins the run; other
            # processes wait for the owner.
            if self._is_owner or run_id:
                try:
                    tracked = self._tracker.start(dataclasses.replace(run, run_id=run_id))
                    _check_started(self._tracker, tracked)
                    if self._is_owner:
                        self.record.write_id(tracked.run_id)
                    return tracked
                except Exception as error:
                    self._log_once("the start of the run", error)
            # Do not try again after `close` is called.
            if self._is_closing:
                return None
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, _AGAIN_SECS)

    def _take_report(self) -> _Report | None:
        """Wait for a report, and return it; None if `close` is called and the queue is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            # Change `_is_busy` under the same lock as the queue, so that `close` counts each report
            # once.
            self._is_busy = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None

    def _log_once(self, what: str, error: Exception) -> None:
        """Log an error of the tracker, once for each class of exception."""
        kind = type(error).__name__
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            line = checks.UserError(f"{kind}: {error}")  # A UserError puts any text into one line.
            _log.warning(
                "Warning: tracker %s failed at %s, training goes on: %s", self.name, what, line
            )


class Reporters:
    """Reports to all trackers of a process. Without trackers, every method does nothing.

    Args:
      trackers: the settings of the trackers.
      model_dir: the folder of the run.
      is_owner: True if this process begins and ends the run.
      part: the part of a run that consists of several parts; None for a whole run.
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
        """Forget the ids of an earlier run in the folder if a new run begins.

        Args:
          is_new: True if a new run begins; False if a run continues, so that only ids that belong
            to another folder or destination are forgotten.
        """
        for reporter in self._all:
            other = reporter.record.tell_other()
            # A copy of a folder holds the id of the original run, which the copy must not continue.
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
        """Report the metrics of a step, unless the step is already reported.

        Args:
          stream: "train", "eval" or "eval_<split>"; names of metrics begin with the stream.
          step: the global step.
          metrics: {name: value}.
        """
        for reporter in self._all:
            reporter.log(stream, step, metrics)

    def add_file(self, path: str, folder: str = "") -> None:
        """Add a file to the tracked runs if the file exists.

        Args:
          path: the path of the file or folder.
          folder: the folder in the tracked runs; "" for their top folder.
        """
        if self._all and tf.io.gfile.exists(path):
            for reporter in self._all:
                reporter.add_file(path, folder)

    def add_export(self, path: str, folder: str) -> None:
        """Add an export to the tracked runs; skip trackers whose limit the export exceeds."""
        for reporter in self._all:
            reporter.add_export(path, folder)

    @property
    def are_waiting(self) -> bool:
        """True if a report waits in a queue."""
        return any(reporter.is_waiting for reporter in self._all)

    def close(self, state: str | None) -> list[str]:
        """End the tracked runs in parallel.

        Args:
          state: the final state of the run; None to leave the state unchanged.

        Returns:
          A line for each tracker that lost reports; [] if no report is lost.
        """
        threads = []
        lines: list[list[str]] = [[] for _ in self._all]

        def end(number: int) -> None:
            lines[number] = self._all[number].close(state)

        for number in range(len(self._all)):
            # Use threads, so that a slow tracker does not delay other trackers.
            threads.append(threading.Thread(target=end, args=(number,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return [line for tracker_lines in lines for line in tracker_lines]


def _check_started(tracker: types.Tracker, tracked: Any) -> None:
    """Fail unless `start` of a tracker has returned a `TrackedRun` with an id."""
    where, rule = f"{type(tracker).__name__}.start", "return a types.TrackedRun"
    missing_names = [
        name for name in ("run_id", "log", "add_file", "end") if not hasattr(tracked, name)
    ]
    checks.require(not missing_names, where, f"{rule}, with {', '.join(missing_names)}", tracked)
    checks.is_a(where, tracked.run_id, str, f"{rule}, whose run_id is a text")


def _measure_bytes(path: str) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    if not tf.io.gfile.isdir(path):
        return tf.io.gfile.stat(path).length
    return sum(
        tf.io.gfile.stat(os.path.join(folder, file)).length
        for folder, _, files in tf.io.gfile.walk(path)
        for file in files
    )
