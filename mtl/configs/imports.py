"""Reports failed imports in one line, and ends interrupted imports without a traceback.

imports.guard()                               # when a command starts
imports.quieten("tensorflow")                 # the first import then prints nothing
with imports.finished():                      # while the main function runs
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
_HELP = "`python -m launch.doctor` checks the installation."


def guard() -> None:
    """Let import errors end the process with one line, and Ctrl-C end the process without output.

    Import errors and Ctrl-C end the process with at most one line until `finished` is called. When
    the process ends, it does not collect garbage, which would take a second.
    """
    global _is_launcher
    _is_launcher = True
    # Garbage collection at exit would take a second, because graphs have many objects.
    atexit.register(gc.freeze)
    # Do not change the handler of a process in the background, which ignores Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_process)
    sys.excepthook = _tell_error


@contextlib.contextmanager
def finished() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt in a `with` block, although `guard` was called."""
    sys.excepthook = sys.__excepthook__
    is_guarded = signal.getsignal(signal.SIGINT) is _end_process
    try:
        if is_guarded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if is_guarded:  # Ctrl-C at the exit of Python must not print a traceback.
            signal.signal(signal.SIGINT, _end_process)


def silence_warnings() -> None:
    """Ignore Python's warnings about libraries, because users of `mtl` cannot fix these."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")


def prepare_tensorflow() -> None:
    """Hide the output of TensorFlow's import, and make TensorFlow use Keras 2.

    TensorFlow prints some notices before it reads the log level that `mtl` sets. Keras 2 is chosen
    here, because `mtl.compat` is imported too late: TensorFlow has already spent seconds on the
    import of Keras 3.
    """
    quieten("tensorflow")
    if "tensorflow" not in sys.modules and versions.turns_to_keras_2():
        os.environ[versions.KERAS_SWITCH] = "1"


def quieten(package: str) -> None:
    """Hide a package's output to standard error during its import, unless the import fails.

    During the import, Ctrl-C ends a command at once, because C++ code would turn a
    KeyboardInterrupt into another error.

    Args:
      package: the name of the package; nothing happens if the package is already imported.
    """
    if package not in sys.modules:
        # Insert the finder at the front: the first finder that finds a package loads it.
        sys.meta_path.insert(0, _Quiet(package))


class _Quiet:
    """Finds one package like Python's finders, but hides its output while it is imported."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._package:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        # Use a generator, so that the first match ends the search.
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_quietly(module: types.ModuleType) -> None:
                with _ended_by_interrupts(), _stderr_held_back(), _hide_imports():
                    execute(module)

            spec.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end a command without output in a `with` block."""
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
    """Hide standard error in a `with` block, also of C++ code; print it only if the block fails."""
    sys.stderr.flush()
    # Redirect the file descriptor instead of sys.stderr, because C++ writes to the descriptor.
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(stderr, output.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def _hide_imports() -> Iterator[None]:
    """Exclude objects that a `with` block imports from the garbage collection of a command.

    Modules stay in memory anyway, and garbage collection of their million objects takes a second.
    """
    if not _is_launcher:  # Outside of commands, `gc.freeze` could keep the user's objects alive.
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
    """Describe a failed import.

    Returns:
      One line with the package, the file and line, the reason and advice; None for an error that is
      not about an import.
    """
    modules = _list_imported(error)
    if not modules and not isinstance(error, ImportError):
        return None
    foreign = [name.partition(".")[0] for name in modules if name.partition(".")[0] not in _OWN]
    missing_module = getattr(error, "name", None)
    module = next(
        iter([*foreign, *filter(None, [missing_module]), *reversed(modules)]), "a package"
    )
    return f"{failure(module, error)} {_HELP}"


def _list_imported(error: BaseException) -> list[str]:
    """Return the modules whose import was in progress, the outermost first."""
    # Python names the frame of a module's code "<module>".
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_modules = [frame for frame in frames if frame.f_code.co_name == "<module>"]
    names = [frame.f_globals.get("__name__", "") for frame in of_modules]
    return [name for name in names if name and name != "__main__"]


def failure(module: str, error: BaseException) -> str:
    """Describe an error in the import of a module, with file and line.

    Args:
      module: the name of the module, which the description contains.
      error: the error, whose traceback gives the file and line.

    Returns:
      One line; for example, "importing 'x' failed (x.py line 3): ValueError: no file."
    """
    frames = traceback.extract_tb(error.__traceback__)
    # Leave out the frames of Python's import system.
    frames_of_code = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    place = ""
    if len(frames_of_code) > 1:
        place = f" ({frames_of_code[-1].filename} line {frames_of_code[-1].lineno})"
    reason = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        place, reason = f" ({error.filename} line {error.lineno})", error.msg
    if isinstance(error, SystemExit):
        reason = f"sys.exit({error.code!r}) ended Python"
    return f"importing {module!r} failed{place}: {type(error).__name__}: {reason}."


def _end_process(number: int, frame: types.FrameType | None) -> None:
    del number, frame
    os._exit(_INTERRUPTED)  # No code writes files during imports.


def _tell_error(kind: type, error: BaseException, trace: Any) -> None:
    line = problem(error.with_traceback(trace))
    if line is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"Error: {line}", file=sys.stderr, flush=True)
    os._exit(2)
