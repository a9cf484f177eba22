"""Warns if the files of the training split have changed since a run started.

training_files.tell_changes(["data/train.csv"], "runs/a", is_new=False)

`<model_dir>/training_files.json` holds the sizes and checksums of the files. In contrast to the
files of `given_files`, training files may change, because a run may continue with other rows. If an
old version of mtl has started the run, `training_files.json` is written when its training
continues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import checks, deferred
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import checksums

with deferred.imports():
    from mtl.files import remote

_log = logging.getLogger(__name__)

FILE = "training_files.json"
_FIX = "Delete this file, or copy it back."
# The largest number of changes that a warning lists; the warning only counts further changes.
_SHOWN = 3


def tell_changes(paths: Sequence[str], model_dir: str, is_new: bool) -> None:
    """Warn if the training files of a continued run have changed, and record the files.

    A file that was moved causes no warning; neither does a local file that was written again with
    the same content. A file is read only if its size or its time of change differs from the record.

    Args:
      paths: the files of the training split.
      model_dir: the folder of the run.
      is_new: True for a run without a checkpoint.
    """
    record = os.path.join(model_dir, FILE)
    has_record = tf.io.gfile.exists(record) and not is_new
    before = checksums.read_json(record, _FIX) if has_record else {}
    now = {path: _describe_file(path, before.get(path)) for path in dict.fromkeys(paths)}
    if now == before and not is_new:
        return
    changes = _list_changes(before, now) if has_record else []
    if changes:
        step = run_directory.step_of(model_dir)
        message = "%s goes on from step %d, with other training rows: %s. Means, vocabularies and "
        message += (
            "class counts stay those of the earlier rows. Choose another folder to start anew."
        )
        _log.warning(message, model_dir, step, _list_some(changes))
    if now:
        checksums.write_json(record, now)
    elif tf.io.gfile.exists(record):
        tf.io.gfile.remove(record)


def require_unchanged(paths: Sequence[str], model_dir: str, fix: str) -> None:
    """Fail if the training files have changed since a run trained.

    Args:
      paths: the files of the training split.
      model_dir: the folder of the run; without a record of its files, nothing is checked.
      fix: the advice at the end of the error message.

    Raises:
      UserError: a file has changed, is new or is gone.
    """
    record = os.path.join(model_dir, FILE)
    if tf.io.gfile.exists(record):
        before = checksums.read_json(record, _FIX)
        changes = _list_changes(before, {path: _describe_file(path, None) for path in paths})
        rule = f"be those of {model_dir}"
        checks.require(not changes, "the training rows", rule, _list_some(changes), fix)


def _list_some(changes: Sequence[str]) -> str:
    more = [f"and {len(changes) - _SHOWN} more"] * (len(changes) > _SHOWN)
    return ", ".join([*changes[:_SHOWN], *more])


def _describe_file(path: str, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"bytes": size, "changed": time of change, "checksum": checksum} of a file.

    Remote files are not read: their time of change replaces the checksum.
    """
    if remote.is_remote(path):
        size, change_time = remote.look(path)
        return {"bytes": size, "changed": change_time, "checksum": f"changed:{change_time}"}
    status = tf.io.gfile.stat(path)
    status_now = {"bytes": status.length, "changed": status.mtime_nsec}
    if before is not None and status_now.items() <= before.items():
        return dict(before)
    return {**status_now, "checksum": checksums.of_file(path)}


def _list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return messages about new, missing and changed files; [] if files only moved."""
    old, new = _read_contents(before), _read_contents(now)
    if list(old.values()) == list(new.values()):
        return []
    changes = [f"{path} has changed" for path in new if path in old and old[path] != new[path]]
    additions = [f"{path} is new" for path in new if path not in old]
    return changes + additions + [f"{path} is gone" for path in old if path not in new]


def _read_contents(files: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    return {path: (file["bytes"], file["checksum"]) for path, file in files.items()}
