"""Lets the processes of a cluster notice the loss of other processes, by heartbeat files.

with heartbeat.Heartbeat(model_dir, "worker-0", watched=["chief-0"], timeout_secs=60) as beat:
    beat.wait_for("chief-0", "training")
    ...

A process counts as lost if it dies in the `with` block, or leaves the block with an error.
Processes that watch a lost process then print an error and end, too, with the exit code that means
"start again".

TensorFlow itself notices a lost worker late or never, depending on the strategy. Heartbeat files in
the shared folder work with every distribution strategy.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from mtl.deferred import tf
from mtl.distribution import interruption

_log = logging.getLogger(__name__)

_FOLDER = "cluster"
DONE, FAILED, STOPPED = "done", "failed", "was stopped"


class Heartbeat:
    """Writes heartbeats of this process, and ends this process when a watched process is lost.

    The clocks of machines differ, so the age of a heartbeat is counted from the moment at which
    this process sees the file change. Time in which this process was suspended does not count.

    Args:
      model_dir: the folder that all processes share.
      name: the name of this process.
      watched: the names of the processes whose loss ends this process.
      timeout_secs: a process counts as lost after this many seconds without a heartbeat.
      beside: the names of processes whose loss is only logged.
    """

    def __init__(
        self,
        model_dir: str,
        name: str,
        watched: Sequence[str],
        timeout_secs: float,
        beside: Sequence[str] = (),
    ):
        self._folder, self._name = os.path.join(model_dir, _FOLDER), name
        # Write at least ten heartbeats in each timeout, so that a single failed write does no harm.
        self._timeout, self._interval = timeout_secs, min(1.0, timeout_secs / 10)
        self._watched, self._beside = tuple(watched), tuple(beside)
        # The folder may have heartbeats of an earlier run, so only a changed file shows that a
        # process is alive.
        self._signs = {other: self._read(other) for other in (*watched, *beside)}
        self._silent = dict.fromkeys(self._signs, 0.0)
        self._lost: set[str] = set()
        self._fresh: set[str] = set()
        self._own_sign: dict[str, Any] = {"phase": "starting"}
        self._beats, self._writing, self._ended = 0, threading.Lock(), threading.Event()
        # Use a daemon thread, which does not keep the process alive after an error in the main
        # thread.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Heartbeat:
        tf.io.gfile.makedirs(self._folder)
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._ended.set()
        self._thread.join()
        self.publish_phase(DONE if kind is None else STOPPED if kind is SystemExit else FAILED)

    def publish_phase(self, phase: str, **more: Any) -> None:
        """Publish the phase of this process, such as "training", to the other processes.

        Args:
          phase: the name of the phase, for `wait_for` in other processes.
          **more: additional values for the other processes, which JSON can represent.
        """
        sign = {"phase": phase, **more}
        if sign != self._own_sign:
            self._own_sign = sign
            self._write_beat()

    def wait_for(self, other: str, phase: str) -> dict[str, Any]:
        """Wait until process `other` reaches a phase; end this process if `other` is lost.

        Args:
          other: the name of a watched process, such as "chief-0".
          phase: the phase to wait for; `DONE` also ends the wait.

        Returns:
          {"phase": the phase of the other process}, with the additional values that it has
          published.
        """
        while True:
            sign = self._signs[other]
            if other in self._fresh and sign.get("phase") in (phase, DONE):
                return sign
            # The heartbeat thread reads the phase of the process `other`, and ends this process if
            # `other` is lost.
            time.sleep(0.1)

    def read_phase(self, other: str) -> str | None:
        """Return the phase of another process; None before its first heartbeat.

        Args:
          other: the name of a process in `watched` or `beside`, such as "chief-0".
        """
        return self._signs[other].get("phase") if other in self._fresh else None

    def find_stopped(self) -> str | None:
        """Return the first watched process that was asked to stop; None if no process was."""
        return next((other for other in self._watched if self.read_phase(other) == STOPPED), None)

    def end_process(self, phase: str) -> NoReturn:
        """End this process at once, from any thread.

        Args:
          phase: the last phase; `DONE` gives the exit code 0, other phases give the code "start
            again".
        """
        self._ended.set()
        self._thread.join()
        self.publish_phase(phase)
        sys.stdout.flush()
        sys.stderr.flush()
        # Do not call `sys.exit`, which would not end the process from a thread or during a call
        # into TensorFlow.
        os._exit(0 if phase == DONE else interruption.START_AGAIN)

    def _run(self) -> None:
        last_look = time.monotonic()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            # Do not count a long pause, such as a sleep of the machine or a suspension of this
            # process.
            secs, last_look = min(now - last_look, 3 * self._interval), now
            with contextlib.suppress(tf.errors.OpError):  # The next write may succeed.
                self._write_beat()
            for other in self._signs:
                self._look_at(other, secs)

    def _look_at(self, other: str, secs: float) -> None:
        sign = self._read(other)
        self._silent[other] += secs
        if sign != self._signs[other]:
            self._signs[other], self._silent[other] = sign, 0.0
            self._fresh.add(other)
        phase, silent_secs = self.read_phase(other), self._silent[other]
        if other in self._beside:
            self._tell_if_lost(other, phase, silent_secs)
        elif phase == FAILED:
            self._give_up(f"{other} {FAILED}")
        elif silent_secs > self._timeout and phase == STOPPED:
            # During the timeout, this process had time to save a checkpoint.
            self._give_up(f"{other} {STOPPED}")
        elif silent_secs > self._timeout and phase != DONE:
            self._give_up(f"{other} has given no sign of life for {silent_secs:.0f} s")

    def _tell_if_lost(self, other: str, phase: str | None, silent_secs: float) -> None:
        """Log once that a process in `beside` is lost; log again only after it came back."""
        has_ended = phase in (FAILED, STOPPED)
        if not has_ended and (silent_secs <= self._timeout or phase == DONE):
            self._lost.discard(other)
        elif other not in self._lost:
            self._lost.add(other)
            state = phase if has_ended else f"has given no sign of life for {silent_secs:.0f} s"
            message = "Warning: %s %s: %s goes on without it. Start it again."
            _log.warning(message, other, state, self._name)

    def _give_up(self, reason: str) -> NoReturn:
        fix = "Start all processes again to go on."
        print(f"Error: {reason}: {self._name} ends. {fix}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(interruption.START_AGAIN)

    def _write_beat(self) -> None:
        path = os.path.join(self._folder, self._name)
        with self._writing:
            # The counter makes each heartbeat differ from the previous heartbeat of the same phase.
            self._beats += 1
            # Do not name the file *.partial: the chief removes such files at its start, while other
            # processes may already run.
            with tf.io.gfile.GFile(f"{path}.next", "w") as file:
                json.dump({**self._own_sign, "process": os.getpid(), "beat": self._beats}, file)
            tf.io.gfile.rename(f"{path}.next", path, overwrite=True)

    def _read(self, other: str) -> dict[str, Any]:
        path = os.path.join(self._folder, other)
        try:
            with tf.io.gfile.GFile(path) as file:
                sign = json.load(file)
        except (tf.errors.OpError, ValueError, RecursionError):
            return {}
        return sign if isinstance(sign, dict) else {}
