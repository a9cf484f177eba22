"""Numbered versions in a folder that a server polls; each appears only when it is complete.

with versions.create_version("models/income") as version:
    ...                                  # write into version.partial
    version.publish(keep=3)              # -> models/income/<number>
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Iterator

from mtl.deferred import tf
from mtl.files import in_work, storage

_PARTIAL = ".partial-"
# For folders without locks: in object stores, or written by versions of mtl that made none.
_ABANDONED_SECS = 3600


def list_versions(folder: str) -> list[int]:
    """Return the versions in a folder, the newest last."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """A version that is being written.

    Attributes:
      folder: the folder of the versions.
      partial: the folder in which this version is written; servers ignore its name.
      number: its later name: the time in seconds, and larger than all existing numbers.
    """

    folder: str
    partial: str
    number: int

    def publish(self, written: str, keep: int, kept: int | None = None) -> str:
        """Publish the folder `written`; delete older ones, except the newest `keep` and `kept`.

        Args:
          written: a whole SavedModel, below `partial`.
          keep: how many of the newest versions stay, this one among them.
          kept: another version that stays; None for none.

        Returns:
          The path of the version.
        """
        path = os.path.join(self.folder, str(self.number))
        # A server sees the whole folder at once, or nothing of it.
        tf.io.gfile.rename(written, path)
        for number in list_versions(self.folder)[:-keep]:
            if number != kept:
                self._remove_version(os.path.join(self.folder, str(number)))
        return path

    def _remove_version(self, path: str) -> None:
        """Rename a version before its removal, so that a server does not see a part of it."""
        hidden = os.path.join(self.partial, f"removed-{os.path.basename(path)}")
        # `create_version` removes the hidden folder at its end.
        tf.io.gfile.rename(path, hidden)


@contextlib.contextmanager
def create_version(folder: str) -> Iterator[Version]:
    """Yield a place to write a new version, and remove it at the end."""
    tf.io.gfile.makedirs(folder)
    _remove_abandoned(folder)
    partial = os.path.join(folder, _PARTIAL + uuid.uuid4().hex)
    tf.io.gfile.makedirs(partial)
    lock = in_work.lock_folder(partial) if storage.is_local(partial) else None
    # Two exports in one second, or a clock that went back, must not share or lower a number.
    number = max([int(time.time()), *(number + 1 for number in list_versions(folder))])
    try:
        yield Version(folder=folder, partial=partial, number=number)
    finally:
        tf.io.gfile.rmtree(partial)
        if lock is not None:
            os.close(lock)


def _is_in_work(partial: str) -> bool:
    """Return whether the process that writes a folder is, or may be, alive."""
    is_abandoned = in_work.is_folder_abandoned(partial) if storage.is_local(partial) else None
    if is_abandoned is None:
        age = time.time() - tf.io.gfile.stat(partial).mtime_nsec / 1e9
        return age <= _ABANDONED_SECS
    return not is_abandoned


def _remove_abandoned(folder: str) -> None:
    """Remove folders that killed runs left."""
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith(_PARTIAL):
            # Another export may remove it first.
            with contextlib.suppress(tf.errors.NotFoundError):
                if not _is_in_work(path):
                    tf.io.gfile.rmtree(path)
