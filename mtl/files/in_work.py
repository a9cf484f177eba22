"""Locks the files that a process writes, so that other processes know whether the writer is alive.

path, descriptor = in_work.create(lambda: f"out.csv.{in_work.make_token()}.partial")
in_work.is_abandoned(path)               # True if the process that wrote the file is gone
in_work.remove_abandoned(path)
with in_work.take_turns("runs/digits"):  # if several processes read and rewrite a file
    ...

The operating system releases a lock when the process that holds the lock ends. On file systems
without locks, it is unknown whether the process is alive.
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
    """Return 16 random hexadecimal digits, for file names that nobody can guess."""
    return secrets.token_hex(8)


def create(make_path: Callable[[], str]) -> tuple[str, int]:
    """Create and lock a new file, which stays locked until its descriptor is closed.

    Args:
      make_path: returns a path that does not exist yet. If another process removes the new file
        before it is locked, `make_path` is called again.

    Returns:
      The path and the descriptor of the new, locked file.

    Raises:
      FileExistsError: the path exists, even as a link.
    """
    while True:
        path = make_path()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(OSError):  # A file system may have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, path):  # Another process may remove the file before `flock` locks it.
            return path, descriptor
        os.close(descriptor)


def is_at(descriptor: int, path: str) -> bool:
    """Return True if a path still names an open file.

    Args:
      descriptor: the file descriptor of the open file.
      path: the path at which the file was opened. A symbolic link at `path` counts as a different
        file, even if it leads to the open file.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def hold(path: str) -> int | None:
    """Take a shared lock of a file; return the descriptor, or None if there are no locks.

    Until the descriptor is closed, `remove_abandoned` does not remove the file.

    Raises:
      FileNotFoundError: the file does not exist.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if is_at(descriptor, path):
            return descriptor
    except OSError:  # A file system may have no locks.
        pass
    os.close(descriptor)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return None


def is_abandoned(path: str) -> bool | None:
    """Return whether the process that wrote a file is gone.

    Returns:
      True if no process has locked the file; False if a process has. None if the state of the
      process is unknown, because the file cannot be opened or the file system has no locks.
    """
    return _act_if_abandoned(path, lambda: None)


def remove_abandoned(path: str) -> bool | None:
    """Remove a file if no process has locked it.

    Returns:
      The result of `is_abandoned`; also None if the file cannot be removed.
    """
    return _act_if_abandoned(path, lambda: os.remove(path))


@contextlib.contextmanager
def take_turns(folder: str) -> Iterator[None]:
    """Let only one process or thread at a time enter this context for a folder.

    Other processes and threads wait. The lock is on the folder, because files may be replaced. On a
    file system without locks, no process waits.

    Args:
      folder: an existing local folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # A file system may have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_folder(folder: str) -> int:
    """Lock a folder that this process writes, by a new lock file in the folder.

    Returns:
      The descriptor of the lock file; the lock ends when the descriptor is closed.

    Raises:
      FileExistsError: the folder has a lock file, even if the process that created it is gone.
    """
    return create(lambda: os.path.join(folder, _IN_FOLDER))[1]


def is_folder_abandoned(folder: str) -> bool | None:
    """Return whether the process that locked a folder by `lock_folder` is gone.

    Returns:
      True if no process has locked the folder; False if a process has. None if the state of the
      process is unknown, or if the folder has no lock file.
    """
    return is_abandoned(os.path.join(folder, _IN_FOLDER))


def _act_if_abandoned(path: str, act: Callable[[], object]) -> bool | None:
    """Return the result of `is_abandoned`; if True, first call `act` while the file is locked.

    If `act` fails with an OSError, return None.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in _TAKEN else None
        if is_at(descriptor, path):
            act()
        return True
    except OSError:  # For example, this process lacks the right to write to the folder.
        return None
    finally:
        os.close(descriptor)
