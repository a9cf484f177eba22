"""Accesses files of a run: checks their file system, lists them by name, syncs them to disk.

storage.listed("runs/digits", "model.ckpt-")             # ["runs/digits/model.ckpt-20.index", ...]
storage.require_plain("--model_dir", "runs/digits")      # refuses names that TensorFlow misreads
storage.require_path("--output", "gs://bucket/out")      # refuses file systems that are missing
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

from mtl import checks
from mtl.deferred import tf
from mtl.files import in_work

# A class of characters, or a backslash: as a pattern such a path does not match itself. A path with
# * or ? does match itself; only our code must not look for such files by pattern.
_PATTERN = re.compile(r"\\|\[[^/]*\]")

# TensorFlow uses these words in messages, with various classes of errors.
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_SPACE = re.compile("|".join(re.escape(os.strerror(number)) for number in _ERRNOS))


# TensorFlow's names for files in memory, and for the local file system.
_UNUSED = ("ram", "file")
# Places of data, in which a run cannot lie: it locks, renames and replaces files.
_STORES = ("s3", "s3a", "abfs", "abfss", "hdfs")
_HOSTS = {"gs": "https://www.googleapis.com"}
_NOT_THERE = re.compile(r"File system scheme '.*' not implemented \(file: '([^']*)")
_NOT_REACHED = re.compile(r"Error executing an HTTP request: (.*)")


def make_absolute(path: str) -> str:
    """Return an absolute path; a path with a scheme is absolute already."""
    return path if "://" in path else os.path.abspath(path)


def require_path(where: str, path: str) -> None:
    """Fail for a path on a missing file system, or through a missing folder.

    TensorFlow would create `no/../run` as `run`, and then not find it as `no/../run`.

    Args:
      where: the flag or setting that names the path, for the error.
      path: a local path, or one with a scheme such as gs://.

    Raises:
      UserError: the file system is missing or does not answer, or a folder before ".." is missing.
    """
    scheme, separator, _ = path.partition("://")
    if separator:
        known = sorted({*tf.io.gfile.get_registered_schemes()} - {"", *_UNUSED})
        listed = " or ".join(f"{name}://" for name in known)
        rule = f"be a path of this machine, without a scheme, or start with {listed}"
        fix = "Write to this machine, and copy the files there." if scheme in _STORES else ""
        checks.require(scheme in known, where, rule, path, fix)
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
    """Fail for a path that TensorFlow takes for a pattern, under which it finds no checkpoint."""
    require_path(where, path)
    rule = r"have no backslash and no [...] in its path, which TensorFlow takes for a pattern"
    fix = "Rename it, or go there with cd and name it from there."
    checks.require(not _PATTERN.search(path), where, rule, path, fix)


def is_local(path: str) -> bool:
    """Return whether the path is on the local file system."""
    return "://" not in path


def exists(path: str) -> bool:
    """Return whether a file or a folder exists; a local one is looked up without TensorFlow."""
    return os.path.exists(path) if is_local(path) else tf.io.gfile.exists(path)


def require_regular(path: str) -> None:
    """Fail for a pipe, a socket or a device, because reading one may wait for ever."""
    if is_local(path) and os.path.exists(path):
        mode = os.stat(path).st_mode
        is_regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        checks.require(is_regular, path, "be a file", kind, "Delete it, or copy the file back.")


def may_exist(path: str) -> bool:
    """Return whether a local file exists; True for others, without a connection."""
    return not is_local(path) or os.path.exists(path)


def read(path: str) -> bytes:
    """Return the bytes of a file; a local one is read without TensorFlow."""
    require_regular(path)
    with open(path, "rb") if is_local(path) else tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def listed(directory: str, beginning: str = "") -> list[str]:
    """Return the sorted paths in `directory` whose names start with `beginning`; [] if missing.

    This function avoids glob, because the path of a run may hold characters of patterns.

    Args:
      directory: a local folder, or one with a scheme.
      beginning: the first characters of the names, taken literally.
    """
    is_here = is_local(directory)
    if not (os.path.isdir(directory) if is_here else tf.io.gfile.isdir(directory)):
        return []
    listing = os.listdir(directory) if is_here else tf.io.gfile.listdir(directory)
    names = (name.rstrip("/") for name in listing)
    return sorted(os.path.join(directory, name) for name in names if name.startswith(beginning))


def sync(paths: Iterable[str]) -> None:
    """Wait until files and folders are on the local disk; other file systems sync by themselves."""
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_possible(where: str, folder: str, what: str, path: str) -> None:
    """Fail if `folder` cannot be written or made; nothing is written.

    Checks local file systems only: others would need a trial write. `what` is a part of the
    message: what `path` has to be.

    Args:
      where: the flag or setting that names the path, for the error.
      folder: the folder to write into; it need not exist.
      what: what the path has to be, such as "a folder".
      path: the path as the user wrote it, for the error.
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
    """Turn a failing file operation in this context into a UserError: `what` cannot be written.

    Args:
      where: the flag or setting that names the path.
      what: what the path has to be, such as "a file".
      path: the path as the user wrote it.
    """
    try:
        yield
    except OSError as error:
        checks.fail(where, f"be {what} that can be written", path, f"{error.strerror or error}.")
    except tf.errors.OpError as error:
        # TensorFlow's message is "path; reason".
        reason = error.message.rpartition("; ")[2]
        checks.fail(where, f"be {what} that can be written", path, f"{reason}.")


@contextlib.contextmanager
def explain_storage_errors() -> Iterator[None]:
    """Turn errors of a full, read-only, limited or absent disk into a UserError."""
    told, log = threading.excepthook, logging.getLogger("tensorflow")
    # A thread writes event files, and prints its error before it passes it on.
    threading.excepthook = lambda args: None if _describe_problem(args.exc_value) else told(args)
    log.addFilter(_is_other)
    try:
        yield
    except checks.UserError:
        raise
    except Exception as error:  # TensorFlow's writer of events raises Python errors as well.
        message = _describe_problem(error)
        if message is None:
            raise
        raise checks.UserError(message) from error
    finally:
        threading.excepthook = told
        log.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not _NO_SPACE.search(record.getMessage())


def _describe_problem(error: BaseException | None) -> str | None:
    """Return a line with the file that cannot be written or reached, and the reason, or None."""
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
    # TensorFlow's message is "path; reason", sometimes after other words.
    named = re.search(r"([^\s;'\"]+)['\"]?; $", text[: found.start()])
    path = getattr(error, "filename", None) or (named and named.group(1)) or "a file"
    path = re.sub(rf"\.{in_work.TOKEN}\.partial$", "", str(path))
    fix = "Earlier files are kept: make room or choose another folder, then start again."
    return f"{path} cannot be written: {found.group()}. {fix}"


def reachable(url: str, timeout_secs: float = 5) -> bool:
    """Return whether the host of `url` answers.

    With a proxy, which resolves hosts itself, the answer is True.
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
