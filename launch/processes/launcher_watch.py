"""Stops a member of a cluster when its launcher has ended, even by SIGKILL.

subprocess.Popen(..., env={**os.environ, **launcher_watch.environment()})  # in the launcher
launcher_watch.start()                                                     # in the member
"""

import os
import signal
import threading
import time

_VARIABLE = "MTL_LAUNCHER"
_INTERVAL_SECS = 0.5


def environment() -> dict[str, str]:
    """Return the environment variable that names this process as the launcher."""
    return {_VARIABLE: str(os.getpid())}


def start() -> None:
    """Watch the launcher from a thread; do nothing in a process that no launcher started.

    The member saves its last step, as at any SIGTERM. The kernel could send this signal
    (PR_SET_PDEATHSIG), but it sends one for each thread of the launcher. The second signal would
    end a member before it has saved.
    """
    launcher = os.environ.get(_VARIABLE)
    if launcher:
        # A daemon, so that the member may end before its launcher.
        threading.Thread(target=_watch_launcher, args=(int(launcher),), daemon=True).start()


def _watch_launcher(launcher: int) -> None:
    # An orphan gets another parent.
    while os.getppid() == launcher:
        time.sleep(_INTERVAL_SECS)
    os.kill(os.getpid(), signal.SIGTERM)
