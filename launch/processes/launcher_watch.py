"""Stops the processes of launch.cluster when launch.cluster ends, even if SIGKILL ends it.

subprocess.Popen(..., env={**os.environ, **launcher_watch.environment()})  # in launch.cluster
launcher_watch.start()                                                     # in the process
"""

import os
import signal
import threading
import time

_VARIABLE = "MTL_LAUNCHER"
_INTERVAL_SECS = 0.5


def environment() -> dict[str, str]:
    """Return the environment variable that lets new processes watch this process."""
    return {_VARIABLE: str(os.getpid())}


def start() -> None:
    """Watch launch.cluster from a thread, if it has started this process.

    When launch.cluster ends, the thread sends SIGTERM to this process, which then saves its last
    step. The kernel could also send a signal (PR_SET_PDEATHSIG), but it sends a signal for each
    thread of launch.cluster, and the second signal would end this process before it has saved.
    """
    launcher = os.environ.get(_VARIABLE)
    if launcher:
        # Use a daemon thread, so that this process can end before launch.cluster.
        threading.Thread(target=_watch_launcher, args=(int(launcher),), daemon=True).start()


def _watch_launcher(launcher: int) -> None:
    # When launch.cluster ends, this process gets another parent.
    while os.getppid() == launcher:
        time.sleep(_INTERVAL_SECS)
    os.kill(os.getpid(), signal.SIGTERM)
