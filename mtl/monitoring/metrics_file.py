"""Keeps all metrics of all evaluations of a run in one file, a line for each evaluation.

metrics_file.add_row("runs/digits", "runs/digits/model.ckpt-500", "test", metrics)
frame = pandas.read_json("runs/digits/metrics.jsonl", lines=True)
frame.plot(x="step", y="digit/accuracy")

A line is {"timestamp", "split", "checkpoint", "attacked", "step", and each metric}. An undefined or
infinite value is null, which pandas reads as NaN.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.deferred import tf
from mtl.files import atomic, in_work, storage

_log = logging.getLogger(__name__)

NAME = "metrics.jsonl"
# Two evaluations differ in at least one of these.
_KEYS = ("split", "checkpoint", "attacked", "step")


def add_row(
    model_dir: str,
    checkpoint: str,
    split: str,
    metrics: Mapping[str, Any],
    is_attacked: bool = False,
) -> None:
    """Add the metrics of an evaluation; a repeated evaluation replaces its line.

    If the folder of the run cannot be written, only a warning appears, as metrics are also printed.

    Args:
      model_dir: the folder of the run.
      checkpoint: the path of the evaluated checkpoint.
      split: the name of the evaluated split.
      metrics: {metric: value}, with `global_step`.
      is_attacked: True if the inputs were moved by `launch.evaluate --attacked`.
    """
    inside = f"{model_dir.rstrip('/')}/"
    row = {
        "timestamp": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "split": split,
        "checkpoint": checkpoint.removeprefix(inside),
        "attacked": is_attacked,
        "step": int(metrics["global_step"]),
    }
    for name in sorted(metrics.keys() - {"global_step"}):
        value = float(metrics[name])
        # JSON has no NaN: many readers refuse Python's spelling of it.
        row[name] = value if math.isfinite(value) else None
    path = os.path.join(model_dir, NAME)
    try:
        with _lock_file(model_dir):
            _write_row(path, row)
    except (tf.errors.OpError, OSError) as error:
        _log.warning("Metrics cannot be added to %s: %s.", path, str(error).rpartition("; ")[2])


def forget_from(model_dir: str, step: int) -> None:
    """Drop the evaluations from this step on: a run that goes on makes them anew."""
    path = os.path.join(model_dir, NAME)
    with _lock_file(model_dir):
        rows = read_rows(path)
        kept = [row for row in rows if row["step"] < step]
        if len(kept) < len(rows):
            atomic.write(path, "".join(map(_spell_row, kept)))


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics, without a half-written line of a killed process.

    A missing file has no lines.
    """
    return _parse_rows(_read(path))


def _lock_file(model_dir: str) -> contextlib.AbstractContextManager[None]:
    """Lock the file: a training and parallel evaluations must not lose each other's lines."""
    return (
        in_work.take_turns(model_dir) if storage.is_local(model_dir) else contextlib.nullcontext()
    )


def _write_row(path: str, row: Mapping[str, Any]) -> None:
    text = _read(path)
    rows = _parse_rows(text)
    same = [other for other in rows if all(other[key] == row[key] for key in _KEYS)]
    if same and {**same[-1], "timestamp": row["timestamp"]} == row:
        return
    # Otherwise a line is only appended, whatever the length of the file.
    if same or not _is_whole(text, rows):
        others = [other for other in rows if other not in same]
        atomic.write(path, "".join(map(_spell_row, [*others, row])))
        return
    with tf.io.gfile.GFile(path, "a") as file:
        file.write(_spell_row(row))


def _is_whole(text: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `rows` holds every line of a file, and its last line is complete."""
    return len(rows) == text.count("\n") and (not text or text.endswith("\n"))


def _read(path: str) -> str:
    return storage.read(path).decode(errors="replace") if storage.exists(path) else ""


def _parse_rows(text: str) -> list[dict[str, Any]]:
    return [row for row in map(_parse_line, text.splitlines()) if row is not None]


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and all(key in row for key in _KEYS) else None


def _spell_row(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
