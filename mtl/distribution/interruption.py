"""Stops a run between two steps after a signal, so that it can go on later.

stop = interruption.Interruption()
with stop.handle_signals():
    ...                      # after every step: if stop.requested: save, then stop.leave("saved")

A scheduler that ends a process sends SIGTERM, and some seconds later SIGKILL. The first SIGTERM or
SIGINT lets the current step finish; a second signal ends the process at once. The exit code is 128
plus the number of the signal, 143 or 130. It does not mean a failure: the same command continues
the run.
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
"""The exit code of a process that ends without an error, and that a new start continues."""


class Interruption:
    """Records a request to stop this process.

    Attributes:
      signal: the number of the signal that requests it; None if there was no request.
    """

    def __init__(self):
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def request(self, number: int, frame: object = None) -> None:
        """Record a request to stop; a handler of signals."""
        self.signal = number
        # The system's default lets a second signal end the process at once.
        for second in _SIGNALS:
            signal.signal(second, signal.SIG_DFL)

    def leave(self, what: str) -> NoReturn:
        """End the process with the exit code "start again", after everything is saved.

        Args:
          what: a text about the state of the run, for the log, such as "at step 5, which is saved".

        Raises:
          SystemExit: always.
        """
        number = self.signal or signal.SIGTERM  # The request may have gone to another process.
        _log.info("Stopped by %s %s. Start again to go on.", signal.Signals(number).name, what)
        raise SystemExit(128 + number)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle signals inside this context, if it is entered in the main thread."""
        # In other threads, Python cannot set handlers, and raises a ValueError.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.request) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
