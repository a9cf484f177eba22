"""Locks the folder of a run, so that only one process trains there.

with lock.hold_lock("runs/digits"):       # UserError: process 4711 on host a trains there since ...
    ...
with lock.hold_lock("runs/digits", lock.EVALUATOR):   # the process of a cluster that evaluates
    ...
lock.require_free("runs/digits")        # before processes start that need the lock

Evaluations, predictions and exports need no lock, so they can run during a training. The operating
system locks a file in the folder, and releases the lock when the process ends in any way. Object
stores have no locks: a log line tells users to prevent a second training themselves.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from mtl import checks
from mtl.files import in_work, storage

FILE = "train.lock"


class Role(NamedTuple):
    """A role that only one process at a time may have in a folder.

    Attributes:
      file: the name of the file that a process with this role locks.
      name: the name of the role, for error messages.
      does: a verb for the work of a process with this role, such as "trains".
    """

    file: str
    name: str
    does: str


TRAINING = Role(FILE, "training", "trains")
EVALUATOR = Role("evaluate.lock", "evaluator", "evaluates")

_log = logging.getLogger(__name__)

# A training waits this long for the lock, because `require_free` holds it for an instant.
_PATIENCE_SECS = 0.3
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def hold_lock(model_dir: str, role: Role = TRAINING) -> Iterator[None]:
    """Hold the lock of a folder, which this process must be able to write.

    Raises:
      UserError: another process with this role holds the lock.
    """
    path = os.path.join(model_dir, role.file)
    descriptor = _take_lock(path, role) if storage.is_local(path) else None
    if descriptor is None:
        message = "%s cannot be locked: make sure that nothing else %s there."
        _log.info(message, model_dir, role.does)
        yield
        return
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, _describe_holder(), 0)
        yield
    finally:
        # Remove the file before releasing the lock: later, another process may have locked the
        # file.
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(descriptor)


def require_free(model_dir: str) -> None:
    """Fail if a training holds the lock; write nothing.

    Args:
      model_dir: the folder of the run; a remote folder always passes.

    Raises:
      UserError: a training holds the lock, or this process may not open the lock file.
    """
    path = os.path.join(model_dir, FILE)
    if storage.is_local(path):
        with contextlib.suppress(FileNotFoundError):
            descriptor = _open_file(path, os.O_RDONLY)
            try:
                # Take a shared lock, so that two processes can call `require_free` at the same
                # time.
                _is_locked(descriptor, path, fcntl.LOCK_SH, TRAINING)
            finally:
                os.close(descriptor)


def _take_lock(path: str, role: Role) -> int | None:
    """Return the locked file; None if the file system has no locks."""
    while True:
        descriptor = _open_file(path, os.O_RDWR | os.O_CREAT)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            if not _is_locked(descriptor, path, fcntl.LOCK_EX, role):
                return None
            if in_work.is_at(descriptor, path):  # The holder may have removed the file.
                stack.pop_all()
                return descriptor


def _open_file(path: str, flags: int) -> int:
    try:
        # All users may write the file, because another user may train in this folder next.
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        folder, name = os.path.split(path)
        rule = f"let this process open {name}"
        fix = f"{error.strerror}: if nobody trains there, delete it."
        checks.fail("--model_dir", rule, folder, fix)


def _is_locked(descriptor: int, path: str, kind: int, role: Role) -> bool:
    """Lock an open file; return False if the file system has no locks."""
    # `require_free` in another process holds the lock only for an instant.
    until = time.monotonic() + _PATIENCE_SECS
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                return False
        if time.monotonic() > until:
            _refuse_holder(path, os.pread(descriptor, 4096, 0), role)
        time.sleep(_PATIENCE_SECS / 10)


def _describe_holder() -> bytes:
    since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode()


def _refuse_holder(path: str, note: bytes, role: Role) -> NoReturn:
    try:
        holder = "process {pid} on {host} {does} there since {since}"
        text = holder.format(**{**json.loads(note), "does": role.does})
    except (ValueError, KeyError, TypeError):  # The holder has not written its text yet.
        text = f"another process {role.does} there"
    fix = f"{text[0].upper()}{text[1:]}: wait for it, stop it, or choose another folder."
    rule = f"have one {role.name} at a time"
    checks.fail("--model_dir", rule, os.path.dirname(path), fix)
