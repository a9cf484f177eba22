"""Stops a run between two steps after a signal, so that it can go on later.

stop = interruption.Interruption()
with stop.handle_signals():
    ...                      # after every step: if stop.requested: save, then stop.leave("saved")

A scheduler that ends a process sends SIGTERM, and some seconds later SIGKILL. The first SIGTERM or
SIGINT lets the current step finish; a second one ends the process at once. The exit code is 128
plus the signal's number, 143 or 130. It is not a failure: start again to go on.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

START_AGAIN = 128 + signal.SIGTERM
"""The exit code of a process that ends without an error and can go on later."""


class Interruption:
    """Records whether this process was asked to stop.

    Attributes:
      signal: the number of the signal that asked; None if there was no such signal.
    """

    def __init__(self):
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def request(self, number: int, frame: object = None) -> None:
        """Ask the run to stop; this method handles signals."""
        self.signal = number
        # By the default of the system the second signal ends the process at once.
        for again in _SIGNALS:
            signal.signal(again, signal.SIG_DFL)

    def leave(self, what: str) -> NoReturn:
        """End the process with the exit code "start again", once everything is saved."""
        number = self.signal or signal.SIGTERM  # Another process may have been asked to stop.
        _log.info("Stopped by %s %s. Start again to go on.", signal.Signals(number).name, what)
        raise SystemExit(128 + number)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle signals inside this context; outside the main thread there are no handlers."""
        # Python sets handlers only in the main thread and raises ValueError elsewhere.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.request) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
