"""Records warnings about a run in its folder; each start and the summary of the run show them.

doubts.record_doubts("runs/digits", "data", ["Field 'age' never varies."])
doubts.read_all_doubts("runs/digits")                    # ["Field 'age' never varies."]
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence

from mtl.deferred import tf
from mtl.files import atomic

_log = logging.getLogger(__name__)

_FILE = "warnings.json"


def record_doubts(model_dir: str, kind: str, lines: Sequence[str]) -> None:
    """Log warnings, and record them in the run's folder.

    Args:
      model_dir: the folder of the run.
      kind: the name of the check that warns, such as "data".
      lines: the warnings, which replace earlier warnings of this kind.
    """
    for line in lines:
        _log.warning("Warning: %s", line)
    before = _read_doubts(model_dir)
    after = {**before, kind: list(lines)}
    after = {name: lines_of_kind for name, lines_of_kind in after.items() if lines_of_kind}
    # Write no file for a run without warnings.
    if after != before:
        atomic.write(os.path.join(model_dir, _FILE), json.dumps(after, indent=1))


def read_doubts(model_dir: str, kind: str) -> list[str]:
    """Return the recorded warnings of one kind.

    Args:
      model_dir: the folder of the run.
      kind: the name of the check that warns, such as "data".

    Returns:
      The warnings; [] if there is none, or if the record is damaged.
    """
    return _read_doubts(model_dir).get(kind, [])


def read_all_doubts(model_dir: str) -> list[str]:
    """Return the recorded warnings of all kinds."""
    return [line for lines in _read_doubts(model_dir).values() for line in lines]


def _read_doubts(model_dir: str) -> dict[str, list[str]]:
    path = os.path.join(model_dir, _FILE)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            record = json.loads(file.read())
        except (ValueError, RecursionError):  # A damaged file warnings.json must not stop a run.
            return {}
    is_whole = isinstance(record, dict) and all(isinstance(v, list) for v in record.values())
    return record if is_whole else {}
