"""Files that a user gives and a run depends on, such as a vocabulary: they must not change.

given_files.keep_checksums({"features/categorical_job": "words.txt"}, "runs/a", is_new=True)
given_files.check_unchanged({"features/categorical_job": "words.txt"}, "runs/a")

Their checksums lie in `<model_dir>/given_files.json`, by purpose: a file may move, but not change.
Runs of old versions lack checksums; these are recorded when the training continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mtl import checks
from mtl.deferred import tf
from mtl.files import checksums

FILE = "given_files.json"
_FIX = "Copy it back, or delete it if the files it tells of have not changed."


def keep_checksums(files: Mapping[str, str], model_dir: str, is_new: bool) -> None:
    """Record the checksums of {purpose: path}; the files of a continued run are checked first."""
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
    """Fail if a file has changed since the run started; return {purpose: its checksum then}.

    Raises:
      UserError: names the file and a fix, in one line.
    """
    record = os.path.join(model_dir, FILE)
    old_checksums = checksums.read_json(record, _FIX) if tf.io.gfile.exists(record) else {}
    for purpose, path in files.items():
        # The code that reads a missing file reports it best.
        is_same = not tf.io.gfile.exists(path) or checksums.matches(
            path, old_checksums.get(purpose)
        )
        rule = f"be as when the run in {model_dir} was started"
        fix = "It has changed: put the old file back, or start again in another --model_dir."
        checks.require(is_same, f"the file of {purpose}", rule, path, fix)
    return old_checksums
