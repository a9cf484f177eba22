"""Writes files atomically: a file appears under its final name only when it is complete.

Every module of `mtl` writes files through this module.

atomic.write("runs/digits/balancing.svg", text)
with atomic.replacing("models/digits.onnx") as partial:
    ...                                               # write into `partial`
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Hashable, Iterator

from mtl.deferred import tf
from mtl.files import in_work, storage

_PARTIAL = re.compile(rf".+\.{in_work.TOKEN}\.partial")
_swept = set[str]()
"""Folders in which this process has already removed files that killed processes left."""


def write(path: str, content: str | bytes) -> None:
    """Write a file that appears under its final name when it is complete and on the disk.

    Args:
      path: a local path, or a path with a scheme that TensorFlow knows, such as gs://.
      content: the whole content; a text is encoded as UTF-8.

    Raises:
      PermissionError: `path` leads through a link of another user in a shared folder, such as /tmp.
    """
    data = content.encode() if isinstance(content, str) else content
    open_file = open if storage.is_local(path) else tf.io.gfile.GFile
    with replacing(path) as partial, open_file(partial, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a temporary path; its file replaces `path` at the end, or is removed after an error.

    The temporary file has a random name. If the path is local, the temporary file already exists
    and is empty; write into this file, and do not replace it by another file. Missing local folders
    are created, and are removed again if the file is not written. If `path` is a pipe or a device,
    no temporary file is made, and `path` itself is written. If `path` is a link, the target of the
    link is replaced.

    Raises:
      PermissionError: `path` leads through a link of another user in a shared folder, such as /tmp.
      OSError: the file cannot be written; an error about the temporary file names `path` instead.
    """
    if is_special(path):
        yield path
    elif storage.is_local(path):
        yield from _replace_local(path)
    else:
        yield from _replace_remote(path)


def _replace_local(path: str) -> Iterator[str]:
    _check_links(path)
    target = absolute(path)
    folder = os.path.dirname(target)
    folders = _make_folders(folder)
    try:
        _sweep_folder(folder)
        partial, descriptor = in_work.create(lambda: _make_name(target))
        try:
            yield partial
            os.fsync(descriptor)
            os.replace(partial, target)
            storage.sync([folder])
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(partial)
            os.close(descriptor)
    except OSError as error:
        if error.errno is None or not _is_partial(error.filename):
            raise
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        for above in reversed(folders):
            with contextlib.suppress(OSError):  # `rmdir` keeps folders with files.
                os.rmdir(above)


def _replace_remote(path: str) -> Iterator[str]:
    partial = _make_name(path)
    try:
        yield partial
        tf.io.gfile.rename(partial, path, overwrite=True)
    finally:
        with contextlib.suppress(tf.errors.OpError):
            if tf.io.gfile.exists(partial):
                tf.io.gfile.remove(partial)


def _is_partial(name: object) -> bool:
    """Return True if an error names a temporary file, or no file, as errors of writes do."""
    return name is None or _PARTIAL.fullmatch(str(name)) is not None


def _make_name(target: str) -> str:
    return f"{target}.{in_work.make_token()}.partial"


def _check_links(path: str) -> None:
    """Fail if a folder that everybody may write to, such as /tmp, has a link of another user.

    If `fs.protected_symlinks` is set, Linux refuses links of other users in shared folders, too.
    """
    path = os.path.abspath(path)
    while path != (above := os.path.dirname(path)):
        if os.path.islink(path):
            folder, owner = os.stat(above), os.lstat(path).st_uid
            is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
            if is_shared and owner not in (os.geteuid(), folder.st_uid):
                raise PermissionError(errno.EACCES, "It is a link of another user", path)
        path = above


def _sweep_folder(folder: str) -> None:
    """Remove temporary files of killed processes, before the first write to a folder."""
    if folder not in _swept:
        _swept.add(folder)
        for path in storage.listed(folder):
            if _is_partial(path):
                in_work.remove_abandoned(path)


def _make_folders(folder: str) -> list[str]:
    """Create a folder; return all folders that this call created, the outermost folder first."""
    absent, above = list[str](), folder
    while storage.is_local(above) and above and not os.path.isdir(above):
        absent.insert(0, above)
        above = os.path.dirname(above)
    for new in absent:
        os.makedirs(new, exist_ok=True)
    return absent


def is_special(path: str) -> bool:
    """Return True if a path exists and is a pipe, a device or a socket."""
    if not storage.is_local(path) or not os.path.exists(path):
        return False
    mode = os.stat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def absolute(path: str) -> str:
    """Return the absolute path of a file, with all links resolved; a remote path is unchanged."""
    return os.path.realpath(path) if storage.is_local(path) else path


def identity(path: str) -> Hashable:
    """Return a value that is equal for all paths of the same file, including links.

    Returns:
      The numbers of the device and the inode of an existing local file, and the path that
      `absolute` returns for a remote or missing file.
    """
    path = absolute(path)
    if not storage.is_local(path) or not os.path.exists(path):
        return path
    status = os.stat(path)
    return status.st_dev, status.st_ino
