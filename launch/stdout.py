"""Standard output that someone closes, as `head` does, or that is full.

with stdout.guarded():
    print("...")                  # exit code 141 once nobody reads; a UserError if it is full
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from mtl import checks

# What a shell says of a program that a closed pipe has ended: 128 + SIGPIPE.
_NOBODY_READS = 141


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Within it, an error of standard output is told from those of files and of the network.

    Raises:
      UserError: it takes no more, as on a full disk.
      SystemExit: nobody reads it any more.
    """
    if sys.stdout is None:  # It was closed from the start, and print() writes nothing.
        yield
        return
    before, sys.stdout = sys.stdout, _Guarded(sys.stdout)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = before


class _Guarded:
    """A text file that explains why it cannot be written."""

    def __init__(self, file: TextIO):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._explained():
            return self._file.write(text)

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
            if isinstance(error, BrokenPipeError):
                sys.exit(_NOBODY_READS)
            rule = "take what is written"
            checks.fail("standard output", rule, error.strerror)
