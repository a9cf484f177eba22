"""Finds the exported versions that a server may serve.

exports = finding.Exports.of_run("runs/adult")           # all exports of a run
exports = finding.Exports.of_run("runs/adult", "best")
exports = finding.Exports(["models/adult"])
exports.list_versions()                                  # {1795231775: "models/adult/1795231775"}
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from mtl import checks
from mtl.deferred import tf
from mtl.files import storage
from mtl.serving import versions

KINDS = ("latest", "best", "manual")
_FIX = "launch.train exports after each evaluation, and launch.export exports any checkpoint."


class Exports:
    """The folders of numbered versions that a server watches."""

    def __init__(self, folders: Sequence[str]):
        self.folders = folders

    @classmethod
    def of_run(cls, model_dir: str | None, export: str | None = None) -> Exports:
        """Return the exports of a run.

        Args:
          model_dir: the folder of the run; may be None if `export` is a folder.
          export: "latest", "best" or "manual" for exports of one kind; None for exports of all
            kinds; or a folder of versions.

        Raises:
          UserError: a folder does not exist, both `model_dir` and a folder of versions are set, or
            neither is set.
        """
        if export and export not in KINDS:
            storage.require_plain("--export", export)
            near = checks.nearest(export, KINDS) if "/" not in export else ""
            rule = "be latest, best, manual or a folder of versions"
            checks.require(storage.exists(export), "--export", rule, export, near)
            rule = "be left out if --export is a folder"
            checks.require(model_dir is None, "--model_dir", rule, model_dir)
            return cls([export])
        rule = "name the folder of a run"
        checks.require(bool(model_dir), "--model_dir", rule, model_dir, "Or set --export FOLDER.")
        storage.require_plain("--model_dir", str(model_dir))
        checks.require(storage.exists(str(model_dir)), "--model_dir", rule, model_dir)
        kinds = [export] if export else KINDS
        return cls([os.path.join(str(model_dir), "export", kind) for kind in kinds])

    def list_versions(self) -> dict[int, str]:
        """Return {version: folder} for all complete versions, from the oldest to the newest.

        If several folders have a version with the same number, the last of these folders counts.
        """
        folders = {}
        for folder in self.folders:
            for number in versions.list_versions(folder):
                path = os.path.join(folder, str(number))
                # Without saved_model.pb, the folder is still being copied, or is not a SavedModel.
                if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
                    folders[number] = path
        return dict(sorted(folders.items()))

    def choose_version(self, number: int | None) -> int:
        """Return the version to serve.

        Args:
          number: the number of the version; None for the newest.

        Raises:
          UserError: the version does not exist, or there are no versions.
        """
        folders = self.list_versions()
        where = " or ".join(self.folders)
        if not folders:
            fix = self._explain_absence()
            raise checks.UserError(f"there is no export in {where}. {fix}")
        if number is not None:
            near = checks.nearest(number, folders)
            numbers = ", ".join(map(str, folders))
            fix = f"{near} There are {numbers}." if near else f"There are {numbers}."
            rule = f"be a version in {where}"
            checks.require(number in folders, "--version", rule, number, fix)
        return max(folders) if number is None else number

    def _explain_absence(self) -> str:
        """Return a hint for folders without versions, such as the right flags."""
        (folder, *more) = self.folders
        is_version = tf.io.gfile.exists(os.path.join(folder, "saved_model.pb"))
        above, number = os.path.split(folder.rstrip("/"))
        if not more and is_version and number.isdigit():
            return f"This folder is a single version: set --export {above} --version {number}."
        if not more and tf.io.gfile.exists(os.path.join(folder, "config.gin")):
            return f"This is the folder of a run: set --model_dir {folder}."
        return _FIX
