"""Calls with a time limit, even if the other side does not answer.

text = deadlines.run_within(10.0, connection.read, connection.close)
"""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run_within(secs: float, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Return what `work` returns or raises.

    The timeout of a socket limits each read, but not their sum, and not the look-up of a name.
    So `work` runs in a separate thread, which is abandoned when time is up.

    Args:
      secs: the longest wait, in seconds.
      work: the function to run.
      stop: called when time is up, to let the thread end.

    Raises:
      TimeoutError: time is up.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    # As a daemon, a thread that hangs does not keep the process from ending.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(min(secs, threading.TIMEOUT_MAX))
    # The result of a thread that has just ended still counts.
    if not results and not errors:
        stop()
        raise TimeoutError("timed out")
    if errors:
        raise errors[0]
    return results[0]
