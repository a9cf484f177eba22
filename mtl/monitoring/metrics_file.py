"""Records the metrics of all evaluations of a run in one file, with a line for each evaluation.

metrics_file.add_row("runs/digits", "runs/digits/model.ckpt-500", "test", metrics)
frame = pandas.read_json("runs/digits/metrics.jsonl", lines=True)
frame.plot(x="step", y="digit/accuracy")

A line is a JSON object with "timestamp", "split", "checkpoint", "attacked", "step", and a key for
each metric. An undefined or infinite value is null, which pandas reads as NaN.
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
# The keys of a row that identify an evaluation.
_KEYS = ("split", "checkpoint", "attacked", "step")


def add_row(
    model_dir: str,
    checkpoint: str,
    split: str,
    metrics: Mapping[str, Any],
    is_attacked: bool = False,
) -> None:
    """Add a line with the metrics of an evaluation; a repeated evaluation replaces its line.

    If the folder of the run cannot be written, a warning is logged, because metrics are also
    printed.

    Args:
      model_dir: the folder of the run.
      checkpoint: the path of the evaluated checkpoint.
      split: the name of the evaluated split.
      metrics: {metric: value}, with `global_step`.
      is_attacked: True if `launch.evaluate --attacked` perturbed the inputs.
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
        # Write null for NaN: JSON has no NaN, and many readers refuse the "NaN" that Python writes.
        row[name] = value if math.isfinite(value) else None
    path = os.path.join(model_dir, NAME)
    try:
        with _lock_file(model_dir):
            _write_row(path, row)
    except (tf.errors.OpError, OSError) as error:
        _log.warning("Metrics cannot be added to %s: %s.", path, str(error).rpartition("; ")[2])


def forget_from(model_dir: str, step: int) -> None:
    """Remove the evaluations of a step and later steps, which a continued run will repeat.

    Args:
      model_dir: the folder of the run, which must exist.
      step: the first global step whose evaluations are removed.
    """
    path = os.path.join(model_dir, NAME)
    with _lock_file(model_dir):
        rows = read_rows(path)
        earlier = [row for row in rows if row["step"] < step]
        if len(earlier) < len(rows):
            atomic.write(path, "".join(map(_format_row, earlier)))


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a file of metrics, without lines that a killed process wrote in part.

    Args:
      path: the path of a metrics.jsonl.

    Returns:
      A dictionary for each evaluation, in the order of the file; an undefined or infinite metric is
      None. If the file is missing, the result is [].
    """
    return _parse_rows(_read(path))


def _lock_file(model_dir: str) -> contextlib.AbstractContextManager[None]:
    """Lock the file of metrics, so that processes that write at the same time lose no lines."""
    return (
        in_work.take_turns(model_dir) if storage.is_local(model_dir) else contextlib.nullcontext()
    )


def _write_row(path: str, row: Mapping[str, Any]) -> None:
    text = _read(path)
    rows = _parse_rows(text)
    repeats = [other for other in rows if all(other[key] == row[key] for key in _KEYS)]
    if repeats and {**repeats[-1], "timestamp": row["timestamp"]} == row:
        return
    if repeats or not _is_whole(text, rows):
        others = [other for other in rows if other not in repeats]
        atomic.write(path, "".join(map(_format_row, [*others, row])))
        return
    # Append a new line, instead of writing a long file again.
    with tf.io.gfile.GFile(path, "a") as file:
        file.write(_format_row(row))


def _is_whole(text: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if `rows` has every line of the file, and the last line is complete."""
    return len(rows) == text.count("\n") and (not text or text.endswith("\n"))


def _read(path: str) -> str:
    return storage.read(path).decode(errors="replace") if storage.exists(path) else ""


def _parse_rows(text: str) -> list[dict[str, Any]]:
    # `splitlines` would also split at characters in names, such as U+2028, which JSON allows.
    return [row for row in map(_parse_line, text.split("\n")) if row is not None]


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and all(key in row for key in _KEYS) else None


def _format_row(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
