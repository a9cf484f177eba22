"""Handles failed or interrupted imports, which Python would show as a traceback.

imports.guard()                               # as a launcher starts
imports.quieten("tensorflow")                 # its first import then prints nothing
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
    """Make errors end the process with one line, and Ctrl-C without any, until `finished`.

    Also skips the garbage collection when the process ends.
    """
    global _is_launcher
    _is_launcher = True
    # Collecting the objects that are left at the end, such as graphs, would take a second.
    atexit.register(gc.freeze)
    # A script in the background ignores this signal, which must stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_process)
    sys.excepthook = _tell_error


@contextlib.contextmanager
def finished() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt again inside this context."""
    sys.excepthook = sys.__excepthook__
    guarded = signal.getsignal(signal.SIGINT) is _end_process
    try:
        if guarded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if guarded:  # Python may end now.
            signal.signal(signal.SIGINT, _end_process)


def silence_warnings() -> None:
    """Ignore Python's warnings about libraries, because users of `mtl` cannot fix these."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")


def prepare_tensorflow() -> None:
    """Silence TensorFlow during its import, and make it use Keras 2.

    TensorFlow prints some notices before it reads the log level that `mtl` sets. `mtl.compat` would
    choose Keras 2 too late: TensorFlow has then spent seconds on the import of Keras 3.
    """
    quieten("tensorflow")
    if "tensorflow" not in sys.modules and versions.turns_to_keras_2():
        os.environ[versions.KERAS_SWITCH] = "1"


def quieten(package: str) -> None:
    """Hold back a package's output to standard error during its import, unless the import fails.

    Ctrl-C ends a launcher meanwhile: C++ would turn KeyboardInterrupt into another error.
    """
    if package not in sys.modules:
        # Before all others, as the first finder that knows a package loads it.
        sys.meta_path.insert(0, _Quiet(package))


class _Quiet:
    """Finds one package in the same way as Python."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._package:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        # Lazily, so that the first match ends the search, as in Python.
        specs = (finder.find_spec(name, path, target) for finder in others)
        found = next((spec for spec in specs if spec is not None), None)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def execute_quietly(module: types.ModuleType) -> None:
                with _ended_by_interrupts(), _stderr_held_back(), _hide_imports():
                    execute(module)

            found.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return found


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Make Ctrl-C end a launcher inside this context, without output."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (_is_launcher and is_main and before is signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, _end_process)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Hold back standard error, also of C++, and show it only if the block fails."""
    sys.stderr.flush()
    # The descriptor, not sys.stderr: C++ writes to it directly.
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
def _hide_imports() -> Iterator[None]:
    """Hide the objects of imports in this context from a launcher's garbage collector, for good.

    Modules stay in memory anyway, and a search of their million objects takes a second.
    """
    if not _is_launcher:  # Other processes may hold objects that must be collected.
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
    """Return the package whose import failed, where and why; None for other errors."""
    imported = _list_imported(error)
    if not imported and not isinstance(error, ImportError):
        return None
    foreign = [name.partition(".")[0] for name in imported if name.partition(".")[0] not in _OWN]
    absent = getattr(error, "name", None)
    module = next(iter([*foreign, *filter(None, [absent]), *reversed(imported)]), "a package")
    return f"{failure(module, error)} {_HELP}"


def _list_imported(error: BaseException) -> list[str]:
    """Return the modules whose import was in progress, the outermost first."""
    # The code of a module runs in a frame of this name.
    frames = list(traceback.walk_tb(error.__traceback__))
    running = [frame for frame, _ in frames if frame.f_code.co_name == "<module>"]
    names = [frame.f_globals.get("__name__", "") for frame in running]
    return [name for name in names if name and name != "__main__"]


def failure(module: str, error: BaseException) -> str:
    """Return the error in a module's import, and its line."""
    frames = traceback.extract_tb(error.__traceback__)
    # Python's import system puts frames between the frames of modules.
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    place = f" ({own[-1].filename} line {own[-1].lineno})" if len(own) > 1 else ""
    what = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        place, what = f" ({error.filename} line {error.lineno})", error.msg
    if isinstance(error, SystemExit):
        what = f"sys.exit({error.code!r}) ended Python"
    return f"importing {module!r} failed{place}: {type(error).__name__}: {what}."


def _end_process(number: int, frame: types.FrameType | None) -> None:
    del number, frame
    os._exit(_INTERRUPTED)  # All files are complete, or not yet begun.


def _tell_error(kind: type, error: BaseException, trace: Any) -> None:
    said = problem(error.with_traceback(trace))
    if said is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"Error: {said}", file=sys.stderr, flush=True)
    os._exit(2)
