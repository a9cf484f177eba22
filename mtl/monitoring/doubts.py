"""Keeps reasons to doubt the result of a run: shown at each start, and again in the summary.

doubts.record_doubts("runs/digits", "data", ["Field 'age' never varies."])  # replaces the last
doubts.read_all_doubts("runs/digits")                                             # of all kinds
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
    """Warn, and keep the lines in the run's folder; they replace earlier lines of this kind.

    Args:
      model_dir: the folder of the run.
      kind: names the check that doubts, such as "data".
      lines: a sentence each; none to forget earlier lines.
    """
    for line in lines:
        _log.warning("Warning: %s", line)
    known = _read_doubts(model_dir)
    after = {**known, kind: list(lines)}
    after = {name: kept for name, kept in after.items() if kept}
    # Most runs have no doubts, and get no file.
    if after != known:
        atomic.write(os.path.join(model_dir, _FILE), json.dumps(after, indent=1))


def read_doubts(model_dir: str, kind: str) -> list[str]:
    """Return the lines of one kind."""
    return _read_doubts(model_dir).get(kind, [])


def read_all_doubts(model_dir: str) -> list[str]:
    """Return the lines of all kinds."""
    return [line for lines in _read_doubts(model_dir).values() for line in lines]


def _read_doubts(model_dir: str) -> dict[str, list[str]]:
    path = os.path.join(model_dir, _FILE)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            known = json.loads(file.read())
        except (ValueError, RecursionError):  # A damaged file must not stop a run: it only informs.
            return {}
    is_whole = isinstance(known, dict) and all(isinstance(lines, list) for lines in known.values())
    return known if is_whole else {}
