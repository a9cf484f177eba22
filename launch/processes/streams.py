"""Handles write errors of standard output and standard error: a closed pipe, a full disk.

with streams.guarded():
    print("...")                  # exit code 141 if the reader has closed it
    print("...", file=sys.stderr) # ignored if the reader has closed it: a training continues
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from mtl import checks

# The exit code that a shell reports after a closed pipe: 128 + SIGPIPE.
_NOBODY_READS = 141


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Handle errors of the standard streams in a `with` block, but not errors of other files.

    Raises:
      UserError: standard output cannot be written, for example on a full disk.
      SystemExit: the reader of standard output has closed the stream.
    """
    before = sys.stdout, sys.stderr
    # A stream that was closed before Python started is None, and print() ignores it: do not wrap
    # None.
    sys.stdout = sys.stdout and _Guarded(sys.stdout, _end_run)
    sys.stderr = sys.stderr and _Guarded(sys.stderr, lambda error: None)
    try:
        yield
        # Flush now, because no code can handle an error during Python's exit.
        if sys.stdout:
            sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _end_run(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):
        sys.exit(_NOBODY_READS)
    checks.fail("standard output", "be writable", error.strerror)


class _Guarded:
    """Wraps a text file: calls `failed` when a write fails, and then ignores all text."""

    def __init__(self, file: TextIO, failed: Callable[[OSError], None]):
        self._file, self._failed = file, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._explain_error():
            return self._file.write(text)
        # This line runs if `_explain_error` has ignored an error of standard error.
        return len(text)

    def flush(self) -> None:
        with self._explain_error():
            self._file.flush()

    @contextlib.contextmanager
    def _explain_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Redirect the file to /dev/null, because the flush at Python's exit would fail again.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._failed(error)
