"""Files of a run: found by the beginnings of their names, and synced to their disk.

storage.listed("runs/digits", "model.ckpt-")             # ["runs/digits/model.ckpt-20.index", ...]
storage.require_plain("--model_dir", "runs/digits")      # no name that TensorFlow cannot read
"""

import contextlib
import errno
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator

import tensorflow as tf

from mtl import checks

# A class of characters, or a backslash: as a pattern such a path does not match itself. A path that
# holds * or ? does, so that only our own files must not be looked for by one.
_PATTERN = re.compile(r"\\|\[[^/]*\]")

# TensorFlow tells it in these words, and under an error of its own for each.
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_SPACE = re.compile("|".join(re.escape(os.strerror(number)) for number in _ERRNOS))


def require_plain(where: str, path: str) -> None:
    """Fails for a path under which TensorFlow finds no checkpoint, as it takes it for a pattern."""
    rule = r"have no backslash and no [...] in its path, which TensorFlow takes for a pattern"
    fix = "Rename it, or go there with cd and name it from there."
    checks.require(not _PATTERN.search(path), where, rule, path, fix)


def is_local(path: str) -> bool:
    """Whether the file lies where the operating system finds it."""
    return "://" not in path


def listed(directory: str, beginning: str = "") -> list[str]:
    """The paths in `directory` whose names begin so, in order; none where there is no folder.

    It is no glob: the path of a run may hold characters that mean something in a pattern.
    """
    if not tf.io.gfile.isdir(directory):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    return sorted(os.path.join(directory, name) for name in names if name.startswith(beginning))


def sync(paths: Iterable[str]) -> None:
    """Returns once files and folders are on their disk; other file systems see to it themselves."""
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns what a full, read-only or limited disk ends a process with into a UserError."""
    told, log = threading.excepthook, tf.get_logger()
    # Event files are written by a thread, which tells of its error before it hands it on.
    threading.excepthook = lambda args: None if _problem(args.exc_value) else told(args)
    log.addFilter(_is_other)
    try:
        yield
    except checks.UserError:
        raise
    except Exception as error:  # Python's own as well, of TensorFlow's writer of events.
        message = _problem(error)
        if message is None:
            raise
        raise checks.UserError(message) from error
    finally:
        threading.excepthook = told
        log.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not _NO_SPACE.search(record.getMessage())


def _problem(error: Exception) -> str | None:
    """Which file cannot be written and why, in one line; None for any other error."""
    text = getattr(error, "message", None) or str(error)
    found = _NO_SPACE.search(text)
    if found is None:
        return None
    # TensorFlow writes "path; reason", some of it after other words.
    named = re.search(r"([^\s;'\"]+)['\"]?; $", text[: found.start()])
    path = getattr(error, "filename", None) or (named and named.group(1)) or "a file"
    fix = "What was written before is kept: make room, or choose another folder, and start again."
    return f"{path} cannot be written: {found.group()}. {fix}"
