"""Checks that files on which a run depends, such as a user's vocabulary, do not change.

given_files.keep_checksums({"features/categorical_job": "words.txt"}, "runs/a", is_new=True)
given_files.check_unchanged({"features/categorical_job": "words.txt"}, "runs/a")

For each purpose of a file, `<model_dir>/given_files.json` holds the checksum of the file, so the
file may move, but not change. If an old version of mtl has started the run, the checksums are
recorded when its training continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mtl import checks
from mtl.deferred import tf
from mtl.files import checksums

FILE = "given_files.json"
_FIX = "Copy this record back, or delete it if the files that it lists have not changed."


def keep_checksums(files: Mapping[str, str], model_dir: str, is_new: bool) -> None:
    """Record the checksums of files; if a run continues, check the files first.

    Args:
      files: {purpose: path}.
      model_dir: the folder of the run.
      is_new: True for a run without a checkpoint.

    Raises:
      UserError: a file has changed since the run started.
    """
    old_checksums = {} if is_new else check_unchanged(files, model_dir)
    existing_files = {purpose: path for purpose, path in files.items() if tf.io.gfile.exists(path)}
    new_checksums = {
        **old_checksums,
        **{purpose: checksums.of_file(path) for purpose, path in existing_files.items()},
    }
    path = os.path.join(model_dir, FILE)
    if new_checksums != old_checksums:
        checksums.write_json(path, new_checksums)
    elif not new_checksums and tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def check_unchanged(files: Mapping[str, str], model_dir: str) -> dict[str, str]:
    """Fail if a file has changed since the run started.

    Args:
      files: {purpose: path}.
      model_dir: the folder of the run.

    Returns:
      {purpose of a file: its checksum}, as recorded when the run started.

    Raises:
      UserError: a file has changed; the error names the file.
    """
    record = os.path.join(model_dir, FILE)
    old_checksums = checksums.read_json(record, _FIX) if tf.io.gfile.exists(record) else {}
    for purpose, path in files.items():
        # Ignore a missing file here, because the code that reads the file has a better error.
        is_same = not tf.io.gfile.exists(path) or checksums.matches(
            path, old_checksums.get(purpose)
        )
        rule = f"be as when the run in {model_dir} was started"
        fix = "The file has changed: name or put back the old file, or take another --model_dir."
        checks.require(is_same, f"the file of {purpose}", rule, path, fix)
    return old_checksums
