"""Checks the paths of a run, lists files, and syncs files to the disk.

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

# TensorFlow treats paths as globs, and a path with [...] or a backslash does not match itself. A
# path with * or ? matches itself.
_PATTERN = re.compile(r"\\|\[[^/]*\]")

# Disk errors, which are recognised by their texts, because TensorFlow raises errors of various
# classes.
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_SPACE = re.compile("|".join(re.escape(os.strerror(number)) for number in _ERRNOS))


# Schemes that error messages do not suggest: files in memory, and the local file system.
_UNUSED = ("ram", "file")
# Stores that can hold data, but not a run, because a run locks, renames and replaces files.
_STORES = ("s3", "s3a", "abfs", "abfss", "hdfs")
_HOSTS = {"gs": "https://www.googleapis.com"}
_NOT_THERE = re.compile(r"File system scheme '.*' not implemented \(file: '([^']*)")
_NOT_REACHED = re.compile(r"Error executing an HTTP request: (.*)")


def make_absolute(path: str) -> str:
    """Return an absolute path; a path with a scheme is already absolute."""
    return path if "://" in path else os.path.abspath(path)


def require_path(where: str, path: str) -> None:
    """Fail for a path on an unreachable file system, or through a missing folder.

    For example, TensorFlow would create `no/../run` as `run`, and then not find `no/../run`.

    Args:
      where: the flag or setting that names the path, for the error message.
      path: a local path, or a path with a scheme such as gs://.

    Raises:
      UserError: the file system is unknown or does not answer, or a folder before ".." is missing.
    """
    scheme, separator, _ = path.partition("://")
    if separator:
        schemes = sorted({*tf.io.gfile.get_registered_schemes()} - {"", *_UNUSED})
        beginnings = " or ".join(f"{name}://" for name in schemes)
        rule = f"be a path of this machine, without a scheme, or start with {beginnings}"
        fix = "Write to this machine, and copy the files there." if scheme in _STORES else ""
        checks.require(scheme in schemes, where, rule, path, fix)
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
    """Fail for a path in which TensorFlow could not find checkpoints.

    TensorFlow treats a path with a backslash or [...] as a glob that does not match itself.

    Args:
      where: the flag or setting that names the path, for the error message.
      path: a local path, or a path with a scheme such as gs://.

    Raises:
      UserError: the path has a backslash or [...], or `require_path` refuses it.
    """
    require_path(where, path)
    rule = r"have no backslash and no [...] in its path, which TensorFlow takes for a pattern"
    fix = "Rename the folder, or change into it with cd and use a relative path."
    checks.require(not _PATTERN.search(path), where, rule, path, fix)


def is_local(path: str) -> bool:
    """Return True if a path has no scheme, and so names a local file."""
    return "://" not in path


def exists(path: str) -> bool:
    """Return True if a file or folder exists; for a local path, do not import TensorFlow."""
    return os.path.exists(path) if is_local(path) else tf.io.gfile.exists(path)


def require_regular(path: str) -> None:
    """Fail for a pipe, a socket or a device, because reading it may block forever.

    Args:
      path: a file or folder; a path that is remote or does not exist passes.

    Raises:
      UserError: the path names a pipe, a socket or a device.
    """
    if is_local(path) and os.path.exists(path):
        mode = os.stat(path).st_mode
        is_regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        checks.require(
            is_regular, path, "be a file", kind, "Delete this path, or copy a file to it."
        )


def may_exist(path: str) -> bool:
    """Return True if a local file exists, or if the path is remote, without a request."""
    return not is_local(path) or os.path.exists(path)


def read(path: str) -> bytes:
    """Return the bytes of a file; for a local file, do not import TensorFlow.

    Raises:
      UserError: the path names a pipe, a socket or a device.
    """
    require_regular(path)
    with open(path, "rb") if is_local(path) else tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def listed(directory: str, beginning: str = "") -> list[str]:
    """Return the sorted paths in a folder whose names start with `beginning`.

    This function does not use globs, because a path may contain characters such as "[".

    Args:
      directory: a local folder, or a folder with a scheme.
      beginning: the first characters of the file names.

    Returns:
      Paths, each starting with `directory`; [] if the folder does not exist.
    """
    is_here = is_local(directory)
    if not (os.path.isdir(directory) if is_here else tf.io.gfile.isdir(directory)):
        return []
    entries = os.listdir(directory) if is_here else tf.io.gfile.listdir(directory)
    names = (name.rstrip("/") for name in entries)
    return sorted(os.path.join(directory, name) for name in names if name.startswith(beginning))


def sync(paths: Iterable[str]) -> None:
    """Wait until local files and folders are written to the disk.

    Args:
      paths: existing files and folders; remote paths are ignored.
    """
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_possible(where: str, folder: str, what: str, path: str) -> None:
    """Fail if a folder cannot be created or written, without writing anything.

    Only local folders are checked, because a remote check would have to write a file.

    Args:
      where: the flag or setting that names the path, for the error message.
      folder: the folder to write into, which need not exist.
      what: the kind of path in the error message, such as "a folder".
      path: the path as the user wrote it, for the error message.

    Raises:
      UserError: the folder cannot be created or written.
    """
    if not is_local(folder):
        return
    above = os.path.abspath(folder)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    reason = "" if os.access(above, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    reason = reason if os.path.isdir(above) else os.strerror(errno.ENOTDIR)
    checks.require(not reason, where, f"be {what} that can be written", path, f"{reason}: {above}.")


@contextlib.contextmanager
def writing(where: str, what: str, path: str) -> Iterator[None]:
    """Turn errors of file operations in this context into one UserError.

    Args:
      where: the flag or setting that names the path, for the error message.
      what: the kind of path in the error message, such as "a file".
      path: the path as the user wrote it, for the error message.
    """
    try:
        yield
    except OSError as error:
        checks.fail(where, f"be {what} that can be written", path, f"{error.strerror or error}.")
    except tf.errors.OpError as error:
        # TensorFlow's messages have the form "path; reason".
        reason = error.message.rpartition("; ")[2]
        checks.fail(where, f"be {what} that can be written", path, f"{reason}.")


@contextlib.contextmanager
def explain_storage_errors() -> Iterator[None]:
    """Turn errors of a full, read-only, limited or absent disk into one UserError."""
    before, log = threading.excepthook, logging.getLogger("tensorflow")
    # The thread that writes event files would print an error that this context already reports.
    threading.excepthook = lambda args: None if _describe_problem(args.exc_value) else before(args)
    log.addFilter(_is_other)
    try:
        yield
    except checks.UserError:
        raise
    except Exception as error:  # TensorFlow's event writer also raises Python errors.
        message = _describe_problem(error)
        if message is None:
            raise
        raise checks.UserError(message) from error
    finally:
        threading.excepthook = before
        log.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not _NO_SPACE.search(record.getMessage())


def _describe_problem(error: BaseException | None) -> str | None:
    """Describe which file cannot be written or reached, and why.

    If the error is not about storage, the function returns None.
    """
    text = getattr(error, "message", None) or str(error)
    absent, unreached = _NOT_THERE.search(text), _NOT_REACHED.search(text)
    if absent:
        return f"{absent.group(1)} is on a file system that TensorFlow does not know."
    if unreached:
        url = re.search(r"gs://\S*", text)
        path = url.group() if url else "a file"
        return f"{path} cannot be reached: {unreached.group(1)}."
    reason = _NO_SPACE.search(text)
    if reason is None:
        return None
    # TensorFlow's messages have the form "path; reason", sometimes after other words.
    name = re.search(r"([^\s;'\"]+)['\"]?; $", text[: reason.start()])
    path = getattr(error, "filename", None) or (name and name.group(1)) or "a file"
    path = re.sub(rf"\.{in_work.TOKEN}\.partial$", "", str(path))
    fix = "Earlier files are kept: make room or choose another folder, then start again."
    return f"{path} cannot be written: {reason.group()}. {fix}"


def reachable(url: str, timeout_secs: float = 5) -> bool:
    """Return True if the host of a URL answers, or if this process uses a proxy.

    Args:
      url: a URL of http or https; without a port, the usual port of the scheme is tried.
      timeout_secs: the longest time to wait for a connection, in seconds.
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
