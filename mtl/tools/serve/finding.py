"""Finds the exported versions that a server may serve.

exports = finding.Exports.of_run("runs/adult")           # the newest of latest, best and manual
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
          export: "latest", "best", "manual", or another folder of versions; None for all three.

        Raises:
          UserError: the two contradict each other, or name no folder.
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
        """Return {version: folder} of the complete versions, the newest last.

        A number that several folders hold stands for the last of them.
        """
        found = {}
        for folder in self.folders:
            for number in versions.list_versions(folder):
                path = os.path.join(folder, str(number))
                # A folder without this file is still being copied, or holds something else.
                if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
                    found[number] = path
        return dict(sorted(found.items()))

    def choose_version(self, number: int | None) -> int:
        """Return `number`, or the newest version.

        Raises:
          UserError: the version does not exist.
        """
        found = self.list_versions()
        where = " or ".join(self.folders)
        if not found:
            fix = self._explain_absence()
            raise checks.UserError(f"no export lies in {where}. {fix}")
        if number is not None:
            near = checks.nearest(number, found)
            listed = ", ".join(map(str, found))
            fix = f"{near} There are {listed}." if near else f"There are {listed}."
            rule = f"be a version in {where}"
            checks.require(number in found, "--version", rule, number, fix)
        return max(found) if number is None else number

    def _explain_absence(self) -> str:
        """Return a hint, such as the right flags for a folder that is itself a version."""
        (folder, *others) = self.folders
        is_version = tf.io.gfile.exists(os.path.join(folder, "saved_model.pb"))
        above, number = os.path.split(folder.rstrip("/"))
        if not others and is_version and number.isdigit():
            return f"It is one version: set --export {above} --version {number}."
        if not others and tf.io.gfile.exists(os.path.join(folder, "config.gin")):
            return f"It is the folder of a run: set --model_dir {folder}."
        return _FIX
