"""Imports that fail or are interrupted, which Python would show as a traceback.

imports.guard()                               # as a launcher starts
imports.quieten("tensorflow")                 # whoever imports it first, sees nothing of its start
with imports.finished():                      # while its main runs
    ...
imports.problem(error)                        # "importing 'pyarrow' failed (...): ...", or None
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

from mtl import versions

_OWN = ("__main__", "launch", "mtl")
_INTERRUPTED = 130
_is_launcher = False
_HELP = "`python -m launch.doctor` looks at what is installed."


def guard() -> None:
    """End the process in one line, or none after Ctrl-C, until `finished`.

    Whenever it ends, no garbage is collected any more.
    """
    global _is_launcher
    _is_launcher = True
    # What is left at the end, such as graphs, has no need to be taken apart, which takes a second.
    atexit.register(gc.freeze)
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


def silence_warnings() -> None:
    """Ignore Python's warnings of what libraries do, which no user of `mtl` can change."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")


def prepare_tensorflow() -> None:
    """Have TensorFlow say nothing while it is imported, and turn it to Keras 2 in time.

    Some notices come before it reads its log level, which `mtl` sets. If it is told later, as
    `mtl.compat` does, it has imported Keras 3 by then, for seconds.
    """
    quieten("tensorflow")
    if "tensorflow" not in sys.modules and versions.turns_to_keras_2():
        os.environ[versions.KERAS_SWITCH] = "1"


def quieten(package: str) -> None:
    """Hold back what a package writes to standard error while it is imported, unless it fails.

    Ctrl-C ends a launcher meanwhile: C++ would turn KeyboardInterrupt into an error of its own.
    """
    if package not in sys.modules:
        sys.meta_path.insert(0, _Quiet(package))


class _Quiet:
    """Finds one package, as Python would do without it."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._package:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        found = next((spec for spec in specs if spec is not None), None)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def execute_quietly(module: types.ModuleType) -> None:
                with _ended_by_interrupts(), _stderr_held_back(), _uncollected():
                    execute(module)

            found.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return found


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Have Ctrl-C end a launcher within it, without a word."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (_is_launcher and is_main and before is signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Keep what C++ writes to standard error, and show it only if the block fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Hide from a launcher's garbage collector, for good, what is imported within it.

    Modules stay anyway, and to look through their million objects takes a second of a start.
    """
    if not _is_launcher:  # Other processes may hold what has to be collected.
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def problem(error: BaseException) -> str | None:
    """Return the package that failed to be imported, where and why; None for any other error."""
    imported = _list_imported(error)
    if not imported and not isinstance(error, ImportError):
        return None
    foreign = [name.partition(".")[0] for name in imported if name.partition(".")[0] not in _OWN]
    absent = getattr(error, "name", None)
    module = next(iter([*foreign, *filter(None, [absent]), *reversed(imported)]), "a package")
    return f"{failure(module, error)} {_HELP}"


def _list_imported(error: BaseException) -> list[str]:
    """Return the modules whose import was going on, the outermost first."""
    frames = list(traceback.walk_tb(error.__traceback__))
    running = [frame for frame, _ in frames if frame.f_code.co_name == "<module>"]
    names = [frame.f_globals.get("__name__", "") for frame in running]
    return [name for name in names if name and name != "__main__"]


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
