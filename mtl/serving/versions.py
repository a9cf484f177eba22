"""Publishes complete, numbered versions in a folder that a server polls.

with versions.create_version("models/income") as version:
    path = write_model(version.partial)          # a folder inside version.partial
    version.publish(path, keep=3)                # moves it to models/income/<number>
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
import uuid
from collections.abc import Iterator

from mtl.deferred import tf
from mtl.files import in_work, storage

_PARTIAL = ".partial-"
# An unfinished export without a lock counts as abandoned after this time. Object stores have no
# locks, and early versions of mtl did not lock.
_ABANDONED_SECS = 3600


def list_versions(folder: str) -> list[int]:
    """List the versions in a folder.

    Args:
      folder: the folder of the versions.

    Returns:
      The numbers of the versions, in ascending order; [] if the folder does not exist.
    """
    entries = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    names = [entry.rstrip("/") for entry in entries]
    # A server ignores other names, such as 007.
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a model that is being written.

    Attributes:
      folder: the folder of the versions.
      partial: the folder for this version until it is published; servers ignore folders of this
        name.
      number: the number of the published version: the seconds since 1970, but at least 1 above all
        existing numbers.
    """

    folder: str
    partial: str
    number: int

    def publish(self, written: str, keep: int, kept: int | None = None) -> str:
        """Publish this version, and delete old versions.

        Args:
          written: the folder of a complete SavedModel, inside `partial`.
          keep: how many of the newest versions to keep, including this version.
          kept: the number of another version that is not deleted, even if it is old; or None.

        Returns:
          The path of the version.
        """
        path = os.path.join(self.folder, str(self.number))
        # Rename the folder, so that a server sees all its files at once.
        tf.io.gfile.rename(written, path)
        for number in self._list_models()[:-keep]:
            if number not in (kept, self.number):  # A simultaneous export may be newer.
                self._remove_version(os.path.join(self.folder, str(number)))
        return path

    def _list_models(self) -> list[int]:
        """List the versions with a SavedModel; a folder 2024 may hold other files of a user."""
        paths = {
            number: os.path.join(self.folder, str(number)) for number in list_versions(self.folder)
        }
        return [n for n, path in paths.items() if tf.io.gfile.exists(f"{path}/saved_model.pb")]

    def _remove_version(self, path: str) -> None:
        """Rename a version before its removal: a server must not see an incomplete version."""
        hidden = os.path.join(self.partial, f"removed-{os.path.basename(path)}")
        # `create_version` removes the hidden folder in the end.
        tf.io.gfile.rename(path, hidden)


@contextlib.contextmanager
def create_version(folder: str) -> Iterator[Version]:
    """Create a version to write and publish; remove its folder `partial` at the end.

    First, this function removes versions that killed processes left unfinished.

    Args:
      folder: the folder of the versions, which is created if it is missing.

    Yields:
      The new version, with a number above all existing numbers.
    """
    tf.io.gfile.makedirs(folder)
    # Numbers must rise, even if two exports follow in one second, or the clock was set back.
    used = [*_remove_abandoned(folder), *list_versions(folder)]
    number = max([int(time.time()), *(number + 1 for number in used)])
    partial = os.path.join(folder, f"{_PARTIAL}{number}-{uuid.uuid4().hex}")
    tf.io.gfile.makedirs(partial)
    lock = in_work.lock_folder(partial) if storage.is_local(partial) else None
    try:
        yield Version(folder=folder, partial=partial, number=number)
    finally:
        tf.io.gfile.rmtree(partial)
        if lock is not None:
            os.close(lock)


def _is_in_work(partial: str) -> bool:
    """Return True if the process that writes a folder is alive, or may be alive."""
    is_abandoned = in_work.is_folder_abandoned(partial) if storage.is_local(partial) else None
    if is_abandoned is None:
        age = time.time() - tf.io.gfile.stat(partial).mtime_nsec / 1e9
        return age <= _ABANDONED_SECS
    return not is_abandoned


def _remove_abandoned(folder: str) -> list[int]:
    """Remove unfinished versions that killed processes have left behind.

    Args:
      folder: the folder of the versions.

    Returns:
      The numbers of the versions that other exports are writing, from the names of their folders.
    """
    numbers = []
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if name.startswith(_PARTIAL):
            # Another export may remove the same folder first.
            with contextlib.suppress(tf.errors.NotFoundError):
                if not _is_in_work(path):
                    tf.io.gfile.rmtree(path)
                elif number := re.match(rf"{re.escape(_PARTIAL)}(\d+)-", name):
                    numbers.append(int(number[1]))
    return numbers
