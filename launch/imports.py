"""Imports that fail or are interrupted, which Python would show as a traceback.

imports.guard()                               # as a launcher starts, before TensorFlow is imported
with imports.finished():                      # while its main runs
    ...
imports.problem(error)                        # "importing 'pyarrow' failed (...): ...", or None
"""

import contextlib
import os
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

_OWN = ("__main__", "launch", "mtl")
_INTERRUPTED = 130
_HELP = "`python -m launch.doctor` looks at what is installed."


def guard() -> None:
    """End the process in one line, or none after Ctrl-C, until `finished`."""
    # In the background of a script it is ignored, and shall stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    sys.excepthook = _tell


@contextlib.contextmanager
def finished() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt again within it."""
    sys.excepthook = sys.__excepthook__
    guarded = signal.getsignal(signal.SIGINT) is _end
    try:
        if guarded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if guarded:  # While Python ends.
            signal.signal(signal.SIGINT, _end)


def problem(error: BaseException) -> str | None:
    """Return the package that failed to be imported, where and why; None for any other error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    running = [frame for frame, _ in frames if frame.f_code.co_name == "<module>"]
    names = [frame.f_globals.get("__name__", "") for frame in running]
    imported = [name for name in names if name and name != "__main__"]
    if not imported and not isinstance(error, ImportError):
        return None
    foreign = [name.partition(".")[0] for name in imported if name.partition(".")[0] not in _OWN]
    absent = getattr(error, "name", None)
    module = next(iter([*foreign, *filter(None, [absent]), *reversed(imported)]), "a package")
    return f"{failure(module, error)} {_HELP}"


def failure(module: str, error: BaseException) -> str:
    """Return what went wrong while a module was imported, and in which line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    place = f" ({own[-1].filename} line {own[-1].lineno})" if len(own) > 1 else ""
    what = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        place, what = f" ({error.filename} line {error.lineno})", error.msg
    if isinstance(error, SystemExit):
        what = f"sys.exit({error.code!r}) ended Python"
    return f"importing {module!r} failed{place}: {type(error).__name__}: {what}."


def _end(number: int, frame: types.FrameType | None) -> None:
    del number, frame
    os._exit(_INTERRUPTED)  # Nothing is written yet, or all is.


def _tell(kind: type, error: BaseException, trace: Any) -> None:
    said = problem(error.with_traceback(trace))
    if said is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"Error: {said}", file=sys.stderr, flush=True)
    os._exit(2)
