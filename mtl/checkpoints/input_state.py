"""Saves the state of a run's input with every checkpoint: the position and the shuffle buffer.

state = input_state.InputState(model_dir, settings=pipeline)
state.watch(iterator)                      # while the graph is built
state.save(session, step=500)              # <model_dir>/input/0of1-<settings>-500
state.restore(session, step=500)           # False if nothing was saved for this step
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from mtl.checkpoints import settings as settings_lib
from mtl.deferred import tf, tf1
from mtl.files import atomic, checksums, storage

_log = logging.getLogger(__name__)

_FOLDER = "input"
_CHECKSUMS = ".checksums"
_PACKED = ".zlib"
# The fastest level of zlib: it compresses 24 MB of text to a seventh in 0.25 s.
_LEVEL = 1
_CHUNK = 1 << 20
# Data is compressed only if its first chunk shrinks to this share or less.
_WORTH = 0.8
_FIX = "Copy the file back, or delete the files of this step: the data's order then starts anew."


def _list_files(path: str) -> list[str]:
    """Return the files that TensorFlow saved under a path."""
    return [f for f in storage.listed(*os.path.split(f"{path}.")) if not f.endswith(_CHECKSUMS)]


def _pack_files(path: str) -> None:
    """Compress the saved data under a path, if compression makes it much smaller."""
    for file in filter(_is_data, _list_files(path)):
        with tf.io.gfile.GFile(file, "rb") as source:
            sample = source.read(_CHUNK)
            if len(zlib.compress(sample, _LEVEL)) > _WORTH * len(sample):
                if tf.io.gfile.exists(file + _PACKED):  # An earlier training wrote this file.
                    tf.io.gfile.remove(file + _PACKED)
                continue  # Data such as images may already be compressed.
            source.seek(0)
            with (
                atomic.replacing(file + _PACKED) as partial,
                tf.io.gfile.GFile(partial, "wb") as to,
            ):
                packer = zlib.compressobj(_LEVEL)
                while data := source.read(_CHUNK):
                    to.write(packer.compress(data))
                to.write(packer.flush())
        tf.io.gfile.remove(file)


@contextlib.contextmanager
def _unpack_files(path: str) -> Iterator[None]:
    """Unpack the saved data under a path for the time of a `with` block."""
    packed_files = [file for file in _list_files(path) if file.endswith(_PACKED)]
    targets = [file.removesuffix(_PACKED) for file in packed_files]
    try:
        for file, target in zip(packed_files, targets, strict=True):
            with tf.io.gfile.GFile(file, "rb") as source, tf.io.gfile.GFile(target, "wb") as to:
                packer = zlib.decompressobj()
                while data := source.read(_CHUNK):
                    to.write(packer.decompress(data))
                to.write(packer.flush())
        yield
    finally:
        for target in filter(tf.io.gfile.exists, targets):
            tf.io.gfile.remove(target)


def _is_data(file: str) -> bool:
    return ".data-" in file and not file.endswith(_PACKED)


def copy_states(model_dir: str, output_dir: str, step: int) -> None:
    """Copy the input states of a step to another run, which continues from this step.

    Args:
      model_dir: the folder of the first run; if the run saved no states of this step, nothing is
        copied.
      output_dir: the folder of the other run, whose files of the same names are replaced.
      step: the global step.
    """
    target = os.path.join(output_dir, _FOLDER)
    for path in storage.listed(os.path.join(model_dir, _FOLDER)):
        name = os.path.basename(path)
        if name.partition(".")[0].endswith(f"-{step}"):
            tf.io.gfile.makedirs(target)
            tf.io.gfile.copy(path, os.path.join(target, name), overwrite=True)


class InputState:
    """Saves and restores the state of a process's input iterator, in files beside the checkpoints.

    The state of the input is not part of the checkpoint, because evaluations do not need the
    buffers of an input. The input state of a step is written before the checkpoint of the step, so
    every checkpoint has an input state. The state of the process's iterator is the whole state of
    its input, because all replicas of a process take slices of the same batch. The files of an
    input state are compressed if this makes them smaller, because buffers hold much text.

    Args:
      model_dir: the folder of the run.
      settings: the settings that determine the order of the examples. A state is used only if it
        was saved with settings of the same meaning. A state that an old version of mtl has saved is
        used only if the `repr` of the settings is the same.
      readers: the number of processes, each of which reads a part of the data.
      rank: the number of this process, from 0.
      starts_anywhere: True if the input can start at any step without a saved state.
      depends_on_readers: True if another number of processes reads other batches.
    """

    def __init__(
        self,
        model_dir: str,
        settings: Any,
        readers: int = 1,
        rank: int = 0,
        starts_anywhere: bool = False,
        depends_on_readers: bool = False,
    ):
        self._folder = os.path.join(model_dir, _FOLDER)
        self._digest = settings_lib.compute_digest(settings)
        self._earlier = settings_lib.digest_of_repr(settings)
        self._readers, self._rank = readers, rank
        self._starts_anywhere, self._depends_on_readers = starts_anywhere, depends_on_readers
        # `watch` sets `_saver` and `_start`.
        self._saver: Any = None
        self._start: Any = None
        self._can_be_saved = True

    def path(self, step: int | str, rank: int | None = None, digest: str | None = None) -> str:
        """Return the path of the files of an input state, without their endings.

        Args:
          step: the global step.
          rank: the number of the process; None for this process.
          digest: the digest of the settings; None for the present settings.
        """
        prefix = f"{self._rank if rank is None else rank}of{self._readers}"
        return os.path.join(self._folder, f"{prefix}-{digest or self._digest}-{step}")

    def is_saved(self, step: int, digest: str | None = None) -> bool:
        """Return True if every process has saved its input state at this step.

        Args:
          step: the global step.
          digest: the digest of the settings; None for the present settings.
        """
        paths = [self.path(step, rank, digest) for rank in range(self._readers)]
        return all(tf.io.gfile.exists(f"{path}.index") for path in paths)

    def wait(self, step: int) -> None:
        """Wait until every process has saved its input state of a step, without a time limit.

        The function returns at once if the input of this process cannot save its state.
        """
        while self._can_be_saved and not self.is_saved(step):
            time.sleep(0.01)

    def watch(self, iterator: Any, trusted: bool = False) -> None:
        """Set the iterator whose state is saved; call this while the graph is built.

        Args:
          iterator: the iterator of batches.
          trusted: True also saves a shuffle inside a function, such as the argument of `flat_map`.
            By default, TensorFlow refuses to save a shuffle inside a function, although saving
            works.
        """
        policy = "ignore" if trusted else "fail"
        saveable = tf.data.experimental.make_saveable_from_iterator(iterator, policy)
        self._saver = tf1.train.Saver([saveable], max_to_keep=0)
        self._start = iterator.initializer

    def save(self, session: tf.compat.v1.Session, step: int) -> None:
        """Save the state that the input has after this step.

        If a source, such as a Python generator, cannot save its state, a warning says so once.
        """
        if not self._can_be_saved:
            return
        tf.io.gfile.makedirs(self._folder)
        try:
            self._saver.save(session, self.path(step), write_meta_graph=False, write_state=False)
            _pack_files(self.path(step))
            self._seal_files(self.path(step))
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            self._can_be_saved = False
            reason = "the state of this input cannot be saved"
            _log.warning("If this run continues, its data starts in a new order: %s.", reason)
            _log.debug("%s", error)

    def _seal_files(self, path: str) -> None:
        """Write the checksums of the files, because a damaged file may crash TensorFlow."""
        sums = {file.removeprefix(path): checksums.of_file(file) for file in _list_files(path)}
        checksums.write_json(f"{path}{_CHECKSUMS}", sums)

    def _require_intact(self, path: str) -> None:
        record = f"{path}{_CHECKSUMS}"
        if tf.io.gfile.exists(record):  # States of old versions lack checksums.
            for ending, checksum in checksums.read_json(record, _FIX).items():
                checksums.require(f"{path}{ending}", checksum, _FIX)

    def restore(self, session: tf.compat.v1.Session, step: int) -> bool:
        """Restore the state of the input that was saved at a step, to continue after this step.

        Returns:
          False if there is no suitable state, so that the order of the examples starts anew.

        Raises:
          UserError: a saved file is damaged.
        """
        digests = [d for d in (self._digest, self._earlier) if self.is_saved(step, d)]
        if not digests:
            if self._starts_anywhere and self._depends_on_readers:
                self._tell_other_readers(step)
            return self._starts_anywhere
        path = self.path(step, digest=digests[0])
        self._require_intact(path)
        try:
            with _unpack_files(path):
                self._saver.restore(session, path)
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError, zlib.error) as error:
            raise checksums.describe_damage(f"{path}.*", "its checksum differs", _FIX) from error
        except (tf.errors.OpError, ValueError):
            # Start the iterator anew, because a state of an old version may have been restored only
            # in part.
            self.restart(session)
            return False
        return True

    def _tell_other_readers(self, step: int) -> None:
        """Warn if another number of processes has saved the state of a step."""
        files = map(os.path.basename, storage.listed(self._folder))
        saved = [file.partition("-")[0] for file in files if file.endswith(f"-{step}.index")]
        counts = {int(readers.partition("of")[2]) for readers in saved}
        if counts and self._readers not in counts:
            message = "The number of processes has changed from %d to %d: until each row was read "
            message += "once, some groups of rows are read twice or left out."
            _log.warning(message, max(counts), self._readers)

    def restart(self, session: tf.compat.v1.Session) -> None:
        """Start the input from its beginning."""
        session.run(self._start)

    def keep(self, steps: Iterable[int]) -> None:
        """Remove this process's input states of all steps except `steps`.

        Input states that were saved with other settings are not removed.
        """
        kept_steps = list(steps)
        for digest in {self._digest, self._earlier}:
            names = {os.path.basename(self.path(step, digest=digest)) for step in kept_steps}
            for path in storage.listed(*os.path.split(self.path("", digest=digest))):
                if os.path.basename(path).partition(".")[0] not in names:
                    tf.io.gfile.remove(path)
