"""Files in progress: random names, and locks that end together with their process.

path, descriptor = in_work.create(lambda: f"out.csv.{in_work.make_token()}.partial")
in_work.is_abandoned(path)               # True if the process that wrote it is gone
in_work.remove_abandoned(path)
with in_work.take_turns("runs/digits"):  # while several processes read and rewrite a file
    ...

The operating system's lock on a file tells whether its writer is alive, whatever the clock says.
Some file systems lack locks; then it is unknown.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator

TOKEN = "[0-9a-f]{16}"
_IN_FOLDER = "in_work"
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def make_token() -> str:
    """Return 16 random digits, a part of a name that others cannot guess."""
    return secrets.token_hex(8)


def create(make_path: Callable[[], str]) -> tuple[str, int]:
    """Create and lock a new file; return its path and its descriptor.

    The lock ends when the descriptor is closed. An existing link of this name is not followed.
    """
    while True:
        path = make_path()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(OSError):  # The file system lacks locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, path):  # Otherwise another process removed it before the lock.
            return path, descriptor
        os.close(descriptor)


def is_at(descriptor: int, path: str) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def hold(path: str) -> int | None:
    """Share the lock of a file that is read; return its descriptor, or None without locks.

    `remove_abandoned` leaves the file until the descriptor is closed.

    Raises:
      FileNotFoundError: the file is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if is_at(descriptor, path):
            return descriptor
    except OSError:  # The file system lacks locks.
        pass
    os.close(descriptor)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return None


def is_abandoned(path: str) -> bool | None:
    """Return True if the file is not held by a process; None if that is unknown."""
    return _act_if_abandoned(path, lambda: None)


def remove_abandoned(path: str) -> bool | None:
    """Remove a file that is not held by a process, and return `is_abandoned`; others stay."""
    return _act_if_abandoned(path, lambda: os.remove(path))


@contextlib.contextmanager
def take_turns(folder: str) -> Iterator[None]:
    """Wait until other processes and threads leave this context for a folder, and lock them out.

    The lock is on the folder itself, whose files may be replaced. Without locks there is no wait.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # The file system lacks locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_folder(folder: str) -> int:
    """Lock a folder in progress by a file in it; return the descriptor."""
    return create(lambda: os.path.join(folder, _IN_FOLDER))[1]


def is_folder_abandoned(folder: str) -> bool | None:
    """Return True if the folder is not held by a process; None without a lock or if unknown."""
    return is_abandoned(os.path.join(folder, _IN_FOLDER))


def _act_if_abandoned(path: str, act: Callable[[], object]) -> bool | None:
    """Return `is_abandoned`; if True, call `act` before another process can lock the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, path):
            act()
        return True
    except OSError as error:
        return False if error.errno in _TAKEN else None
    finally:
        os.close(descriptor)
