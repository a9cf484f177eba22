"""Files of a run: on file systems that are there, found by name, and synced to their disk.

storage.listed("runs/digits", "model.ckpt-")             # ["runs/digits/model.ckpt-20.index", ...]
storage.require_plain("--model_dir", "runs/digits")      # no name that TensorFlow cannot read
storage.require_path("--output", "gs://bucket/out")      # nor one of another file system
"""

import contextlib
import errno
import functools
import logging
import os
import re
import socket
import stat
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator

from mtl import checks, deferred
from mtl.files import in_work

with deferred.imports():
    import tensorflow as tf

# A class of characters, or a backslash: as a pattern such a path does not match itself. A path that
# holds * or ? does, so that only our own files must not be looked for by one.
_PATTERN = re.compile(r"\\|\[[^/]*\]")

# TensorFlow tells it in these words, and under an error of its own for each.
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_SPACE = re.compile("|".join(re.escape(os.strerror(number)) for number in _ERRNOS))


# Of TensorFlow itself: one lies in memory, the other is the local one under another name.
_UNUSED = ("ram", "file")
_HOSTS = {"gs": "https://www.googleapis.com"}
_NOT_THERE = re.compile(r"File system scheme '.*' not implemented \(file: '([^']*)")
_NOT_REACHED = re.compile(r"Error executing an HTTP request: (.*)")


def make_absolute(path: str) -> str:
    """Return a path that means the same in every folder; one with a scheme does already."""
    return path if "://" in path else os.path.abspath(path)


def require_path(where: str, path: str) -> None:
    """Fail for a path on a file system that is not there, or through a folder that is not.

    TensorFlow would make `no/../run` as `run`, and not find it as `no/../run`.
    """
    scheme, separator, _ = path.partition("://")
    if separator:
        known = sorted({*tf.io.gfile.get_registered_schemes()} - {"", *_UNUSED})
        listed = " or ".join(f"{name}://" for name in known)
        rule = f"be a path of this machine, without a scheme, or start with {listed}"
        checks.require(scheme in known, where, rule, path)
        host = _HOSTS.get(scheme)
        rule = "be on a file system that can be reached"
        checks.require(not host or _answers(host), where, rule, path, f"{host} does not answer.")
        return
    for up in re.finditer(r"(?:^|(?<=/))\.\.(?=/|$)", path):
        before = path[: up.start()]
        rule = "go through folders that exist"
        checks.require(not before or os.path.isdir(before), where, rule, path)


@functools.cache
def _answers(host: str) -> bool:
    return reachable(host)


def require_plain(where: str, path: str) -> None:
    """Fail for a path under which TensorFlow finds no checkpoint, as it takes it for a pattern."""
    require_path(where, path)
    rule = r"have no backslash and no [...] in its path, which TensorFlow takes for a pattern"
    fix = "Rename it, or go there with cd and name it from there."
    checks.require(not _PATTERN.search(path), where, rule, path, fix)


def is_local(path: str) -> bool:
    """Return whether the file lies where the operating system finds it."""
    return "://" not in path


def exists(path: str) -> bool:
    """Return whether a file or a folder is there; a local one is looked up without TensorFlow."""
    return os.path.exists(path) if is_local(path) else tf.io.gfile.exists(path)


def require_regular(path: str) -> None:
    """Fail for a pipe, a socket or a device, which would be waited for."""
    if is_local(path) and os.path.exists(path):
        mode = os.stat(path).st_mode
        is_regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        checks.require(is_regular, path, "be a file", kind, "Delete it, or copy the file back.")


def may_exist(path: str) -> bool:
    """Return whether a local file is there; one elsewhere may be, and nothing connects to look."""
    return not is_local(path) or os.path.exists(path)


def read(path: str) -> bytes:
    """Return what a file holds; a local one is read without TensorFlow."""
    require_regular(path)
    with open(path, "rb") if is_local(path) else tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def listed(directory: str, beginning: str = "") -> list[str]:
    """Return the paths in `directory` whose names begin so, in order; none without the folder.

    It is no glob: the path of a run may hold characters that mean something in a pattern.
    """
    is_here = is_local(directory)
    if not (os.path.isdir(directory) if is_here else tf.io.gfile.isdir(directory)):
        return []
    listing = os.listdir(directory) if is_here else tf.io.gfile.listdir(directory)
    names = (name.rstrip("/") for name in listing)
    return sorted(os.path.join(directory, name) for name in names if name.startswith(beginning))


def sync(paths: Iterable[str]) -> None:
    """Wait until files and folders are on their disk; other file systems see to it themselves."""
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_possible(where: str, folder: str, what: str, path: str) -> None:
    """Fail where `folder` is none that can be written or made; nothing is written.

    Of other file systems than the local one only a try would tell. `what` the `path` has to be is
    a part of the message.
    """
    if not is_local(folder):
        return
    there = os.path.abspath(folder)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    reason = "" if os.access(there, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    reason = reason if os.path.isdir(there) else os.strerror(errno.ENOTDIR)
    checks.require(not reason, where, f"be {what} that can be written", path, f"{reason}: {there}.")


@contextlib.contextmanager
def writing(where: str, what: str, path: str) -> Iterator[None]:
    """Turn a failing operation on files within it into a UserError: `what` cannot be written."""
    try:
        yield
    except OSError as error:
        checks.fail(where, f"be {what} that can be written", path, f"{error.strerror or error}.")
    except tf.errors.OpError as error:
        # TensorFlow writes "path; reason".
        reason = error.message.rpartition("; ")[2]
        checks.fail(where, f"be {what} that can be written", path, f"{reason}.")


@contextlib.contextmanager
def explain_storage_errors() -> Iterator[None]:
    """Turn what a full, read-only, limited or absent disk ends a process with into a UserError."""
    told, log = threading.excepthook, logging.getLogger("tensorflow")
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


def _problem(error: BaseException | None) -> str | None:
    """Return which file cannot be written or reached, and why, in one line, or None."""
    text = getattr(error, "message", None) or str(error)
    absent, unreached = _NOT_THERE.search(text), _NOT_REACHED.search(text)
    if absent:
        return f"{absent.group(1)} is on a file system that TensorFlow does not know."
    if unreached:
        named = re.search(r"gs://\S*", text)
        path = named.group() if named else "a file"
        return f"{path} cannot be reached: {unreached.group(1)}."
    found = _NO_SPACE.search(text)
    if found is None:
        return None
    # TensorFlow writes "path; reason", some of it after other words.
    named = re.search(r"([^\s;'\"]+)['\"]?; $", text[: found.start()])
    path = getattr(error, "filename", None) or (named and named.group(1)) or "a file"
    path = re.sub(rf"\.{in_work.TOKEN}\.partial$", "", str(path))
    fix = "What was written before is kept: make room, or choose another folder, and start again."
    return f"{path} cannot be written: {found.group()}. {fix}"


def reachable(url: str, timeout_secs: float = 5) -> bool:
    """Return whether the host of `url` answers.

    A proxy, which looks hosts up itself, is trusted.
    """
    if urllib.request.getproxies():
        return True
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname, port), timeout_secs).close()
    except OSError:
        return False
    return True
