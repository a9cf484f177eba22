"""Limits the time of a function call, even if the function waits for a server that hangs.

text = deadlines.run_within(10.0, connection.read, connection.close)
"""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run_within(secs: float, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Call a function with a time limit; return its result or raise its exception.

    The timeout of a socket limits the time of each read, but not the total time of all reads, nor
    the time of the DNS look-up. The function `work` therefore runs in a separate thread, which is
    abandoned when the time is over.

    Args:
      secs: the time limit in seconds.
      work: the function to run.
      stop: a function that is called when the time is over, so that the thread can end.

    Raises:
      TimeoutError: the time is over.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    # Use a daemon thread, so that the process can end while the thread hangs.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(min(secs, threading.TIMEOUT_MAX))
    # If the thread ends just after the time limit, its result still counts.
    if not results and not errors:
        stop()
        raise TimeoutError("timed out")
    if errors:
        raise errors[0]
    return results[0]
