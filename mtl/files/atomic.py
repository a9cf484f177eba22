"""Files that take their place when they are complete, and what is no place for one.

atomic.write("runs/digits/balancing.svg", text)
with atomic.replacing("models/digits.onnx") as partial:
    ...                                               # write into `partial`
"""

import contextlib
import os
import stat
from collections.abc import Hashable, Iterator

from mtl import deferred
from mtl.files import storage

with deferred.imports():
    import tensorflow as tf

_PARTIAL = ".partial"


def write(path: str, content: str | bytes) -> None:
    """Write a file that appears under its name when it is complete, and on its disk."""
    with replacing(path) as partial, tf.io.gfile.GFile(partial, "wb") as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Hold a path to write to; it takes the place of `path` at the end, and is gone after an error.

    A folder that is not there is made, and stays only with what is written. Anything but a regular
    file, such as a pipe or a device, keeps its place and is written through; so does a link, whose
    target is replaced.
    """
    if is_special(path):
        yield path
        return
    target = absolute(path)
    partial = target + _PARTIAL
    made = _make_folders(os.path.dirname(target))
    try:
        yield partial
        storage.sync([partial])
        tf.io.gfile.rename(partial, target, overwrite=True)
        storage.sync([os.path.dirname(target) or "."])
    finally:
        with contextlib.suppress(tf.errors.OpError):
            if tf.io.gfile.exists(partial):
                tf.io.gfile.remove(partial)
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # It is not empty.
                os.rmdir(folder)


def _make_folders(folder: str) -> list[str]:
    """Make a folder, and return which were made for it, the outermost first."""
    absent, above = list[str](), folder
    while storage.is_local(above) and above and not os.path.isdir(above):
        absent.insert(0, above)
        above = os.path.dirname(above)
    if absent:
        tf.io.gfile.makedirs(folder)
    return absent


def is_special(path: str) -> bool:
    """Return whether a path is there, and is a pipe, a device or a socket."""
    if not storage.is_local(path) or not os.path.exists(path):
        return False
    mode = os.stat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def absolute(path: str) -> str:
    """Return one name for a file, however its folders are reached."""
    return os.path.realpath(path) if storage.is_local(path) else path


def identity(path: str) -> Hashable:
    """Return what two paths of the same file have in common, also by links of either kind."""
    path = absolute(path)
    if not storage.is_local(path) or not os.path.exists(path):
        return path
    status = os.stat(path)
    return status.st_dev, status.st_ino


def touched(path: str) -> set[Hashable]:
    """Return the identities of all that `replacing` writes to or renames."""
    return {identity(path), identity(absolute(path) + _PARTIAL)}
