"""Prevents the predictions of a command from overwriting its inputs or its model.

guard = protection.Protection(files=["data/train.csv"], model_dir="runs/adult")
guard.check("out.csv")
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Hashable, Sequence

from mtl import checks
from mtl.checkpoints import run_directory
from mtl.files import atomic, remote, storage
from mtl.tools.scoring import writers

_CHECKPOINT = re.compile(r"checkpoint|.*\.(index|meta|data-\d{5}-of-\d{5})")
# Folders that a run writes besides its checkpoints.
_FOLDERS = re.compile(r"clip_audit|cluster|eval.*|export")
# An export has saved_model.pb in its folder, and further files in the subfolders variables/,
# assets/ and assets.extra/. An output is therefore refused if its folder or the folder above has
# saved_model.pb.
_LEVELS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protection:
    """Describes files and folders that an output must not overwrite.

    Attributes:
      files: the files that the command reads: inputs, the data of the experiment, gin files.
      model_dir: the folder of the run. An output may lie in the folder of the run, but it must not
        overwrite a file of the run.
      where: the command-line flag that sets the output; error messages name this flag.
      endings: the file extensions, without a dot, that outputs in `model_dir` may have.
      anywhere: True if outputs may lie in object stores, such as s3://bucket.
    """

    files: Sequence[str] = ()
    model_dir: str | None = None
    where: str = "--output"
    endings: Sequence[str] = writers.FORMATS
    anywhere: bool = False

    def check(self, output: str) -> None:
        """Fail if an output file would overwrite an input or a part of a model.

        Args:
          output: the path of the output file, or its URL if `anywhere` is True.

        Raises:
          UserError: the file must not be overwritten, or cannot be written.
        """
        is_remote = self.anywhere and remote.is_remote(output)
        exists = remote.exists if self.anywhere else storage.exists
        require_path = remote.require_writable if is_remote else storage.require_path
        require_path(self.where, output)
        fix = "Name another file or folder."

        def require(condition: bool, rule: str) -> None:
            checks.require(condition, self.where, rule, output, fix)

        is_read = any(remote.fits(output, path) for path in self.files if is_remote)
        is_read = is_read or atomic.identity(output) in self._read
        require(not is_read, "not be an input")
        # Writing to a pipe or a device does not overwrite a file.
        if atomic.is_special(output):
            return
        path = atomic.absolute(output)
        folder, name = os.path.split(path)
        is_part = _CHECKPOINT.fullmatch(name) and exists(path)
        checks.require(not is_part, self.where, "not be part of a checkpoint", output, fix)
        checks.require(
            not _is_exported(folder, exists), self.where, "lie outside of an export", output, fix
        )
        if self.model_dir:
            self._check_model_dir(self.model_dir, path, output)
        storage.require_possible(self.where, folder, "a file", output)

    @functools.cached_property
    def _read(self) -> set[Hashable]:
        return {atomic.identity(path) for path in self.files}

    def _check_model_dir(self, model_dir: str, path: str, output: str) -> None:
        root = atomic.absolute(model_dir).rstrip("/") + "/"
        if not path.startswith(root):
            return
        name = path.removeprefix(root)
        folders = name.split("/")[:-1]
        rule = "not be a file of the run itself"
        in_own = run_directory.is_own(name) or (folders and _FOLDERS.fullmatch(folders[0]))
        checks.require(not in_own, self.where, rule, output, f"{self.model_dir} holds the run.")
        # The pattern also finds the ending of shards, such as predictions.jsonl-00000-of-00010.
        ending = re.match(r"\.(\w+?)s?(-|$)", os.path.splitext(path)[1])
        endings = ", ".join(f".{name}" for name in self.endings)
        fix = f"In {self.model_dir}, an output can end in {endings}."
        is_output = ending is not None and ending.group(1) in self.endings
        checks.require(is_output, self.where, rule, output, fix)


def _is_exported(folder: str, exists: Callable[[str], bool]) -> bool:
    for _ in range(_LEVELS):
        if exists(os.path.join(folder, "saved_model.pb")):
            return True
        folder = os.path.dirname(folder)
    return False
