"""Numbered versions in a folder, as a server polls it: whole or not there at all.

with versions.create_version("models/income") as version:
    ...                                  # write into version.partial
    version.publish(keep=3)              # -> models/income/<number>
"""

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Iterator

import tensorflow as tf

from mtl.files import in_work, storage

_PARTIAL = ".partial-"
# Where locks tell nothing: in object stores, and of versions of mtl that had none.
_ABANDONED_SECS = 3600


def list_versions(folder: str) -> list[int]:
    """Return the versions in a folder, the newest last."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdigit())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """A version that is being written.

    Attributes:
      folder: where the versions lie.
      partial: where this one is written; servers pass over its name.
      number: what it will be called: the time in seconds, and above all that are there.
    """

    folder: str
    partial: str
    number: int

    def publish(self, written: str, keep: int, kept: int | None = None) -> str:
        """Give what lies in `written` its place; all but the newest `keep`, and `kept`, go."""
        path = os.path.join(self.folder, str(self.number))
        tf.io.gfile.rename(written, path)
        for number in list_versions(self.folder)[:-keep]:
            if number != kept:
                self._remove(os.path.join(self.folder, str(number)))
        return path

    def _remove(self, path: str) -> None:
        """Take a version out of sight first, so that none is seen half-removed."""
        hidden = os.path.join(self.partial, f"removed-{os.path.basename(path)}")
        tf.io.gfile.rename(path, hidden)


@contextlib.contextmanager
def create_version(folder: str) -> Iterator[Version]:
    """Hold a place to write a new version; whatever is left there at the end is removed."""
    tf.io.gfile.makedirs(folder)
    _remove_abandoned(folder)
    partial = os.path.join(folder, _PARTIAL + uuid.uuid4().hex)
    tf.io.gfile.makedirs(partial)
    lock = in_work.lock_folder(partial) if storage.is_local(partial) else None
    number = max([int(time.time()), *(number + 1 for number in list_versions(folder))])
    try:
        yield Version(folder=folder, partial=partial, number=number)
    finally:
        tf.io.gfile.rmtree(partial)
        if lock is not None:
            os.close(lock)


def _is_in_work(partial: str) -> bool:
    """Return whether the process that writes a folder is alive, or may be."""
    is_abandoned = in_work.is_folder_abandoned(partial) if storage.is_local(partial) else None
    if is_abandoned is None:
        age = time.time() - tf.io.gfile.stat(partial).mtime_nsec / 1e9
        return age <= _ABANDONED_SECS
    return not is_abandoned


def _remove_abandoned(folder: str) -> None:
    """Remove what runs that were killed left behind."""
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith(_PARTIAL):
            # Another export may remove it first.
            with contextlib.suppress(tf.errors.NotFoundError):
                if not _is_in_work(path):
                    tf.io.gfile.rmtree(path)
