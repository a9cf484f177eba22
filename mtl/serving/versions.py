"""Numbered versions in a folder that a server polls; a version appears only when it is complete.

with versions.create_version("models/income") as version:
    path = write_model(version.partial)          # a folder inside version.partial
    version.publish(path, keep=3)                # moves it to models/income/<number>
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
# Without a lock, an unfinished export of this age counts as abandoned: object stores have no locks,
# and early versions of mtl did not lock.
_ABANDONED_SECS = 3600


def list_versions(folder: str) -> list[int]:
    """Return the numbers of the versions in a folder, the newest last."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """A version that is being written.

    Attributes:
      folder: the folder of the versions.
      partial: the folder in which this version is written; servers ignore its name.
      number: the later name of the version: the time in seconds, larger than all existing numbers.
    """

    folder: str
    partial: str
    number: int

    def publish(self, written: str, keep: int, kept: int | None = None) -> str:
        """Publish a version, and delete old versions.

        Args:
          written: the folder of a complete SavedModel, inside `partial`.
          keep: the number of newest versions to keep, this version included.
          kept: another version to keep, or None.

        Returns:
          The path of the version.
        """
        path = os.path.join(self.folder, str(self.number))
        # A rename makes the whole folder visible to a server at once.
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
    """Yield a new version to write, and remove its `partial` folder at the end."""
    tf.io.gfile.makedirs(folder)
    _remove_abandoned(folder)
    partial = os.path.join(folder, _PARTIAL + uuid.uuid4().hex)
    tf.io.gfile.makedirs(partial)
    lock = in_work.lock_folder(partial) if storage.is_local(partial) else None
    # Numbers must rise, also for two exports in the same second or after the clock was set back.
    number = max([int(time.time()), *(number + 1 for number in list_versions(folder))])
    try:
        yield Version(folder=folder, partial=partial, number=number)
    finally:
        tf.io.gfile.rmtree(partial)
        if lock is not None:
            os.close(lock)


def _is_in_work(partial: str) -> bool:
    """Return True if the process that writes a folder is alive, or if that is unknown."""
    is_abandoned = in_work.is_folder_abandoned(partial) if storage.is_local(partial) else None
    if is_abandoned is None:
        age = time.time() - tf.io.gfile.stat(partial).mtime_nsec / 1e9
        return age <= _ABANDONED_SECS
    return not is_abandoned


def _remove_abandoned(folder: str) -> None:
    """Remove unfinished versions that killed processes left."""
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith(_PARTIAL):
            # Another export may remove it first.
            with contextlib.suppress(tf.errors.NotFoundError):
                if not _is_in_work(path):
                    tf.io.gfile.rmtree(path)
