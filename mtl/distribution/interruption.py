"""Stops a run after the current step when a signal arrives, so that the run can resume later.

stop = interruption.Interruption()
with stop.handle_signals():
    ...                      # after every step: if stop.requested: save, then stop.leave("saved")

A scheduler that ends a process sends SIGTERM, and some seconds later SIGKILL. The first SIGTERM or
SIGINT lets the current step finish; a second signal ends the process at once. The exit code is 128
plus the number of the signal, 143 or 130. The exit codes 143 and 130 are not failures: the same
command continues the run.
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
"""The exit code of a process that was stopped without an error, and can be started again."""


class Interruption:
    """Records a request to stop this process.

    Attributes:
      signal: the number of the signal that requested the stop; None if there was no request.
    """

    def __init__(self):
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def request(self, number: int, frame: object = None) -> None:
        """Record a request to stop; Python calls this method when the process gets a signal.

        Args:
          number: the number of the signal that the process has received.
          frame: the interrupted frame, which Python passes to every handler; unused.
        """
        self.signal = number
        # Restore the default handlers, so that a second signal ends the process at once.
        for second in _SIGNALS:
            signal.signal(second, signal.SIG_DFL)

    def leave(self, what: str) -> NoReturn:
        """End the process with an exit code that means "start again"; call this after saving.

        Args:
          what: a text about the state of the run, for the log, such as "at step 5, which is saved".

        Raises:
          SystemExit: always.
        """
        number = self.signal or signal.SIGTERM  # Another process may have got the signal.
        _log.info("Stopped by %s %s. Start again to go on.", signal.Signals(number).name, what)
        raise SystemExit(128 + number)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle signals in a `with` block, if the block runs in the main thread."""
        # Python can set handlers only in the main thread.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.request) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
