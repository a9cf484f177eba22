"""The files that a training reads its rows from: whether they are still as they were is told.

training_files.tell_changes(["data/train.csv"], "runs/a", is_new=False)

Their sizes and checksums lie in `<model_dir>/training_files.json`. A run may go on with other rows,
unlike with other files of `given_files`. What a run of an earlier version did not record is
recorded when its training goes on.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl.checkpoints import run_directory
from mtl.files import checksums

_log = logging.getLogger(__name__)

FILE = "training_files.json"
_FIX = "Delete it, or copy it back."
_SHOWN = 3


def tell_changes(paths: Sequence[str], model_dir: str, is_new: bool) -> None:
    """Warn if the files of a run that goes on hold other rows than before, and record them.

    A file that has moved, or was written anew with the same content, is the same. A file is read
    only if its size is that of before and its time of change is not.
    """
    record = os.path.join(model_dir, FILE)
    there = tf.io.gfile.exists(record) and not is_new
    before = checksums.read_json(record, _FIX) if there else {}
    now = {path: _describe(path, before.get(path)) for path in dict.fromkeys(paths)}
    if now == before and not is_new:
        return
    changes = _list_changes(before, now) if there else []
    if changes:
        more = [f"and {len(changes) - _SHOWN} more"] * (len(changes) > _SHOWN)
        told = ", ".join([*changes[:_SHOWN], *more])
        step = run_directory.step_of(model_dir)
        message = "%s goes on from step %d, with other training rows: %s. Another folder starts "
        _log.warning(message + "anew.", model_dir, step, told)
    if now:
        checksums.write_json(record, now)
    elif tf.io.gfile.exists(record):
        tf.io.gfile.remove(record)


def _describe(path: str, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"bytes", "changed", "checksum"} of a file."""
    status = tf.io.gfile.stat(path)
    found = {"bytes": status.length, "changed": status.mtime_nsec}
    if before is not None and found.items() <= before.items():
        return dict(before)
    return {**found, "checksum": checksums.of_file(path)}


def _list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return which files hold other rows, by their content: a moved file is the same."""
    old, new = _read_contents(before), _read_contents(now)
    if list(old.values()) == list(new.values()):
        return []
    changed = [f"{path} has changed" for path in new if path in old and old[path] != new[path]]
    added = [f"{path} is new" for path in new if path not in old]
    return changed + added + [f"{path} is gone" for path in old if path not in new]


def _read_contents(files: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    return {path: (file["bytes"], file["checksum"]) for path, file in files.items()}
