"""A call that ends in time, whatever the other side does.

text = deadlines.run_within(10.0, connection.read, connection.close)
"""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run_within(secs: float, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Return what `work` returns or raises.

    The timeout of a socket bounds each of its reads alone, and none bounds the look-up of a name.
    So `work` has a thread of its own, which is left behind when time is up.

    Args:
      secs: how long to wait.
      work: what is done.
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

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(min(secs, threading.TIMEOUT_MAX))
    # A thread that has ended meanwhile has its say.
    if not results and not errors:
        stop()
        raise TimeoutError("timed out")
    if errors:
        raise errors[0]
    return results[0]
