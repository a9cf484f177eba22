"""Standard output and error that someone closes, as `head` does, or that are full.

with streams.guarded():
    print("...")                  # exit code 141 once nobody reads; a UserError if it is full
    print("...", file=sys.stderr) # goes nowhere then: a training outlives the reader of its log
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from mtl import checks

# What a shell says of a program that a closed pipe has ended: 128 + SIGPIPE.
_NOBODY_READS = 141


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Tell an error of the standard streams, within it, from those of files and of the network.

    Raises:
      UserError: standard output takes no more, as on a full disk.
      SystemExit: nobody reads it any more.
    """
    before = sys.stdout, sys.stderr
    # None is a stream that was closed from the start, to which print() writes nothing.
    sys.stdout = sys.stdout and _Guarded(sys.stdout, _end)
    sys.stderr = sys.stderr and _Guarded(sys.stderr, lambda error: None)
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _end(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):
        sys.exit(_NOBODY_READS)
    checks.fail("standard output", "take what is written", error.strerror)


class _Guarded:
    """A text file that writes to nowhere, and tells `failed`, once it cannot be written."""

    def __init__(self, file: TextIO, failed: Callable[[OSError], None]):
        self._file, self._failed = file, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._explained():
            return self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._explained():
            self._file.flush()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Python writes what is left when it ends, and would complain once more.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._failed(error)
