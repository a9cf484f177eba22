"""Files of a run: found by the beginnings of their names, and written so that they last.

storage.listed("runs/digits", "model.ckpt-")             # ["runs/digits/model.ckpt-20.index", ...]
storage.write("runs/digits/best/best.json", text)        # whole or as before, whatever happens
storage.require_plain("--model_dir", "runs/digits")      # no name that TensorFlow cannot read
"""

import os
import re
from collections.abc import Iterable

import tensorflow as tf

from mtl import checks

# A class of characters, or a backslash: as a pattern such a path does not match itself. A path that
# holds * or ? does, so that only our own files must not be looked for by one.
_PATTERN = re.compile(r"\\|\[[^/]*\]")


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


def write(path: str, content: str | bytes) -> None:
    """Writes a file that appears under its name when it is complete, and on its disk."""
    partial = path + ".partial"
    with tf.io.gfile.GFile(partial, "wb") as file:
        file.write(content)
    sync([partial])
    tf.io.gfile.rename(partial, path, overwrite=True)
    sync([os.path.dirname(path) or "."])


def sync(paths: Iterable[str]) -> None:
    """Returns once files and folders are on their disk; other file systems see to it themselves."""
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
